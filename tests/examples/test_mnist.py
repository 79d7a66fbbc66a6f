"""examples/mnist/train.py, started as a user starts it."""

import json
from pathlib import Path
from typing import Any

import pytest

SCRIPT = str(Path(__file__).parents[2] / "examples" / "mnist" / "train.py")
GLOBAL_BATCH = 96
NUM_STEPS = 130
OPTIONS = ["--num-steps", str(NUM_STEPS), "--learning-rate", "0.004"]


def _accuracy(fake_cluster: Any, engine: str, num_workers: int) -> float:
    batch = str(GLOBAL_BATCH // num_workers)
    arguments = [SCRIPT, "--strategy", engine, "--batch-size", batch, *OPTIONS]
    options = {"engine": engine, "num_workers": num_workers, "timeout_s": 240}
    if num_workers == 2:
        workers = fake_cluster.run_script(arguments, **options)
        printed = [worker.stdout for worker in workers]
    else:  # The others in processes that have TensorFlow imported already: half the time.
        printed = fake_cluster.run(_run_as_script, arguments, **options)
    metrics = json.loads(printed[0].splitlines()[-1])
    assert metrics["global_step"] == NUM_STEPS
    assert printed[1:] == [""] * (num_workers - 1)
    return metrics["accuracy"]


def _run_as_script(arguments: list[str]) -> str:
    """Runs a script in this process, and returns what it wrote to standard output."""
    import contextlib
    import io
    import runpy
    import sys

    sys.argv = arguments
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(arguments[0], run_name="__main__")
    return printed.getvalue()


@pytest.fixture(scope="module")
def reached_alone() -> dict[str, float]:
    """The accuracy of one worker, once it is known."""
    return {}


@pytest.mark.parametrize(
    ("engine", "num_workers"), [("grpc", 2), ("grpc", 3), ("horovod", 2), ("horovod", 3)]
)
def test_workers_together_reach_94_percent_and_what_one_reaches_with_their_global_batch(
    fake_cluster: Any, reached_alone: dict[str, float], engine: str, num_workers: int
) -> None:
    if "accuracy" not in reached_alone:
        reached_alone["accuracy"] = _accuracy(fake_cluster, "none", 1)
    accuracy = _accuracy(fake_cluster, engine, num_workers)
    assert accuracy >= 0.94
    assert abs(accuracy - reached_alone["accuracy"]) <= 0.01


def test_the_full_set_is_refused_in_one_line_where_it_cannot_be_downloaded(
    fake_cluster: Any, tmp_path: Path
) -> None:
    [worker] = fake_cluster.run_script(
        [SCRIPT, "--strategy", "none", "--data", "full"],
        engine="none",
        env={
            "KERAS_HOME": str(tmp_path),  # No earlier download.
            "https_proxy": "http://127.0.0.1:9",  # Nobody listens there: no download now.
        },
        check=False,
    )
    assert worker.returncode == 1
    assert "--data full cannot be downloaded" in worker.stderr.splitlines()[-1]
    assert "Use --data sample" in worker.stderr.splitlines()[-1]
