"""The examples in `keras/`, alone and on two workers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "keras"


def _metrics(printed: list[Any]) -> dict[str, float]:
    metrics: dict[str, float] = json.loads(printed[0].stdout.splitlines()[-1])
    assert all("{" not in worker.stdout for worker in printed[1:])
    return metrics


@pytest.mark.parametrize(
    ("program", "engine"), [("mnist.py", "grpc"), ("mnist.py", "horovod"), ("own_loop.py", "grpc")]
)
def test_two_workers_reach_what_one_process_reaches(
    run_program: Callable[..., list[Any]], alone: dict[str, Any], program: str, engine: str
) -> None:
    arguments = [str(EXAMPLES / program), *(["--epochs", "1"] if program == "mnist.py" else [])]
    if program not in alone:
        alone[program] = _metrics(run_program(arguments, engine="none"))
    together = _metrics(run_program(arguments, engine=engine, num_workers=2))
    assert together == pytest.approx(alone[program], abs=2e-3)
    assert together.get("accuracy", 1.0) > 0.85


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """The metrics that each program printed in one process."""
    return {}
