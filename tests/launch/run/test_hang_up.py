"""A terminal that is closed ends a run, but not one that was started with nohup."""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tfdist.launch.machine.mpi import horovod_problem

Launch = Callable[..., Any]

needs_horovod = pytest.mark.skipif(horovod_problem() is not None, reason=str(horovod_problem()))
# The launcher leads the session of a terminal that is its standard input, as a shell's job does.
IN_TERMINAL = ("setsid", "--ctty")
UNTIL_REQUESTED = """
    on(signal.SIGTERM, lambda: sys.exit(143))
    (here / f"ignores-{index}-{signal.getsignal(signal.SIGHUP) == signal.SIG_IGN}").touch()
    ready()
    wait_for("go")
    """


class PseudoTerminal:
    """A terminal that can be closed."""

    def __init__(self) -> None:
        self._master, self.slave = os.openpty()

    def give_away(self) -> None:
        """Leaves the terminal to the processes that were started in it."""
        os.close(self.slave)

    def hang_up(self) -> None:
        os.close(self._master)
        self._master = -1

    def close(self) -> None:
        if self._master >= 0:
            self.hang_up()


@pytest.fixture
def terminal() -> Iterator[PseudoTerminal]:
    terminal = PseudoTerminal()
    yield terminal
    terminal.close()


@needs_horovod
def test_a_run_under_nohup_goes_on_without_its_terminal(
    launch: Launch, terminal: PseudoTerminal
) -> None:
    run = launch(
        UNTIL_REQUESTED, "--engine", "horovod", before=(*IN_TERMINAL, "nohup"), stdin=terminal.slave
    )
    terminal.give_away()
    run.wait_until_ready(0, 1)
    run.wait_for("ignores-0-True", "ignores-1-True")
    terminal.hang_up()
    # A shell that ends sends it to other processes than the terminal does.
    for process in (*run.living("tfdist.launch.run.agent"), *run.living("program.py")):
        if process.name() != "mpirun":
            process.send_signal(signal.SIGHUP)
    (run.folder / "go").touch()
    assert run.wait() == 0, run.err
    assert "SIGHUP" not in run.err


def test_a_run_ends_with_its_terminal(launch: Launch, terminal: PseudoTerminal) -> None:
    run = launch(UNTIL_REQUESTED, before=IN_TERMINAL, stdin=terminal.slave)
    terminal.give_away()
    run.wait_until_ready(0, 1)
    terminal.hang_up()
    assert run.wait() == 129, run.err
    assert "SIGHUP: the workers save and leave" in run.err
    assert "stopped by SIGHUP" in run.err
