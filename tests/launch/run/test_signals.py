"""Signals end a run cleanly, and no process is left when any one of them is killed."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfdist.launch.machine.mpi import horovod_problem
from tfdist.testing.run import wait_until

Launch = Callable[..., Any]
_ROOT = Path(__file__).parents[3]

needs_horovod = pytest.mark.skipif(horovod_problem() is not None, reason=str(horovod_problem()))

SAVE_ON_TERM = """
    def save():
        time.sleep(0.3)
        (here / f"saved-{index}").touch()
        sys.exit(143)

    on(signal.SIGTERM, save)
    ready()
    time.sleep(600)
    """
IGNORE_TERM = """
    on(signal.SIGTERM, (here / f"asked-{index}").touch)
    ready()
    while True:
        time.sleep(600)
    """
# Children of each kind: in the worker's process group, in their own session, and one whose parent
# has ended. All of them ignore TERM.
WITH_CHILDREN = """
    deaf = "trap '' TERM HUP INT; while :; do sleep 600; done"
    subprocess.Popen(["sh", "-c", deaf])
    subprocess.Popen(["sh", "-c", deaf], start_new_session=True)
    subprocess.run(["sh", "-c", f"setsid sh -c \\"{deaf}\\" >/dev/null 2>&1 </dev/null &"])
    ready()
    while True:
        time.sleep(600)
    """


def short_patience(folder: Path) -> dict[str, str]:
    """Returns an environment in which mpirun kills 1 s after the grace period, and not 15 s."""
    code = "import sys\nif 'tfdist' in sys.orig_argv:\n    from tfdist.launch.run import starters\n"
    (folder / "sitecustomize.py").write_text(f"{code}    starters._MPIRUN_PATIENCE_S = 1.0\n")
    return {"PYTHONPATH": f"{folder}:{_ROOT}"}


def saved(run: Any) -> list[bool]:
    return [(run.folder / f"saved-{index}").exists() for index in range(2)]


def test_term_lets_the_workers_save_and_leave(launch: Launch) -> None:
    run = launch(SAVE_ON_TERM, "--max-restarts", "1")
    run.wait_until_ready(0, 1)
    run.signal(signal.SIGTERM)
    assert run.wait() == 143
    assert saved(run) == [True, True]
    assert "restart" not in run.err
    assert "SIGTERM: the workers save and leave, within 30 s" in run.err
    assert "stopped by SIGTERM" in run.err
    assert "all workers have left after" in run.err
    assert "killed" not in run.err
    assert "failed first" not in run.err


def test_the_preemption_file_stops_a_run_as_term_does(launch: Launch, tmp_path: Path) -> None:
    file = tmp_path / "preempted"
    environ = {"TFDIST_PREEMPTED": str(file)}
    run = launch(SAVE_ON_TERM, "--max-restarts", "1", "--env", f"TFDIST_PREEMPTED={file}")
    run.wait_until_ready(0, 1)
    file.touch()
    assert run.wait() == 143
    assert saved(run) == [True, True]
    assert f"SIGTERM ({file} is there): the workers save and leave, within 30 s" in run.err
    assert "restart" not in run.err
    late = launch(SAVE_ON_TERM, environ=environ)
    assert late.wait() == 2
    assert "is there already: this machine is taken away, or the file is old." in late.err
    nowhere = launch(SAVE_ON_TERM, environ={"TFDIST_PREEMPTED": str(tmp_path / "no" / "file")})
    assert nowhere.wait() == 2
    assert "Name a file in a folder that is there." in nowhere.err


def test_programs_that_do_not_know_usr1_are_stopped_by_it(launch: Launch) -> None:
    run = launch("ready()\ntime.sleep(600)", "--max-restarts", "1")
    run.wait_until_ready(0, 1)
    run.signal(signal.SIGUSR1)
    assert run.wait() == 138
    assert "SIGUSR1: the workers save and stop" in run.err
    assert "failed first" not in run.err
    assert "restart" not in run.err


def test_ctrl_c_once_is_a_clean_stop(launch: Launch) -> None:
    run = launch(
        "    on(signal.SIGINT, (here / f'interrupted-{index}').touch)" + SAVE_ON_TERM,
        start_new_session=True,
    )
    run.wait_until_ready(0, 1)
    os.killpg(run.process.pid, signal.SIGINT)  # as terminals do
    assert run.wait() == 130
    assert saved(run) == [True, True]
    assert "Ctrl-C again kills them" in run.err
    assert not (run.folder / "interrupted-0").exists()
    assert "Traceback" not in run.err


def test_ctrl_c_after_a_failure_does_not_hide_it(launch: Launch) -> None:
    run = launch(
        """
        def save():
            (here / "asked-0").touch()
            wait_for("go")
            sys.exit(143)

        on(signal.SIGTERM, save)
        ready()
        wait_for(f"ready-{1 - index}")
        if index == 1:
            sys.exit(3)
        time.sleep(600)
        """,
        "--max-restarts",
        "3",
    )
    run.wait_for("asked-0")
    run.signal(signal.SIGINT)
    (run.folder / "go").touch()
    assert run.wait() == 3
    assert "worker 1 failed first" in run.err
    assert "restart 1" not in run.err


def test_ctrl_c_twice_is_a_hard_stop(launch: Launch) -> None:
    run = launch(IGNORE_TERM, "--grace", "120")
    run.wait_until_ready(0, 1)
    run.signal(signal.SIGINT)
    run.wait_for("asked-0", "asked-1")

    requested_s = (run.folder / "asked-0").stat().st_mtime
    # The user presses the keys again after seeing that once was not enough.
    assert wait_until(lambda: time.time() > requested_s + 0.5, 30.0)
    run.signal(signal.SIGINT)
    assert run.wait(30) == 130
    assert "had to be killed after" in run.err
    assert "steps after the last checkpoint are lost" in run.err
    assert run.is_nothing_left()


@pytest.mark.parametrize("engine", ["grpc", pytest.param("horovod", marks=needs_horovod)])
@pytest.mark.parametrize("victims", ["launcher", "agents", "agents and launcher"])
def test_neither_a_grandchild_nor_a_folder_is_left_when_agents_or_their_launcher_are_killed(
    launch: Launch, tmp_path: Path, engine: str, victims: str
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environ = {"TMPDIR": str(temporary), **short_patience(tmp_path)}
    run = launch(WITH_CHILDREN, "--engine", engine, "--grace", "1", environ=environ)
    run.wait_until_ready(0, 1)
    assert wait_until(lambda: len(run.living("sh", "trap")) == 6, 20.0)
    assert len(list(temporary.glob("tfdist-*"))) == 2
    agents = [
        process
        for process in run.living("tfdist.launch.run.agent")
        if "mpirun" not in process.cmdline()[0]
    ]
    assert len(agents) == 2
    launchers = [run.process] if "launcher" in victims else []
    for process in (*launchers, *(agents if "agents" in victims else [])):
        process.kill()
    if "launcher" not in victims:
        assert run.wait() == 124
        assert "failed first" in run.err
        assert "its agent exited" in " ".join(run.err.split())
    # mpirun waits as long as workers may take to save, and a second more, and then once again.
    assert run.is_nothing_left()
    assert wait_until(lambda: not list(temporary.rglob("*")), 10.0), list(temporary.rglob("*"))


@needs_horovod
def test_nothing_is_left_when_mpirun_is_killed(launch: Launch) -> None:
    run = launch(WITH_CHILDREN, "--engine", "horovod", "--grace", "1")
    run.wait_until_ready(0, 1)
    mpirun = next(p for p in run.living("tfdist.launch.run.agent") if "mpirun" in p.cmdline()[0])
    mpirun.kill()
    assert run.wait() == 124
    assert "mpirun" in run.err
    assert run.is_nothing_left()


def test_nothing_is_left_when_a_worker_fails_and_another_ignores_term(launch: Launch) -> None:
    run = launch(
        WITH_CHILDREN.replace(
            "ready()\n",
            """ready()
    on(signal.SIGTERM, lambda: None)
    wait_for(f"ready-{1 - index}")
    if index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
""",
        ),
        "--grace",
        "1",
    )
    assert run.wait() == 137
    assert "worker 1 failed first" in run.err
    assert "worker 0 was then stopped (TERM) and had to be killed" in run.err
    assert run.is_nothing_left()


# A terminal that is closed ends a run, but not one that was started with nohup.

# The launcher leads the session of a terminal that is its standard input, as a shell's job does.
IN_TERMINAL = ("setsid", "--ctty")
UNTIL_REQUESTED = """
    on(signal.SIGTERM, lambda: sys.exit(143))
    (here / f"ignores-{index}-{signal.getsignal(signal.SIGHUP) == signal.SIG_IGN}").touch()
    ready()
    wait_for("go")
    """


@needs_horovod
def test_a_run_under_nohup_goes_on_without_its_terminal(launch: Launch) -> None:
    master, terminal = os.openpty()
    before = (*IN_TERMINAL, "nohup")
    run = launch(UNTIL_REQUESTED, "--engine", "horovod", before=before, stdin=terminal)
    os.close(terminal)
    run.wait_until_ready(0, 1)
    run.wait_for("ignores-0-True", "ignores-1-True")
    os.close(master)
    # A shell that ends sends it to other processes than the terminal does.
    for process in (*run.living("tfdist.launch.run.agent"), *run.living("program.py")):
        if process.name() != "mpirun":
            process.send_signal(signal.SIGHUP)
    (run.folder / "go").touch()
    assert run.wait() == 0, run.err
    assert "SIGHUP" not in run.err


def test_a_run_ends_with_its_terminal(launch: Launch) -> None:
    master, terminal = os.openpty()
    run = launch(UNTIL_REQUESTED, before=IN_TERMINAL, stdin=terminal)
    os.close(terminal)
    run.wait_until_ready(0, 1)
    os.close(master)
    assert run.wait() == 129, run.err
    assert "SIGHUP: the workers save and leave" in run.err
    assert "stopped by SIGHUP" in run.err
