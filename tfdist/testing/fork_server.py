"""The process that all workers are forked from: it has TensorFlow imported, and never uses it.

`import tensorflow` takes seconds of processor time; forking a process that did it takes
milliseconds. That is safe as long as this process has one thread and no TensorFlow session, eager
context or server: it only imports. A forked process then differs from a new one in its imported
modules only. MPI ranks are forked here as well: `mpi_rank` sends their environment.

A connection to the server's socket carries one request, one line of JSON, and stays open:

- `{"preload": [module, ...]}`: answered by a line when the modules are imported;
- a `Job`: its process is started, and its exit status is the answer. If the client closes the
  connection first, the process is stopped, and every process that it left in its group.

The server ends, and stops all processes first, when its standard input ends: with the process that
started it, however that ended. It removes the folder of its socket then.
"""

import atexit
import contextlib
import gc
import importlib
import inspect
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tfdist.launch.machine.processes import die_with_parent
from tfdist.testing.job import Job, become_command, take_place

_REQUEST_LIMIT_S = 10.0


def main(socket_path: str) -> None:
    """Serves until standard input ends; in a forked process, does the job and exits."""
    # The first handler registered is the last to run, after the handlers of all imports.
    atexit.register(_end_at_once)
    server = os.getpid()
    job = _Server(socket_path).serve()
    if job is None:
        shutil.rmtree(os.path.dirname(socket_path), ignore_errors=True)
        return
    # A forked process: it has left the server's loop, and ends as any Python program ends.
    die_with_parent(server)
    take_place(job)
    if job.command and not job.forked:
        become_command(job)
    from tfdist.testing.worker_process import make_runs_call, run_as_program

    if job.forked:
        atexit.unregister(_end_at_once)  # Its exit code is the script's.
        run_as_program(job)
    else:
        make_runs_call(job)


def _end_at_once() -> None:
    # Freeing TensorFlow's half a million objects takes every worker a third of a second.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def parse_request(line: str) -> Job | list[str] | None:
    """Returns the job or the modules of a request; None if it is not one."""
    try:
        fields = json.loads(line)
        if "preload" not in fields:
            return Job.from_json(line)
        modules = fields["preload"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    is_sound = isinstance(modules, list) and all(isinstance(module, str) for module in modules)
    return modules if is_sound else None


@dataclass(kw_only=True)
class _Child:
    job: Job
    connection: socket.socket
    kill_at_s: float | None = None  # set when it has been asked to end


class _Server:
    def __init__(self, socket_path: str) -> None:
        self._children: dict[int, _Child] = {}
        self._import_environ: dict[str, str] = {}
        self._is_closing = False
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(socket_path)
        self._listener.listen(64)
        # A child's end wakes the selector through this pair.
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for source in (self._listener, self._woken, sys.stdin):
            self._selector.register(source, selectors.EVENT_READ)

    def serve(self) -> Job | None:
        """Returns None at the end, and the job to do in each forked process."""
        while not self._is_closing or self._children:
            for key, _ in self._selector.select(self._seconds_to_next_kill()):
                if key.fileobj is self._listener and not self._is_closing:
                    job = self._answer()
                    if job is not None:
                        return job
                elif key.fileobj is self._woken:
                    self._woken.recv(4096)
                elif key.fileobj is sys.stdin:
                    self._close()
                elif key.data is not None:
                    self._stop(key.data)
            self._reap()
            self._kill_the_late()
        return None

    def _answer(self) -> Job | None:
        connection, _ = self._listener.accept()
        connection.settimeout(_REQUEST_LIMIT_S)
        request = ""
        with contextlib.suppress(OSError, UnicodeDecodeError):  # the client may have ended already
            request = connection.makefile().readline()
        requested = parse_request(request)
        if requested is None:
            connection.close()
            return None
        if isinstance(requested, Job):
            return self._fork(requested, connection)
        before = dict(os.environ)
        _preload(requested)
        # Variables that an import sets: the processes that have the import need them as well.
        self._import_environ |= {
            name: value for name, value in os.environ.items() if before.get(name) != value
        }
        with contextlib.suppress(OSError):
            connection.sendall(b"done\n")
        connection.close()
        return None

    def _fork(self, job: Job, connection: socket.socket) -> Job | None:
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            connection.close()
            self._let_go()
            if job.command and not job.forked:
                return job
            return replace(job, environ={**self._import_environ, **job.environ})
        with contextlib.suppress(OSError):  # the child did it, and is another program already
            os.setpgid(pid, pid)
        self._children[pid] = _Child(job=job, connection=connection)
        self._selector.register(connection, selectors.EVENT_READ, pid)
        with contextlib.suppress(OSError):  # the run is over and its folder removed
            job.record_start(pid)
        return None

    def _let_go(self) -> None:
        """Closes, in a forked process, everything that belongs to the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for child in self._children.values():
            child.connection.close()
        for opened in (self._listener, self._woken, self._waker):
            opened.close()

    def _close(self) -> None:
        self._is_closing = True
        self._selector.unregister(sys.stdin)
        self._selector.unregister(self._listener)
        for pid in self._children:
            self._stop(pid)

    def _stop(self, pid: int) -> None:
        child = self._children[pid]
        if child.kill_at_s is not None:
            return
        self._selector.unregister(child.connection)
        child.kill_at_s = time.monotonic() + child.job.grace_s
        _signal_group(pid, signal.SIGTERM)
        _signal_group(pid, signal.SIGCONT)  # A suspended process hears TERM only then.

    def _kill_the_late(self) -> None:
        for pid, child in self._children.items():
            if child.kill_at_s is not None and time.monotonic() >= child.kill_at_s:
                _signal_group(pid, signal.SIGKILL)

    def _seconds_to_next_kill(self) -> float | None:
        times = (child.kill_at_s for child in self._children.values())
        moments = [time_s for time_s in times if time_s is not None]
        return max(0.01, min(moments) - time.monotonic()) if moments else None

    def _reap(self) -> None:
        while self._children:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            # Kills processes that it left behind, while no other process can have its id.
            _signal_group(ended.si_pid, signal.SIGKILL)
            _, status = os.waitpid(ended.si_pid, 0)
            child = self._children.pop(ended.si_pid)
            returncode = os.waitstatus_to_exitcode(status)
            if child.kill_at_s is None:
                self._selector.unregister(child.connection)
            with contextlib.suppress(OSError):
                child.job.record_end(returncode)
            with contextlib.suppress(OSError):
                child.connection.sendall(f"{returncode}\n".encode())
            child.connection.close()


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _preload(modules: Sequence[str]) -> None:
    for module in modules:
        with contextlib.suppress(ImportError):  # not installed: the call reports it
            importlib.import_module(module)
    # AutoGraph asks which module some code is from. The first answer reads the paths of all
    # modules, a sixth of a second; each forked process has them then.
    inspect.getmodule(compile("", "no file", "exec"))
    gc.collect()
    gc.freeze()  # collections in forked processes leave the shared pages alone
