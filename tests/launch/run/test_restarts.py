"""Restarts of a failed run from its last checkpoint, where a restart may help."""

import os
import signal
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tfdist.launch.failures import Failure
from tfdist.launch.options.hosts import Host
from tfdist.launch.options.run_options import RunOptions
from tfdist.launch.run.verdict import is_new_port_needed, why_no_restart
from tfdist.process.exit_codes import NO_SPACE

Launch = Callable[..., Any]


def failure(code: int | None, kind: Any = "exited") -> Failure:
    return Failure(
        name="worker 1",
        index=1,
        host="localhost",
        pid=7,
        kind=kind,
        code=code,
        after_s=1.0,
        at=datetime(2026, 1, 1),
        step=None,
        log_tail=(),
        log_path=Path("worker-1.log"),
    )


@pytest.mark.parametrize(
    "failed",
    [
        *(failure(code) for code in (1, 3, 200)),
        *(failure(number, "signal") for number in (2, 9)),
        *(failure(None, kind) for kind in ("stalled", "silent")),
        failure(0, "ended early"),
    ],
)
def test_a_run_starts_again_as_often_as_it_may(failed: Failure) -> None:
    assert why_no_restart(failed, restarts=0, max_restarts=2) is None
    assert why_no_restart(failed, restarts=1, max_restarts=2) is None
    assert "2 of 2" in (why_no_restart(failed, restarts=2, max_restarts=2) or "")
    assert why_no_restart(failed, restarts=0, max_restarts=0) is not None


@pytest.mark.parametrize("code", [2, NO_SPACE, 126, 127])
def test_a_permanent_failure_does_not_start_again(code: int) -> None:
    assert why_no_restart(failure(code), restarts=0, max_restarts=2) is not None


def test_only_ports_that_the_launcher_chose_are_replaced() -> None:
    here = RunOptions(command=("true",))
    there = RunOptions(command=("true",), hosts=(Host(name="a"), Host(name="b")))
    assert is_new_port_needed(failure(201), here)
    assert not is_new_port_needed(failure(201), there)
    assert not is_new_port_needed(failure(200), here)


FAIL_TWICE = """
    count = int(os.environ["TFDIST_RESTART_COUNT"])
    print("start", count, os.environ["TF_CONFIG"] if index == 0 else "", flush=True)
    if index == 1 and count < 2:
        sys.exit(3)
    if count < 2:
        time.sleep(600)  # until we are stopped
    """


def test_a_run_that_failed_goes_on_until_it_succeeds(launch: Launch) -> None:
    run = launch(FAIL_TWICE, "--max-restarts", "3")
    assert run.wait() == 0
    assert "restart 1 of 3: worker 1 failed (exit code 3)" in run.err
    assert "restart 2 of 3: worker 1 failed (exit code 3)" in run.err
    assert "restart 3" not in run.err
    assert "failed first" not in run.err
    starts = run.log("worker-0").splitlines()  # the log is continued
    assert [line.split()[1] for line in starts] == ["0", "1", "2"]
    assert len({line.partition("{")[2] for line in starts}) == 3  # each start has its own ports


def test_when_all_restarts_are_used_the_last_failure_ends_the_run(launch: Launch) -> None:
    run = launch("print('start', flush=True)\nsys.exit(3)", "--max-restarts", "1", num_instances=1)
    assert run.wait() == 3
    assert "worker 0 failed" in run.err
    assert "1 of 1 were used" in run.err
    assert run.log("worker-0").count("start") == 2


def test_a_killed_worker_is_replaced_with_all_others(launch: Launch) -> None:
    run = launch(
        """
        count = int(os.environ["TFDIST_RESTART_COUNT"])
        (here / f"pid-{index}-{count}").write_text(str(os.getpid()))
        if count == 0:
            ready()
            time.sleep(600)
        """,
        "--max-restarts",
        "1",
    )
    run.wait_until_ready(0, 1)
    os.kill(int((run.folder / "pid-0-0").read_text()), signal.SIGKILL)
    assert run.wait() == 0
    assert "restart 1 of 1: worker 0 failed (signal SIGKILL (9)" in run.err
    assert all((run.folder / f"pid-{worker}-1").exists() for worker in (0, 1))


def test_bad_configuration_is_not_tried_again(launch: Launch) -> None:
    run = launch("print('start')\nsys.exit(2)", "--max-restarts", "3", num_instances=1)
    assert run.wait() == 2
    assert "restart 1" not in run.err
    assert run.log("worker-0").count("start") == 1


def test_a_port_that_was_taken_is_replaced_without_using_a_restart(launch: Launch) -> None:
    run = launch(
        """
        print(os.environ["TF_CONFIG"], os.environ["TFDIST_RESTART_COUNT"], flush=True)
        mark = here / f"started-{index}"
        if not mark.exists():
            mark.touch()
            sys.exit(201)
        """,
    )
    assert run.wait() == 0
    assert "took the port of worker" in run.err
    assert "(1 of 3)" in run.err
    assert "restart 1" not in run.err
    first, second = run.log("worker-0").splitlines()
    assert first.endswith(" 0")
    assert second.endswith(" 0")
    assert first != second


def test_ports_are_replaced_three_times_at_most(launch: Launch) -> None:
    run = launch("print('start', flush=True)\nsys.exit(201)", num_instances=1)
    assert run.wait() == 201
    assert "(3 of 3)" in run.err
    assert run.log("worker-0").count("start") == 4
    assert "worker 0 failed" in run.err


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
