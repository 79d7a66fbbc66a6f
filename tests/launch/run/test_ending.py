"""The end of a start as the user reads it: the failure, and the lines about a restart or a stop."""

import signal
from collections.abc import Callable
from typing import Any

import pytest

from tfdist.launch.failures.failure import Failure
from tfdist.launch.failures.first_failure import Verdict
from tfdist.launch.options.hosts import Host
from tfdist.launch.options.run_options import RunOptions
from tfdist.launch.run.ending import (
    Result,
    failure_of,
    restart_limits,
    restart_text,
    stopped_text,
)
from tfdist.launch.run.stop_request import StopRequest
from tfdist.launch.screen.failure_box import Aftermath
from tfdist.launch.workers.worker_state import WorkerState

MakeWorker = Callable[..., WorkerState]


def options(**facts: Any) -> RunOptions:
    return RunOptions(command=("true",), **facts)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, True),
        ({"hosts": (Host(name="a"), Host(name="b"))}, False),
        ({"nodes": ("a:1", "b:1"), "node_rank": 0, "num_instances": 2}, False),  # the user's
    ],
)
def test_only_ports_that_the_launcher_chose_are_replaced(
    facts: dict[str, Any], expected: bool
) -> None:
    assert restart_limits(options(**facts)).can_change_ports == expected


def failure(worker: WorkerState, verdict: Verdict, log: list[str], **facts: Any) -> Failure:
    return failure_of(
        verdict,
        [worker],
        options(**facts),
        log_tail=log,
        mpirun_lines=("mpirun: node b is gone",),
        started_s=100.0,
        now_s=160.0,
    )


def test_a_failure_has_the_workers_time_error_and_signal(make_worker: MakeWorker) -> None:
    worker = make_worker(code=-9, ended_s=130.0)
    verdict = Verdict(exit_code=137, worker=worker.plan.index, kind="signal")
    found = failure(worker, verdict, ["Traceback (most recent call last):", "KeyError: 1"])
    assert (found.index, found.code, found.kind) == (worker.plan.index, 9, "signal")
    assert found.after_s == 30.0
    assert found.exception == "KeyError: 1"
    assert found.mpirun_lines == ()
    silent = make_worker(lost_s=140.0)
    verdict = Verdict(exit_code=124, worker=silent.plan.index, kind="silent", detail="why")
    found = failure(silent, verdict, [])
    assert (found.code, found.after_s, found.detail) == (None, 40.0, "why")


def test_the_reason_is_looked_up_in_mpirun_and_at_the_other_launchers(
    make_worker: MakeWorker,
) -> None:
    worker = make_worker(code=200, ended_s=130.0)
    verdict = Verdict(exit_code=200, worker=worker.plan.index)
    found = failure(worker, verdict, ["without an error"], engine="horovod")
    assert found.mpirun_lines == ("mpirun: node b is gone",)
    nodes = {"nodes": ("a:1", "b:1"), "node_rank": 0, "num_instances": 2}
    found = failure(worker, verdict, [], **nodes)
    assert "look at what the launchers of the other nodes say" in found.detail


def test_the_line_about_a_restart_has_its_number_and_its_cause(
    failed: Callable[..., Failure],
) -> None:
    result = Result(verdict=Verdict(exit_code=3, worker=1), failure=failed(code=3))
    assert restart_text(result, 1, options(max_restarts=3)) == (
        "restart 1 of 3: worker 1 failed (exit code 3); all workers start again from the last "
        "checkpoint"
    )
    with_snapshots = options(max_restarts=3, snapshot_steps=5)
    assert restart_text(result, 2, with_snapshots).endswith("newest snapshot or checkpoint")
    result = Result(verdict=Verdict(exit_code=1), start_error="c did not start")
    assert restart_text(result, 2, options(max_restarts=3)) == "restart 2 of 3: c did not start"


def test_the_line_about_a_stop_has_the_workers_that_were_killed() -> None:
    stop = StopRequest(number=signal.SIGTERM, why=" (a file is there)")
    result = Result(verdict=Verdict(exit_code=143))
    begin = "stopped by SIGTERM (a file is there); "
    assert stopped_text(result, stop, 1.4, 25.0) == (
        f"{begin}all workers have left after 1.4 of 25 s"
    )
    result = Result(verdict=Verdict(exit_code=143), aftermath=Aftermath(killed=["worker 0"]))
    assert stopped_text(result, stop, 25.5, 25.0) == (
        f"{begin}worker 0 had to be killed after 25.5 of 25 s; steps after the last checkpoint "
        "are lost"
    )
