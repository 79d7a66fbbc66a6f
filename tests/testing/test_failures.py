"""Workers that fail, end or hang: what the test is told, and that all the others stop."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfdist.cluster import parse_tf_config
from tfdist.launch.failures.first_failure import WorkerEnd
from tfdist.launch.functions.calls import Outcome, exception_of
from tfdist.testing import (
    FakeCluster,
    WorkerFailedError,
    WorkerTimeoutError,
    WorkerTracebackError,
)
from tfdist.testing.failures import cause_of, failure_text
from tfdist.testing.server_process import ServerProcess


class OwnError(Exception):
    pass


def own_index() -> int:
    return parse_tf_config(os.environ["TF_CONFIG"])[1].index


def fail_in_worker_1(folder: Path, fail: Callable[[], None]) -> None:
    """Fails in worker 1 once all workers run; the others would sleep on."""
    (folder / str(os.getpid())).touch()
    print(f"worker {own_index()} is here")
    while len(list(folder.iterdir())) < 2:
        time.sleep(0.005)
    if own_index() == 1:
        fail()
    time.sleep(600)


def test_an_exception_comes_with_its_worker_traceback_and_output(
    fake_cluster: FakeCluster, tmp_path: Path, all_end_of: Callable[[int], bool]
) -> None:
    def fail() -> None:
        raise ValueError("17 is too many")

    with pytest.raises(WorkerFailedError) as caught:
        fake_cluster.run(fail_in_worker_1, tmp_path, fail)
    message = str(caught.value)
    assert message.startswith("worker 1 of 2 failed first, after ")
    assert " s: ValueError: 17 is too many\nWorker 0 was then stopped.\n" in message
    assert 'raise ValueError("17 is too many")' in message
    assert message.endswith("what worker 1 wrote:\nworker 1 is here")
    assert "tfdist/testing" not in message
    assert caught.value.worker == 1
    assert caught.value.exit_code is None
    assert caught.value.output == ("worker 0 is here\n", "worker 1 is here\n")
    assert isinstance(caught.value.__cause__, ValueError)
    assert all_end_of(2)


def test_an_exception_of_the_tests_own_class_is_the_cause(fake_cluster: FakeCluster) -> None:
    def fail() -> None:
        raise OwnError("mine")

    with pytest.raises(WorkerFailedError, match="OwnError: mine") as caught:
        fake_cluster.run(fail, engine="none")
    assert isinstance(caught.value.__cause__, OwnError)


def test_an_exception_that_cannot_travel_is_the_cause_as_text(fake_cluster: FakeCluster) -> None:
    def fail() -> None:
        raise OwnError(threading.Lock())

    with pytest.raises(WorkerFailedError, match="OwnError: <unlocked") as caught:
        fake_cluster.run(fail, engine="none")
    assert isinstance(caught.value.__cause__, WorkerTracebackError)
    assert "raise OwnError(threading.Lock())" in str(caught.value.__cause__)


class NeedsTwoError(Exception):
    """An exception that can be pickled, and not be unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def test_an_exception_that_cannot_be_unpickled_is_the_cause_as_text() -> None:
    outcome = Outcome.of_error(NeedsTwoError(1, 2))
    assert outcome.payload is not None
    cause = exception_of(outcome)
    assert isinstance(cause, WorkerTracebackError)
    assert "NeedsTwoError: 1 and 2" in str(cause)


def test_an_error_of_tensorflow_does_not_import_it_into_the_test(
    fake_cluster: FakeCluster,
) -> None:
    def fail() -> None:
        import tensorflow as tf

        raise tf.errors.UnavailableError(None, None, "gone")

    had_tensorflow = "tensorflow" in sys.modules
    with pytest.raises(WorkerFailedError, match="UnavailableError: gone"):
        fake_cluster.run(fail, engine="none")
    assert ("tensorflow" in sys.modules) == had_tensorflow


@pytest.mark.parametrize(
    ("number", "how", "exit_code", "signal_name"),
    [(0, "with exit code 3", 3, None), (signal.SIGKILL, "killed by SIGKILL", -9, "SIGKILL")],
)
def test_a_worker_that_ends_without_a_word_is_named_with_its_exit_code_or_signal(
    fake_cluster: FakeCluster,
    tmp_path: Path,
    all_end_of: Callable[[int], bool],
    number: int,
    how: str,
    exit_code: int,
    signal_name: str | None,
) -> None:
    def end() -> None:
        if number:
            os.kill(os.getpid(), number)
        os._exit(3)

    with pytest.raises(WorkerFailedError, match=f"worker 1 of 2 failed first, .*{how}") as caught:
        fake_cluster.run(fail_in_worker_1, tmp_path, end)
    assert "worker 1 is here" in str(caught.value)
    assert (caught.value.worker, caught.value.exit_code) == (1, exit_code)
    assert caught.value.signal_name == signal_name
    assert all_end_of(2)


def test_sys_exit_in_a_call_is_a_failure(fake_cluster: FakeCluster) -> None:
    with pytest.raises(WorkerFailedError, match="SystemExit: 0"):
        fake_cluster.run(sys.exit, 0, engine="none")


def test_the_cause_of_counts_not_the_ones_that_follow(fake_cluster: FakeCluster) -> None:
    def fail_in_turn() -> None:
        # Worker 0 fails because worker 2 did, and is looked at first.
        import tensorflow as tf

        cluster, task = parse_tf_config(os.environ["TF_CONFIG"])
        addresses = {job: list(addresses) for job, addresses in cluster.jobs.items()}
        server = tf.distribute.Server(addresses, job_name="worker", task_index=task.index)
        if task.index == 2:
            with tf.compat.v1.Session(server.target), tf.Graph().as_default():
                raise ValueError("the cause")
        with tf.Graph().as_default(), tf.device("/job:worker/task:2"):
            value = tf.constant(1.0) + tf.compat.v1.placeholder_with_default(1.0, [])
            while True:
                with tf.compat.v1.Session(server.target) as session:
                    session.run(value)

    with pytest.raises(WorkerFailedError, match=r"worker 2 of 3 .*ValueError: the cause"):
        fake_cluster.run(fail_in_turn, num_workers=3)


def test_the_earliest_of_several_failures_is_the_first() -> None:
    failures = [
        WorkerEnd(worker=0, time_s=7.0, error="UnavailableError: gone"),
        WorkerEnd(worker=1, time_s=6.9, exit_code=-9),
    ]
    first = cause_of(failures)
    assert first is failures[1]
    text = failure_text(first, start_s=4.0, num_workers=3, stopped=[0, 2], output="")
    assert text == (
        "worker 1 of 3 failed first, after 2.9 s, killed by SIGKILL\n"
        "Workers 0 and 2 were then stopped.\n\nworker 1 wrote nothing."
    )


def test_only_the_last_lines_of_a_long_output_are_shown(fake_cluster: FakeCluster) -> None:
    def fail() -> None:
        for number in range(1000):
            print(f"line {number}")
        raise ValueError

    with pytest.raises(WorkerFailedError) as caught:
        fake_cluster.run(fail, engine="none")
    assert "the last 30 of 1000 lines worker 0 wrote:\nline 970\n" in str(caught.value)
    assert "line 0\n" in caught.value.output[0]


def test_a_time_limit_names_the_late_worker_and_shows_where_it_was(
    fake_cluster: FakeCluster, tmp_path: Path, all_end_of: Callable[[int], bool]
) -> None:
    def hang_in_worker_1() -> None:
        (tmp_path / str(os.getpid())).touch()
        print(f"worker {own_index()} is here")
        # As a process inside TensorFlow's strategy, which TERM does not end.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if own_index() == 1:
            child = subprocess.Popen(["sleep", "600"])
            (tmp_path / str(child.pid)).touch()
            wait_for_nobody()

    def wait_for_nobody() -> None:
        time.sleep(600)

    with pytest.raises(WorkerTimeoutError) as caught:
        fake_cluster.run(hang_in_worker_1, timeout_s=2.5)
    message = str(caught.value)
    assert message.startswith("worker 1 of 2 has not finished within the limit of 2.5 s")
    assert "what worker 1 wrote:\nworker 1 is here" in message
    assert "in wait_for_nobody" in message
    assert "worker 0 wrote" not in message
    assert caught.value.late_workers == (1,)
    assert all_end_of(3)


def test_an_interrupt_stops_all_workers(
    fake_cluster: FakeCluster, tmp_path: Path, all_end_of: Callable[[int], bool]
) -> None:
    test_pid = os.getpid()
    with pytest.raises(KeyboardInterrupt):
        fake_cluster.run(fail_in_worker_1, tmp_path, lambda: os.kill(test_pid, signal.SIGINT))
    assert all_end_of(2)


def test_a_result_that_cannot_be_sent_is_refused(fake_cluster: FakeCluster) -> None:
    with pytest.raises(WorkerFailedError, match="the result, of type lock, cannot be sent"):
        fake_cluster.run(lambda: threading.Lock(), engine="none")


def test_an_argument_that_cannot_be_sent_is_refused(fake_cluster: FakeCluster) -> None:
    with pytest.raises(TypeError, match=r"the call cannot be sent to a worker: .*lock"):
        fake_cluster.run(print, threading.Lock(), engine="none")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "nccl"}, "engine is 'nccl'; it must be one of grpc, horovod"),
        ({"engine": "none", "num_workers": 2}, "num_workers is 2 with engine 'none'"),
        ({"num_workers": 0}, "num_workers is 0; it must be at least 1"),
    ],
)
def test_a_wrong_engine_or_number_of_workers_is_refused(
    fake_cluster: FakeCluster, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fake_cluster.run(print, **options)


def test_a_run_after_the_server_was_killed_gets_a_new_server() -> None:
    kill = "import os, time; os.kill(os.getppid(), 9); time.sleep(600)"
    server = ServerProcess()  # Not the session's, which has imported TensorFlow.
    try:
        cluster = FakeCluster(server)
        with pytest.raises(RuntimeError, match="the fork server ended unexpectedly"):
            cluster.run_script(["-S", "-c", kill], engine="none")
        [worker] = cluster.run_script(["-S", "-c", "print(1)"], engine="none")
        assert worker.stdout == "1\n"
    finally:
        server.close()
