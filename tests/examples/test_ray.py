"""The examples of `ray/`: an Estimator and `fit` under Ray's trainer, through TF_CONFIG alone."""

import json
import os
import re
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tfdist.testing.run import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples" / "ray"


@pytest.fixture
def ray_environment() -> Iterator[dict[str, str]]:
    """One in which Ray stays on this machine, and nothing of it is left at the end."""
    mark = uuid.uuid4().hex
    # Not tmp_path: a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        yield {
            **os.environ,
            "HOME": folder,  # Ray writes a token there.
            "RAY_TMPDIR": folder,
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # It listens on loopback only.
            "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # One process less.
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TFDIST_TEST_MARK": mark,
        }
        if not wait_until(lambda: not _marked(mark), 30):
            left = _marked(mark)
            psutil.wait_procs([process for process in left if _kill(process)], timeout=10)
            pytest.fail(f"Ray left processes running: {left}")


def test_two_workers_of_a_ray_cluster_train_together(
    ray_environment: dict[str, str], tmp_path: Path
) -> None:
    metrics, said = _run("train.py", ray_environment, "--num-steps=40", f"--model-dir={tmp_path}")
    assert metrics["global_step"] == 40
    assert metrics["accuracy"] >= 0.8
    assert re.search(r"4 gradients .* reduced over 2 workers in 1 bucket", said)
    # Both are workers of one cluster, and only one of them saved and evaluated.
    assert len(set(re.findall(r"RayTrainWorker pid=(\d+)\D.*host_call: 4 gradients", said))) == 2
    assert len(set(re.findall(r"RayTrainWorker pid=(\d+)\D.*Saving dict for global", said))) == 1
    assert (tmp_path / "model.ckpt-40.index").exists()


def test_fit_trains_on_two_workers_of_a_ray_cluster(ray_environment: dict[str, str]) -> None:
    metrics, said = _run("fit.py", ray_environment, "--epochs=1")
    assert metrics["accuracy"] >= 0.8
    # Two workers share an epoch of 4,000 rows in batches of 64, and one of them prints it.
    assert len(set(re.findall(r"RayTrainWorker pid=(\d+)", said))) == 2
    assert len(re.findall(r"RayTrainWorker pid=\d+\D.*63/63 - .* accuracy: ", said)) == 1


def _run(name: str, environment: dict[str, str], *options: str) -> tuple[dict[str, float], str]:
    """Runs an example with two workers; returns its last line, and all of its output."""
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "--num-workers", "2", *options],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 0, run.stderr[-5000:]
    return json.loads(run.stdout.splitlines()[-1]), run.stdout + run.stderr


def _marked(mark: str) -> list[psutil.Process]:
    """Returns the processes that inherited the mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TFDIST_TEST_MARK") == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def _kill(process: psutil.Process) -> bool:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True
