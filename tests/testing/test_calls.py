"""Functions in real workers: what they get, and how their results come back."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tfdist.cluster import parse_tf_config
from tfdist.testing import FakeCluster


def own_task() -> tuple[str, int, int]:
    cluster, task = parse_tf_config(os.environ["TF_CONFIG"])
    return task.type, task.index, cluster.num_workers


def own_index() -> int:
    return own_task()[1]


@dataclass
class Point:
    x: int


def test_every_worker_finds_itself_in_its_tf_config_and_results_come_in_worker_order(
    fake_cluster: FakeCluster,
) -> None:
    assert fake_cluster.run(own_task, num_workers=3) == [("worker", i, 3) for i in range(3)]


def test_arguments_and_what_a_function_encloses_reach_every_worker(
    fake_cluster: FakeCluster,
) -> None:
    factor = 10
    join = lambda first, *, second: (first, second, factor * own_index())  # noqa: E731
    assert fake_cluster.run(join, 5, second=6) == [(5, 6, 0), (5, 6, 10)]


def test_an_object_of_the_tests_own_class_comes_back_as_that_class(
    fake_cluster: FakeCluster,
) -> None:
    [point] = fake_cluster.run(lambda: Point(x=3), engine="none")
    assert isinstance(point, Point)
    assert point == Point(x=3)


def test_every_worker_of_every_run_is_a_process_of_its_own(fake_cluster: FakeCluster) -> None:
    pids = fake_cluster.run(os.getpid) + fake_cluster.run(os.getpid)
    assert len({os.getpid(), *pids}) == 5


def test_workers_do_not_share_random_numbers(fake_cluster: FakeCluster) -> None:
    def draw() -> tuple[float, float, float]:
        import numpy as np
        import tensorflow as tf

        return random.random(), float(np.random.rand()), float(tf.random.uniform([]))

    first, second = fake_cluster.run(draw)
    for one, other in zip(first, second, strict=True):
        assert one != other


def test_a_run_has_its_own_variables_over_those_of_the_test(
    fake_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLOUR", "red")
    monkeypatch.setenv("SHAPE", "round")

    def look() -> tuple[str, str]:
        return os.environ["COLOUR"], os.environ["SHAPE"]

    assert fake_cluster.run(look, engine="none", env={"COLOUR": "blue"}) == [("blue", "round")]
    assert "SIZE" not in fake_cluster.run(lambda: dict(os.environ), engine="none")[0]


def test_a_worker_without_engine_is_part_of_nothing(
    fake_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", "{}")
    names = ("OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "HOROVOD_RANK", "HOROVOD_CONTROLLER")
    others = ("PMI_SIZE", "PMIX_RANK", "MV2_COMM_WORLD_SIZE")
    for name in (*names, *others):
        monkeypatch.setenv(name, "1")
    [found] = fake_cluster.run(lambda: sorted(os.environ), engine="none")
    assert not {"TF_CONFIG", *names, *others} & set(found)


def test_a_worker_works_in_the_folder_of_the_test(
    fake_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fake_cluster.run(os.getcwd, engine="none") == [str(tmp_path)]


def test_a_worker_imports_what_the_test_can_import(
    fake_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "written_just_now.py").write_text("ANSWER = 42\n")
    monkeypatch.syspath_prepend(tmp_path)

    def import_it() -> int:
        import written_just_now  # type: ignore[import-not-found]

        return int(written_just_now.ANSWER)

    assert fake_cluster.run(import_it, engine="none") == [42]


def test_multi_worker_mirrored_strategy_runs_in_workers(fake_cluster: FakeCluster) -> None:
    def add() -> float:
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        one = tf.constant(1.0 + own_index())

        @tf.function
        def reduce() -> Any:
            return tf.distribute.get_replica_context().all_reduce("SUM", one)

        return float(strategy.run(reduce))

    assert fake_cluster.run(add) == [3.0, 3.0]


def test_a_finished_worker_lives_until_all_have_finished(
    fake_cluster: FakeCluster, tmp_path: Path
) -> None:
    def look_at_the_other() -> bool:
        import time

        if own_index() == 0:
            (tmp_path / "pid").write_text(str(os.getpid()))
            return True
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.01)
        time.sleep(0.2)  # long enough for a process to end that has nothing left to do
        os.kill(int((tmp_path / "pid").read_text()), 0)
        return True

    assert fake_cluster.run(look_at_the_other) == [True, True]


def test_what_workers_wrote_can_be_read_after_the_run(fake_cluster: FakeCluster) -> None:
    def write() -> None:
        print(f"output of {own_index()}")
        print(f"error of {own_index()}", file=sys.stderr)

    fake_cluster.run(write)
    assert fake_cluster.outputs == ("output of 0\nerror of 0\n", "output of 1\nerror of 1\n")


def test_nothing_is_left_of_a_run(fake_cluster: FakeCluster, all_end: Callable[..., bool]) -> None:
    def start_another() -> tuple[int, int, str]:
        import tempfile

        child = subprocess.Popen(["sleep", "600"])
        return os.getpid(), child.pid, tempfile.mkdtemp()

    [(worker, child, folder)] = fake_cluster.run(start_another, engine="none")
    assert all_end(worker, child)
    fake_cluster.close()
    assert not Path(folder).exists()


def test_a_worker_that_does_not_exit_is_stopped_and_named(
    fake_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, all_end: Callable[..., bool]
) -> None:
    monkeypatch.setattr("tfdist.testing.calls._EXIT_LIMIT_S", 0.3)

    def leave_a_thread() -> int:
        import threading

        threading.Thread(target=threading.Event().wait).start()
        return os.getpid()

    with pytest.warns(UserWarning, match=r"worker 0 did not exit within 0.3 s after"):
        [pid] = fake_cluster.run(leave_a_thread, engine="none")
    assert all_end(pid)


def test_the_test_process_does_not_import_tensorflow() -> None:
    code = (
        "import sys, tfdist.testing, tfdist.testing.pytest_plugin\n"
        "from tfdist.testing.server_process import ServerProcess\n"
        "server = ServerProcess()\n"
        "cluster = tfdist.testing.FakeCluster(server)\n"
        "print(cluster.run_script(['-c', 'print(1)'], engine='none')[0].stdout)\n"
        "cluster.close()\n"
        "server.close()\n"
        "sys.exit('tensorflow' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_loading_the_plugin_imports_little_else_of_tfdist() -> None:
    code = "import sys, tfdist.testing.pytest_plugin; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True
    )
    imported = {name for name in done.stdout.split() if name.startswith("tfdist")}
    assert imported - {"tfdist_horovod_keras"} == {  # which Python's start may read, with Horovod
        *("tfdist", "tfdist.process", "tfdist.process.horovod_keras", "tfdist.process.open_mpi"),
        *("tfdist.testing", "tfdist.testing.pytest_plugin"),
    }
