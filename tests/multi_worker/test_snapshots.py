"""Snapshots of two workers: a run that is killed goes on from the newest one of any host."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras_snapshot_training
import numpy as np
import pytest
import snapshot_training
from forking_launcher import FORKING_LAUNCHER

from tfdist.process import snapshot_folders
from tfdist.testing import WorkerFailedError

pytestmark = pytest.mark.processes

# How many steps are made again is said if the launcher had seen a later step by then.
GOING_ON = r"Going on from the snapshot of step {}( \(\d+ steps? again\))?\."


def _train(
    run: str, folder: str, kill: tuple[int, int] | None = None, own_host: bool = True
) -> int:
    import os

    import snapshot_training

    os.environ.update(TFDIST_RUN=run, TFDIST_SNAPSHOT_STEPS="5")
    return snapshot_training.train(f"{folder}/model", kill, own_host=own_host)


def _fit(run: str, folder: str) -> None:
    import os

    import keras_snapshot_training

    os.environ.update(TFDIST_RUN=run, TFDIST_SNAPSHOT_STEPS="5")
    keras_snapshot_training.train(folder)


def _assert_equal(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> None:
    assert one.keys() == two.keys() and one["global_step"] == snapshot_training.STEPS
    assert "batch_normalization/moving_mean" in one and "dense/kernel/Momentum" in one
    for name, value in one.items():
        np.testing.assert_array_equal(value, two[name], err_msg=name)


@pytest.fixture
def run() -> Iterator[str]:
    """The name of a run that this process launches."""
    run = snapshot_folders.new_run()
    yield run
    left = snapshot_folders.folder_of_run(run).exists()
    snapshot_folders.remove_run(run)
    assert not left, "snapshots are left"


@pytest.fixture
def undisturbed(
    fake_cluster: Any, tmp_path_factory: Any, made_before: dict[str, Path], run: str
) -> Path:
    """The folder of an undisturbed training; two workers add in one order over either engine."""
    if not made_before:
        made_before["folder"] = tmp_path_factory.mktemp("undisturbed")
        fake_cluster.run(_train, run, str(made_before["folder"]))
    return made_before["folder"]


def _started_again(fake_cluster: Any, *program: str, env: dict[str, str] | None = None) -> str:
    """Runs a program that is killed under the launcher; returns what that has said."""
    before = set(snapshot_folders.MEMORY.iterdir())
    options = ("--num-instances", "2", "--max-restarts", "2", "--snapshot-steps", "5")
    words = [FORKING_LAUNCHER, "run", *options, "--", sys.executable, *program]
    [ended] = fake_cluster.run_script(words, engine="none", forked=True, check=False, env=env)
    assert ended.returncode == 0, ended.stderr
    assert set(snapshot_folders.MEMORY.iterdir()) <= before
    return str(ended.stderr)


def test_the_snapshot_of_another_host_is_sent_where_that_of_worker_0_is_lost(
    fake_cluster: Any, undisturbed: Path, saved: Any, run: str, tmp_path: Path
) -> None:
    # A `fit` over gRPC, below, gets one as well.
    with pytest.raises(WorkerFailedError, match="SIGKILL"):
        fake_cluster.run(_train, run, str(tmp_path), (0, 13), engine="horovod")
    hosts = list(snapshot_folders.folder_of_run(run).iterdir())
    assert len(hosts) == 2
    for host in hosts:
        if host.name == snapshot_folders.name_of_host("host-0"):
            snapshot_folders.remove_folder(host / snapshot_folders.name_for(f"{tmp_path}/model"))
    resumed = fake_cluster.run(_train, run, str(tmp_path), engine="horovod")
    assert resumed == [10, 10]
    _assert_equal(saved(tmp_path), saved(undisturbed))


def test_a_run_that_is_killed_twice_ends_with_the_weights_of_an_undisturbed_one(
    fake_cluster: Any,
    undisturbed: Path,
    saved: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    program = (snapshot_training.__file__, str(tmp_path / "model"), "1:13", "0:22")
    said = _started_again(fake_cluster, *program, env={"TF_USE_LEGACY_KERAS": "1"})
    assert "start again from the newest snapshot or checkpoint" in said
    assert re.search(GOING_ON.format("10"), said)
    assert re.search(GOING_ON.format("20"), said)
    _assert_equal(saved(tmp_path), saved(undisturbed))


def test_a_fit_that_is_killed_goes_on_from_the_newest_snapshot_of_any_host(
    fake_cluster: Any, tmp_path: Path, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("undisturbed", "killed"):
        (tmp_path / name).mkdir()
    fake_cluster.run(_fit, run, str(tmp_path / "undisturbed"))
    program = (keras_snapshot_training.__file__, str(tmp_path / "killed"), "0:28")
    said = _started_again(fake_cluster, *program)
    assert re.search(GOING_ON.format("25 of worker 1's host"), said)
    one, two = (np.load(tmp_path / name / "weights.npz") for name in ("undisturbed", "killed"))
    assert one.keys() == two.keys() and len(one) > 20
    for name, value in one.items():
        np.testing.assert_array_equal(value, two[name], err_msg=name)
