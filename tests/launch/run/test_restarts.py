"""Restarts of a failed run from its last checkpoint, where a restart may help."""

import signal
from collections.abc import Callable
from typing import Any

import pytest

Launch = Callable[..., Any]


FAIL_ONCE = """
    count = int(os.environ["TFDIST_RESTART_COUNT"])
    print("start", count, os.environ["TF_CONFIG"] if index == 0 else "", flush=True)
    if index == 1 and count < 1:
        sys.exit(3)
    if count < 1:
        time.sleep(600)  # until we are stopped
    """


def test_a_run_that_failed_goes_on_until_it_succeeds(launch: Launch) -> None:
    run = launch(FAIL_ONCE, "--max-restarts", "3")
    assert run.wait() == 0
    assert "restart 1 of 3: worker 1 failed (exit code 3)" in run.err
    assert "restart 2" not in run.err
    assert "failed first" not in run.err
    starts = run.log("worker-0").splitlines()  # the log is continued
    assert [line.split()[1] for line in starts] == ["0", "1"]
    assert len({line.partition("{")[2] for line in starts}) == 2  # each start has its own ports


@pytest.mark.parametrize(
    ("progress", "num_starts", "reason"),
    [
        (
            'phase="training", step=12, loss=0.5',
            2,
            "it failed twice in the same way at step 12, so",
        ),
        ('phase="starting"', 1, "an exception before the first step"),
    ],
)
def test_an_exception_that_would_come_again_ends_the_run(
    launch: Launch, progress: str, num_starts: int, reason: str
) -> None:
    run = launch(
        f"""
        from tfdist.process.progress_file import find_progress_file
        print("start", flush=True)
        find_progress_file().write({progress})
        raise ValueError("the data are broken")
        """,
        *("--max-restarts", "5"),
        num_instances=1,
    )
    assert run.wait() == 1
    assert run.log("worker-0").count("start\n") == num_starts
    assert f"not started again: {reason}" in run.err
    assert "With --max-restarts" not in run.err


def test_the_box_shows_the_error_of_the_last_start(launch: Launch) -> None:
    run = launch(
        """
        if os.environ["TFDIST_RESTART_COUNT"] == "0":
            raise MemoryError("of the first start")
        print("the second start ends", flush=True)
        os._exit(3)
        """,
        "--max-restarts",
        "1",
        num_instances=1,
    )
    assert run.wait() == 3
    assert "1 of 1 were used" in run.err
    box = run.err[run.err.index("worker 0 failed", run.err.index("restart 1 of 1")) :]
    assert "the second start ends" in box
    assert "MemoryError" not in box
    assert "Memory ran out" not in box
    assert "of the first start" in run.log("worker-0")


def test_a_worker_that_fails_again_is_left_out_if_the_run_may_be_smaller(launch: Launch) -> None:
    run = launch(
        """
        num_instances = int(os.environ["TFDIST_NUM_INSTANCES"])
        print("one of", num_instances, os.environ["TFDIST_RESTART_COUNT"], flush=True)
        if index == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if num_instances == 3:
            time.sleep(600)  # until we are stopped
        """,
        *("--max-restarts", "3", "--min-instances", "2"),
        num_instances=3,
    )
    assert run.wait() == 0
    assert "worker 2 has failed twice in a row: going on with 2 of 3 instances" in run.err
    assert "tfdist: interrupted 2 times\n" in run.err
    assert run.log("worker-1").splitlines() == ["one of 3 0", "one of 3 1", "one of 2 2"]


def test_ports_that_were_taken_are_replaced_three_times_without_using_a_restart(
    launch: Launch,
) -> None:
    run = launch(
        """
        print(os.environ["TF_CONFIG"], os.environ["TFDIST_RESTART_COUNT"], flush=True)
        sys.exit(201)
        """,
    )
    assert run.wait() == 201
    assert "took the port of worker" in run.err
    assert "(3 of 3)" in run.err
    assert "restart 1" not in run.err
    starts = run.log("worker-0").splitlines()
    assert len(set(starts)) == 4
    assert all(line.endswith(" 0") for line in starts)


def test_a_run_that_was_asked_to_save_does_not_start_again(launch: Launch) -> None:
    run = launch(
        """
        on(signal.SIGUSR1, lambda: sys.exit(138 if index == 0 else 1))
        ready()
        time.sleep(600)
        """,
        "--max-restarts",
        "3",
    )
    run.wait_until_ready(0, 1)
    run.signal(signal.SIGUSR1)
    assert run.wait() == 1
    assert "worker 1 failed first" in run.err
    assert "restart 1" not in run.err
