"""The example `mnist/train.py`, alone and on several workers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = str(Path(__file__).parents[2] / "examples" / "mnist" / "train.py")
GLOBAL_BATCH = 96
NUM_STEPS = 130
OPTIONS = ["--num-steps", str(NUM_STEPS), "--learning-rate", "0.004"]


def _accuracy(printed: list[Any]) -> float:
    metrics = json.loads(printed[0].stdout.splitlines()[-1])
    assert metrics["global_step"] == NUM_STEPS
    assert [worker.stdout for worker in printed[1:]] == [""] * (len(printed) - 1)
    return metrics["accuracy"]


@pytest.fixture
def reached_alone(run_program: Callable[..., list[Any]], once: dict[str, float]) -> float:
    """The accuracy of one worker in float32."""
    if not once:
        alone = run_program([SCRIPT, "--batch-size", str(GLOBAL_BATCH), *OPTIONS], engine="none")
        once["accuracy"] = _accuracy(alone)
    return once["accuracy"]


@pytest.fixture(scope="module")
def once() -> dict[str, float]:
    """The accuracy that `reached_alone` has found."""
    return {}


@pytest.mark.parametrize(("engine", "num_workers"), [("grpc", 2), ("horovod", 3)])
def test_workers_together_reach_94_percent_and_what_one_reaches_with_their_global_batch(
    run_program: Callable[..., list[Any]], reached_alone: float, engine: str, num_workers: int
) -> None:
    batch_size = str(GLOBAL_BATCH // num_workers)
    arguments = [SCRIPT, "--strategy", engine, "--batch-size", batch_size, *OPTIONS]
    accuracy = _accuracy(run_program(arguments, engine=engine, num_workers=num_workers))
    assert accuracy >= 0.94
    assert abs(accuracy - reached_alone) <= 0.01


def test_half_precision_is_within_a_point_of_float32(
    run_program: Callable[..., list[Any]], reached_alone: float
) -> None:
    options = ["--batch-size", str(GLOBAL_BATCH // 2), "--precision", "mixed_bfloat16", *OPTIONS]
    run = run_program([SCRIPT, "--strategy", "grpc", *options], engine="grpc", num_workers=2)
    assert abs(_accuracy(run) - reached_alone) <= 0.01


def test_the_full_set_is_refused_in_one_line_where_it_cannot_be_downloaded(
    fake_cluster: Any, tmp_path: Path
) -> None:
    [worker] = fake_cluster.run_script(
        [SCRIPT, "--strategy", "none", "--data", "full"],
        engine="none",
        env={
            "KERAS_HOME": str(tmp_path),  # No earlier download.
            "https_proxy": "http://127.0.0.1:9",  # No process listens there: no download now.
        },
        check=False,
    )
    assert worker.returncode == 1
    assert "--data full cannot be downloaded" in worker.stderr.splitlines()[-1]
    assert "Use --data sample" in worker.stderr.splitlines()[-1]
