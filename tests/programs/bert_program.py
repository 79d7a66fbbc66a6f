"""Runs of examples/bert/run_pretraining.py in this process, and records for them."""

import contextlib
import importlib
import io
import json
import os
import re
import runpy
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

FOLDER = Path(__file__).parents[2] / "examples" / "bert"
SCRIPT = str(FOLDER / "run_pretraining.py")
LENGTH, MASKS, WORDS = 16, 4, 100
# A model that trains in milliseconds: two layers of 16.
TINY = [
    *("--config", "unit_test", "--device-iterations", "1", "--training-steps", "20"),
    *("--num-hidden-layers", "2", "--hidden-size", "16", "--num-attention-heads", "2"),
    *("--sequence-length", str(LENGTH), "--mask-tokens", str(MASKS), "--vocab-size", str(WORDS)),
    *("--micro-batch-size", "2", "--layers-per-device", "0", "1", "1"),
    *("--gradient-accumulation", "8", "--disable-progress-bar"),
]
# The same with half of the graph, which takes longer than its steps.
ONE_LAYER = ["--num-hidden-layers", "1", "--layers-per-device", "1"]


@dataclass(frozen=True, kw_only=True)
class BertRun:
    """A run.

    Attributes:
      code: The exit code.
      stdout: The standard output.
      lines: The lines on standard error.
      figures: The last line on standard output, of a run that has trained.
      steps: The values of each step.
    """

    code: int
    stdout: str
    lines: list[str]
    figures: dict[str, Any]
    steps: list[dict[str, float]]


@contextlib.contextmanager
def bert_modules() -> Iterator[None]:
    """Makes the modules of the example importable."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield
    finally:
        sys.path.remove(str(FOLDER))
        for name in [path.stem for path in FOLDER.glob("*.py")]:
            sys.modules.pop(name, None)


def load(name: str) -> Any:
    """Returns a module of the example, in `bert_modules`."""
    return importlib.import_module(name)


def run_bert(*arguments: str, trains: bool = True) -> BertRun:
    """Runs the program to its end, with the values of each step in full.

    Args:
      *arguments: The command line.
      trains: Whether it comes to the training; False does not import TensorFlow for it.
    """
    steps: list[dict[str, float]] = []
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.ExitStack() as scopes:
        scopes.enter_context(bert_modules())
        if trains:
            scopes.enter_context(_noting(steps))
        scopes.enter_context(mock.patch.dict(os.environ))  # It sets TensorFlow's log level.
        scopes.enter_context(mock.patch.object(sys, "argv", [SCRIPT, *arguments]))
        scopes.enter_context(contextlib.redirect_stdout(out))
        scopes.enter_context(contextlib.redirect_stderr(err))
        try:
            runpy.run_path(SCRIPT, run_name="__main__")
        except SystemExit as end:
            code = int(end.code or 0)
    stdout = out.getvalue()
    printed = stdout.splitlines()
    figures = json.loads(printed[-1]) if printed and printed[-1].startswith("{") else {}
    lines = re.split(r"[\r\n]+", err.getvalue().strip())
    return BertRun(code=code, stdout=stdout, lines=lines, figures=figures, steps=steps)


def _noting(steps: list[dict[str, float]]) -> Any:
    """Returns a context in which the values of each step are noted."""
    log = load("log")
    describe = log.describe_step

    def noting(step: int, number: int, rate: float, values: dict[str, float]) -> str:
        steps.append({"step": step, "rate": rate, **values})
        return str(describe(step, number, rate, values))

    return mock.patch.object(log, "describe_step", noting)


def write_records(path: Path, number: int) -> None:
    """Writes samples with 1 to 4 masked words each."""
    random = np.random.default_rng(0)
    with bert_modules():
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
