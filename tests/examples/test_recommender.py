"""The programs in `recommender/`: divided tables reach what one process reaches."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "recommender"


def _metrics(printed: list[Any]) -> dict[str, float]:
    metrics: dict[str, float] = json.loads(printed[0].stdout.splitlines()[-1])
    assert all("{" not in worker.stdout for worker in printed[1:])
    return metrics


# A program over each engine. tests/conformance and tests/multi_worker compare numbers over both.


@pytest.mark.processes
def test_two_towers_on_two_workers_over_horovod_reach_what_one_process_reaches(
    run_program: Callable[..., list[Any]],
) -> None:
    arguments = [str(EXAMPLES / "two_towers.py"), "--epochs", "1"]
    alone = _metrics(run_program(arguments, engine="none"))
    printed = run_program(arguments, engine="horovod", num_workers=2)
    assert _metrics(printed) == pytest.approx(alone, abs=1e-4)
    assert alone["auc"] > 0.7
    assert "users/embeddings [5000, 16] is divided between 2 workers" in printed[0].stderr


@pytest.mark.processes
def test_wide_and_deep_on_two_workers_finds_what_users_like(
    run_program: Callable[..., list[Any]], tmp_path: Path
) -> None:
    model_dir = str(tmp_path / "model")
    arguments = [str(EXAMPLES / "wide_deep.py"), "--steps", "300", "--model-dir", model_dir]
    printed = run_program(arguments, engine="grpc", num_workers=2)
    assert _metrics(printed)["auc"] > 0.7
    assert printed[0].stderr.count("is divided between 2 workers") >= 2
