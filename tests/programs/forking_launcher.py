"""`tfdist run` in a process that has TensorFlow imported: what it starts here, it forks.

    launcher (this program) ──fork──> agent ──fork──> worker, the training

Agents and workers are the processes that they always are: children of the same parents, with their
own sessions, pipes, environments and exit codes. They lack the start of an interpreter, and a
worker the import of TensorFlow, 2 s of processor time. mpirun, and what a worker starts, is started
as always. The fork server of the tests forks mpirun's agents, as it forks the ranks of a test.

    mpirun ──> mpi_rank ──asks──> fork server ──fork──> agent ──fork──> worker

    fake_cluster.start_script([FORKING_LAUNCHER, "run", ...], engine="none", forked=True)
"""

import atexit
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tfdist.launch.machine.processes import python_command
from tfdist.testing.fake_cluster import _PRELOADED
from tfdist.testing.job import Job
from tfdist.testing.server_process import ServerProcess

FORKING_LAUNCHER = __file__
_POPEN = subprocess.Popen
_AGENT = python_command("tfdist.launch.run.agent")
_AGENT_GRACE_S = 30.0


class ForkingPopen(subprocess.Popen):  # type: ignore[type-arg]
    """A `subprocess.Popen` that runs a Python program in the forked process itself."""

    def __init__(self, args: Sequence[str], **options: Any) -> None:
        """Starts the command; `preexec_fn`, which is called behind the fork, does not return."""
        python, first, *_ = [*args, "", ""]
        if python == sys.executable and (first == "-c" or first.endswith(".py")):
            given = (options.get("env") or os.environ, options.get("preexec_fn"))
            options["preexec_fn"] = partial(_become, list(args[1:]), *given)
            sys.stdout.flush()
            sys.stderr.flush()
        elif os.path.basename(python) == "mpirun":
            args = _with_forked_agents(args)
        super().__init__(args, **options)


def rank_command(
    script: Sequence[str], folder: Path, server: ServerProcess | str, grace_s: float = 1.0
) -> list[str]:
    """Returns the command of an MPI rank: the fork server runs the script in its place.

    What it prints is in the folder: `worker-1.stdout` and `worker-1.stderr` of rank 1.

    Args:
      script: A Python program and its arguments.
      folder: A folder for this run alone.
      server: The fork server, or its socket.
      grace_s: The time from TERM to KILL.
    """
    if not isinstance(server, str):
        server.preload(_PRELOADED)
        server = server.socket_path
    job = Job(
        folder=str(folder),
        name="",
        environ={},
        cwd=os.getcwd(),
        command=(sys.executable, *script),
        forked=True,
        sys_path=tuple(sys.path),
        grace_s=grace_s,
    )
    path = folder / "job"
    path.write_text(job.to_json())
    return python_command("tfdist.testing.mpi_rank", str(path), server, with_packages=False)


def _with_forked_agents(command: Sequence[str]) -> list[str]:
    """Returns mpirun's command with ranks that ask the fork server for their agents."""
    words = list(command)
    # A process that the server has forked has the server's command line.
    socket_path = Path("/proc/self/cmdline").read_text().split("\0")[-2]
    for place in reversed(range(len(words) - len(_AGENT))):
        end = place + len(_AGENT)
        if words[place:end] == _AGENT:
            folder = tempfile.mkdtemp(dir=os.getcwd())  # A test's own, should this be killed.
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            agent = (FORKING_LAUNCHER, "agent", words[end])
            words[place : end + 1] = rank_command(agent, Path(folder), socket_path, _AGENT_GRACE_S)
    return words


def _become(
    argv: list[str], environ: Mapping[str, str], take_place: Callable[[], None] | None
) -> None:
    """Ends this process as a new interpreter with these arguments would end."""
    code: Any = 1
    try:
        if take_place is not None:
            take_place()
        _forget_the_parent(environ)
        code = _exit_code(argv)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _forget_the_parent(environ: Mapping[str, str]) -> None:
    """Takes back what a new program would not have: files, handlers of signals and of the end."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            is_ctrl_c = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_ctrl_c else signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # As Python does at its start.
    atexit._clear()
    sys.excepthook = sys.__excepthook__
    os.environ.clear()
    os.environ.update(environ)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _exit_code(argv: list[str]) -> int:
    """Runs the program, "-c CODE" or a script, and returns its exit code."""
    try:
        try:
            _run(argv)
        except Exception as error:
            sys.excepthook(type(error), error, error.__traceback__)
            return 1
    except SystemExit as end:  # Of the program, or of tfdist's hook.
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


def _run(argv: list[str]) -> None:
    if argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        exec(argv[1], {"__name__": "__main__"})
    else:
        subprocess.Popen = _POPEN  # type: ignore[misc]
        sys.argv = argv
        sys.path.insert(0, os.path.dirname(argv[0]))
        runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    from tfdist.launch.run import agent

    subprocess.Popen = ForkingPopen  # type: ignore[misc]
    # It would be forked too late for Python to run it in place of the program.
    agent.can_stand_by = lambda command, python: False  # type: ignore[attr-defined]
    if sys.argv[1] == "agent":
        agent.main(sys.argv[2])
    else:
        from tfdist.launch.cli import main

        sys.exit(main())
