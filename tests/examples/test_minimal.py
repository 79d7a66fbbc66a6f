"""The programs to copy, `bert/minimal.py` and `cnn/minimal.py`: alone, and with two workers."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
GLOBAL_BATCHES = {"bert": 16, "cnn": 32}
NUM_STEPS = {"bert": 10, "cnn": 35}
ENGINES = {"bert": "horovod", "cnn": "grpc"}


def _train(
    run_program: Callable[..., Any], script: Path, name: str, **how: Any
) -> dict[str, float]:
    batch = GLOBAL_BATCHES[name] // how.get("num_workers", 1)
    options = ["--num-steps", str(NUM_STEPS[name]), "--batch-size", str(batch)]
    printed = run_program([str(script), *options], **how)
    assert [worker.stdout for worker in printed[1:]] == [""] * (len(printed) - 1)
    return json.loads(printed[0].stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["bert", "cnn"])
def test_two_workers_learn_what_one_learns_with_their_global_batch_from_a_copied_file(
    run_program: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    script = Path(shutil.copy(EXAMPLES / name / "minimal.py", tmp_path / "copied.py"))
    alone = _train(run_program, script, name, engine="none")
    together = _train(run_program, script, name, engine=ENGINES[name], num_workers=2)
    assert together == pytest.approx(alone, rel=0.01, abs=0.01)
    assert together["global_step"] == NUM_STEPS[name]
    assert together["loss"] < {"bert": 8.0, "cnn": 2.2}[name]  # Guessing: 8.70 and 2.30.


@pytest.mark.parametrize("name", ["bert", "cnn"])
def test_a_program_to_copy_is_short(name: str) -> None:
    lines = (EXAMPLES / name / "minimal.py").read_text().splitlines()
    assert len(lines) <= 200
