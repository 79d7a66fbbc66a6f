"""The end of a training: in its middle, after its last step, or never, with a stopped worker."""

import signal
from pathlib import Path
from typing import Any

import pytest

START_LIMIT_S = 150.0
END_LIMIT_S = 60.0

PROGRAM = str(Path(__file__).parents[1] / "programs" / "ending_training.py")


@pytest.mark.parametrize(
    ("engine", "way", "code"),
    [
        ("grpc", "0", 0),
        ("grpc", "error", 1),
        ("grpc", "begin", 1),
        ("horovod", "error", 1),
    ],
)
def test_a_worker_that_ends_early_ends_first_and_the_other_blames_it(
    fake_cluster: Any, engine: str, way: str, code: int
) -> None:
    # By default mpirun stops the survivor, often before that has said why it ends.
    env = {"OMPI_MCA_orte_abort_on_non_zero_status": "0"}
    options = {"engine": engine, "forked": True, "env": env}
    with fake_cluster.start_script([PROGRAM, engine, way], **options) as script:
        survivor, leaver = script.workers
        leaver.wait_for_text("^ends$", START_LIMIT_S)
        assert leaver.wait(END_LIMIT_S) == code
        assert survivor.wait(END_LIMIT_S) == 200
        lines = survivor.stderr().splitlines()
        ends = [worker.ended() for worker in script.workers]
    assert ends[1].time_s <= ends[0].time_s
    (line,) = (line for line in lines if line.startswith("WorkerLostError: "))
    assert "Traceback (most recent call last):" not in lines
    if engine == "grpc":
        assert line.startswith("WorkerLostError: Lost worker 1 (127.0.0.1:")
    else:  # Horovod's error does not name the worker; the connections do.
        assert "Lost worker 1 (" in line
        assert "its training has failed: ArithmeticError: of the hook." in line
    if way in ("error", "begin"):
        assert leaver.stderr().rstrip().endswith("ArithmeticError: of the hook")


def test_a_killed_worker_ends_the_other(fake_cluster: Any) -> None:
    # tests/faults has it under mpirun, which stops the other by a signal.
    with fake_cluster.start_script([PROGRAM, "grpc", "never"], forked=True) as script:
        for worker in script.workers:
            worker.wait_for_text("^trains$", START_LIMIT_S)
        victim, other = script.workers
        victim.send_signal(signal.SIGKILL)
        assert other.wait(END_LIMIT_S) == 200
    last = other.stderr().splitlines()[-1]
    assert last.startswith("WorkerLostError: Lost worker 0 (127.0.0.1:")


@pytest.mark.parametrize("engine", ["grpc", "horovod"])
def test_no_worker_leaves_before_all_sessions_are_closed(
    fake_cluster: Any, engine: str, tmp_path: Path
) -> None:
    closed = str(tmp_path / "closed")
    options = {"engine": engine, "forked": True}
    with fake_cluster.start_script([PROGRAM, engine, "slow", closed], **options) as script:
        codes = [worker.wait(START_LIMIT_S) for worker in script.workers]
        last_lines = [worker.stdout().splitlines()[-1] for worker in script.workers]
    assert codes == [0, 0]
    assert last_lines == ["all have closed"] * 2


def test_a_stopped_worker_is_named_and_ends_the_run_after_the_limit(fake_cluster: Any) -> None:
    # tests/faults has a launcher's limit over Horovod.
    options = {"forked": True, "env": {"TFDIST_STALL_TIMEOUT_S": "3"}}
    with fake_cluster.start_script([PROGRAM, "grpc", "stop"], **options) as script:
        waiting = script.workers[0]
        assert waiting.wait(START_LIMIT_S) == 200
        lines = waiting.stderr().splitlines()
    (first, *_, last) = [line for line in lines if "Waiting for worker 1 (" in line]
    assert first.startswith("Waiting for worker 1 (")
    assert last.startswith("WorkerLostError: Waiting for worker 1 (")
    assert "its process is stopped (SIGSTOP, a debugger), or its host hangs. That is" in last
    assert last.endswith("longer than TFDIST_STALL_TIMEOUT_S=3.")
