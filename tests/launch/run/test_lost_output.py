"""Runs with a full disk, without a reader of their output, or with a removed folder."""

import errno
import os
import pty
import shutil
import signal
from collections.abc import Callable
from typing import Any

import pytest

Launch = Callable[..., Any]
WORDS_THEN_GO = """
    print("words of", index, flush=True)
    ready()
    wait_for("go")
    print("more", flush=True)
    """


def test_a_run_goes_on_though_the_disk_of_its_stdout_is_full(launch: Launch) -> None:
    with open("/dev/full", "w") as full:
        run = launch(WORDS_THEN_GO, stdout=full)
        run.wait_until_ready(0, 1)
        (run.folder / "go").touch()
        assert run.wait() == 0, run.err
    assert run.err.count("stdout cannot be written: No space left on device") == 1
    assert "SIGPIPE" not in run.err
    assert run.log("worker-1") == "words of 1\nmore\n"


def test_a_run_goes_on_though_nothing_of_it_can_be_shown(launch: Launch) -> None:
    with open("/dev/full", "w") as full:
        run = launch("ready()\nprint('words')\nsys.exit(3)", stdout=full, stderr=full)
        assert run.wait() == 3
    assert run.log("worker-0") == "words\n"


def test_a_closed_stdout_is_reported(launch: Launch) -> None:
    run = launch("while True:\n    print('again', flush=True); time.sleep(0.01)")
    assert run.process.stdout.readline().endswith("again\n")
    run.process.stdout.close()
    assert run.process.wait(60) == 141
    reported = run.process.stderr.read()
    assert "Traceback" not in reported
    assert run.is_nothing_left()
    why = "SIGPIPE (stdout was closed by the process that read it)"
    assert f"{why}: the workers save and leave" in reported
    assert f"stopped by {why}" in reported


@pytest.mark.parametrize("ignores_hang_ups", [False, True])
def test_a_run_that_writes_to_a_closed_terminal_ends_as_one_that_was_hung_up_unless_it_ignores_that(
    launch: Launch, ignores_hang_ups: bool
) -> None:
    master, terminal = pty.openpty()
    before = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"] if ignores_hang_ups else []
    # The terminal is not its own, so it gets no SIGHUP.
    run = launch(WORDS_THEN_GO, before=before, stdout=terminal)
    os.close(terminal)
    run.wait_until_ready(0, 1)
    os.close(master)
    (run.folder / "go").touch()
    assert run.wait() == (0 if ignores_hang_ups else 129), run.err
    if ignores_hang_ups:
        assert run.log("worker-1") == "words of 1\nmore\n"
    else:
        assert "stopped by SIGHUP" in run.err


def test_logs_that_were_removed_are_made_again_and_a_restart_finds_their_folder(
    launch: Launch,
) -> None:
    program = """
        print("before", flush=True)
        ready()
        if os.environ["TFDIST_RESTART_COUNT"] == "0":
            wait_for("go")
            print("after", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """
    run = launch(program, "--max-restarts", "1", num_instances=1)
    run.wait_until_ready(0)
    shutil.rmtree(run.log_dir)
    run.wait_for("logs/worker-0.log")
    (run.folder / "go").touch()
    assert run.wait() == 0, run.err
    assert run.log("worker-0") == "after\nbefore\n"
    assert run.err.count("logs were removed during the run") == 1
    assert "signal SIGKILL" in run.err


def test_a_restart_in_a_removed_folder_names_the_folder(launch: Launch, tmp_path: Any) -> None:
    folder = tmp_path / "run-0"
    program = f"open({str(tmp_path)!r} + '/ready', 'w'); ready(); time.sleep(600)"
    run = launch(
        program, "--max-restarts", "1", "--log-dir", str(tmp_path / "kept"), num_instances=1
    )
    run.wait_until_ready(0)
    worker = run.living("program.py", "-S")[-1]
    shutil.rmtree(folder)
    worker.send_signal(signal.SIGKILL)
    assert run.wait() == 127, run.err
    assert f"{os.strerror(errno.ENOENT)}: {folder}" in run.err
    assert "Traceback" not in run.err
