"""The programs to copy, `bert/minimal.py` and `cnn/minimal.py`: alone, and with two workers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
GLOBAL_BATCHES = {"bert": 16, "cnn": 32}
NUM_STEPS = {"bert": 10, "cnn": 35}
ENGINES = {"bert": "horovod", "cnn": "grpc"}
LEARNING_RATES = {"bert": "0.002", "cnn": "0.3"}  # So that they learn in few steps.


def _train(run_program: Callable[..., Any], cache: Path, name: str, **how: Any) -> dict[str, float]:
    batch = GLOBAL_BATCHES[name] // how.get("num_workers", 1)
    options = ["--num-steps", str(NUM_STEPS[name]), "--batch-size", str(batch)]
    options += ["--learning-rate", LEARNING_RATES[name]]
    script = str(EXAMPLES / name / "minimal.py")
    printed = run_program([script, *options], env={"TFDIST_CACHE_DIR": str(cache)}, **how)
    assert [worker.stdout for worker in printed[1:]] == [""] * (len(printed) - 1)
    return json.loads(printed[0].stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["bert", "cnn"])
def test_two_workers_learn_what_one_learns_with_their_global_batch(
    run_program: Callable[..., Any], sample_cache: Path, name: str
) -> None:
    alone = _train(run_program, sample_cache, name, engine="none")
    together = _train(run_program, sample_cache, name, engine=ENGINES[name], num_workers=2)
    assert together == pytest.approx(alone, rel=0.01, abs=0.01)
    assert together["global_step"] == NUM_STEPS[name]
    assert together["loss"] < {"bert": 8.0, "cnn": 2.2}[name]  # Guessing: 8.99 and 2.30.


@pytest.mark.parametrize("name", ["bert", "cnn"])
def test_a_program_to_copy_is_short(name: str) -> None:
    lines = (EXAMPLES / name / "minimal.py").read_text().splitlines()
    assert len(lines) <= 200
