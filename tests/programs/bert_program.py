"""Runs of examples/bert/run_pretraining.py in this process, and records for them."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from application_runs import SCRIPTS, load, modules_of, run_application

SCRIPT = SCRIPTS["bert"]
LENGTH, MASKS, WORDS = 16, 4, 100
# A model that trains in milliseconds: a layer of 16, as a pipeline over two devices.
TINY = [
    *("--config", "unit_test", "--device-iterations", "1", "--training-steps", "10"),
    *("--num-hidden-layers", "1", "--hidden-size", "16", "--num-attention-heads", "2"),
    *("--sequence-length", str(LENGTH), "--mask-tokens", str(MASKS), "--vocab-size", str(WORDS)),
    *("--micro-batch-size", "2", "--layers-per-device", "0", "1"),
    *("--gradient-accumulation", "8", "--disable-progress-bar"),
]
ONE_DEVICE = ["--layers-per-device", "1"]  # Half of the graph, which takes longer than its steps.


@dataclass(frozen=True, kw_only=True)
class BertRun:
    """A run.

    Attributes:
      code: The exit code.
      lines: The lines on standard error.
      figures: The last line on standard output, of a run that has trained.
      steps: The values of each step.
    """

    code: int
    lines: list[str]
    figures: dict[str, Any]
    steps: list[dict[str, float]]


def run_bert(*arguments: str) -> BertRun:
    """Runs the program to its end, with the values of each step in full."""
    steps: list[dict[str, float]] = []

    def noting() -> Any:
        log = load("log")
        describe = log.describe_step

        def note(step: int, number: int, rate: float, values: dict[str, float]) -> str:
            steps.append({"step": step, "rate": rate, **values})
            return str(describe(step, number, rate, values))

        return mock.patch.object(log, "describe_step", note)

    ended = run_application("bert", *arguments, within=noting)
    last = ended.out.splitlines()[-1:]
    figures = json.loads(last[0]) if last and last[0].startswith("{") else {}
    lines = re.split(r"[\r\n]+", ended.err.strip())
    return BertRun(code=ended.code, lines=lines, figures=figures, steps=steps)


def write_records(path: Path, number: int) -> None:
    """Writes samples with 1 to 4 masked words each."""
    random = np.random.default_rng(0)
    with modules_of("bert"):
        records = load("records")
        records.write_file(path, [records.encode(_sample(random)) for _ in range(number)])


def _sample(random: np.random.Generator) -> dict[str, Any]:
    masked = int(random.integers(1, MASKS + 1))
    weights = [1.0] * masked + [0.0] * (MASKS - masked)
    positions = sorted(random.permutation(np.arange(1, LENGTH))[:masked].tolist())
    first = int(random.integers(4, LENGTH - 4))
    return {
        "input_ids": random.integers(0, WORDS, LENGTH).tolist(),
        "input_mask": [1] * LENGTH,
        "segment_ids": [0] * first + [1] * (LENGTH - first),
        "masked_lm_positions": positions + [0] * (MASKS - masked),
        "masked_lm_ids": random.integers(0, WORDS, masked).tolist() + [0] * (MASKS - masked),
        "masked_lm_weights": weights,
        "next_sentence_labels": [int(random.integers(0, 2))],
    }
