"""Workers that mpirun starts."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tfdist.testing import (
    EngineMissingError,
    FakeCluster,
    WorkerFailedError,
    WorkerTimeoutError,
    engine_problem,
)

needs_horovod = pytest.mark.skipif(
    engine_problem("horovod") is not None, reason=str(engine_problem("horovod"))
)


def sum_over_ranks() -> tuple[float, int, int]:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        total = session.run(hvd.allreduce(tf.constant(hvd.rank() + 1.0), op=hvd.Sum))
    return float(total), hvd.rank(), hvd.size()


@needs_horovod
@pytest.mark.parametrize("num_workers", [2, 3])
def test_ranks_reduce_with_each_other(fake_cluster: FakeCluster, num_workers: int) -> None:
    total = num_workers * (num_workers + 1) / 2
    expected = [(total, rank, num_workers) for rank in range(num_workers)]
    assert fake_cluster.run(sum_over_ranks, engine="horovod", num_workers=num_workers) == expected


@needs_horovod
def test_variables_of_a_run_reach_the_ranks(fake_cluster: FakeCluster) -> None:
    def look() -> tuple[str, str | None]:
        return os.environ["COLOUR"], os.environ.get("TF_CONFIG")

    results = fake_cluster.run(look, engine="horovod", env={"COLOUR": "blue"})
    assert results == [("blue", None), ("blue", None)]


@needs_horovod
def test_shared_memory_of_ranks_lies_where_it_is_removed_even_if_they_are_killed(
    fake_cluster: FakeCluster,
) -> None:
    def look() -> bool:
        sum_over_ranks()
        return "/dev/shm/" in Path("/proc/self/maps").read_text()

    assert fake_cluster.run(look, engine="horovod") == [False, False]


@needs_horovod
@pytest.mark.parametrize(
    ("number", "text"), [(0, "ValueError: no more"), (signal.SIGKILL, "killed by SIGKILL")]
)
def test_a_failing_rank_is_named_and_all_stop(
    fake_cluster: FakeCluster,
    tmp_path: Path,
    all_end_of: Callable[[int], bool],
    number: int,
    text: str,
) -> None:
    def fail_in_rank_1() -> None:
        _, rank, _ = sum_over_ranks()
        (tmp_path / str(os.getpid())).touch()
        sum_over_ranks()
        if rank == 1 and number:
            os.kill(os.getpid(), number)
        if rank == 1:
            raise ValueError("no more")
        time.sleep(600)

    with pytest.raises(WorkerFailedError, match=f"worker 1 of 2 failed first, .*{text}"):
        fake_cluster.run(fail_in_rank_1, engine="horovod")
    assert all_end_of(2)
    assert fake_cluster.run(sum_over_ranks, engine="horovod")[0][0] == 3.0


@needs_horovod
def test_a_rank_that_hangs_in_a_reduction_is_stopped_at_the_time_limit(
    fake_cluster: FakeCluster, tmp_path: Path, all_end_of: Callable[[int], bool]
) -> None:
    def only_rank_0_reduces_again() -> None:
        (tmp_path / str(os.getpid())).touch()
        if sum_over_ranks()[1] == 0:
            sum_over_ranks()

    with pytest.raises(WorkerTimeoutError, match="worker 0 of 2 has not finished") as caught:
        fake_cluster.run(only_rank_0_reduces_again, engine="horovod", timeout_s=5.0)
    assert "in sum_over_ranks" in str(caught.value)
    assert all_end_of(2)


@needs_horovod
def test_an_mpirun_that_fails_is_quoted(fake_cluster: FakeCluster) -> None:
    env = {"OMPI_MCA_rmaps": "nonsense", "PRTE_MCA_rmaps": "nonsense"}
    with pytest.raises(WorkerFailedError, match=r"worker 0 of 2 did not start[\s\S]*rmaps"):
        fake_cluster.run(os.getpid, engine="horovod", env=env)


def test_a_missing_mpirun_is_said_before_anything_starts(
    fake_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineMissingError, match="engine 'horovod' needs Horovod and mpirun: "):
        fake_cluster.run_script(["-c", "pass"], engine="horovod")
