"""The agent's side: a worker's program as a new process, or forked by the agent's standby.

The drawing in `interpreter.py` shows the messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from tfdist.cluster.instance_variables import OF_ONE_RUN
from tfdist.launch.machine.processes import die_with_parent
from tfdist.launch.standby import import_order, interpreter

# The longest time that a start waits for a standby that still imports: a new process would not
# be faster.
_READY_LIMIT_S = 15.0
# Time for a fork; the standby does nothing else.
_FORK_LIMIT_S = 5.0
# Variables that differ between the starts of one worker, and that no import reads.
_OF_ONE_START = (*OF_ONE_RUN, "OMPI_", "PRTE_", "ORTE_")


@dataclass(frozen=True, kw_only=True)
class WorkerProgram:
    """A worker's command, and the place in which it runs."""

    command: Sequence[str]
    cwd: str
    environment: Mapping[str, str]
    cores: Sequence[int] | None

    def start(
        self, stdout: int | IO[bytes], stderr: int | IO[bytes], *, pass_fds: Sequence[int] = ()
    ) -> subprocess.Popen[bytes]:
        """Starts a new process in a session of its own; the kernel kills it when this one ends."""
        parent = os.getpid()

        def take_place() -> None:
            die_with_parent(parent)
            if self.cores is not None:
                os.sched_setaffinity(0, self.cores)

        return subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=self.cwd,
            env=self.environment,
            pass_fds=pass_fds,
            start_new_session=True,
            preexec_fn=take_place,
        )

    @property
    def facts(self) -> tuple[Any, ...]:
        """The facts in which a worker must equal the one from whose imports it goes on."""
        shared = {k: v for k, v in self.environment.items() if not k.startswith(_OF_ONE_START)}
        return tuple(self.command), self.cwd, shared


class ForkedWorker:
    """A worker that a standby has forked; like `subprocess.Popen`, as far as agents use that."""

    def __init__(
        self, pid: int, stdout: IO[bytes], stderr: IO[bytes], read: Callable[[], Mapping[str, int]]
    ) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None
        self._read = read

    def wait(self) -> int:
        # Without an answer the standby has ended, and the kernel has killed the worker with it.
        self.returncode = self._read().get("code", -signal.SIGKILL)
        return self.returncode


class Standby:
    """The standby of one agent, or its absence.

    Attributes:
      imports_path: The file into which the first worker writes its imports.
      problem: The reason why the last `fork` had no use of the standby; "" without one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._lines: IO[str] | None = None
        self._for: WorkerProgram | None = None
        self._is_ready = False
        self.problem = ""
        self.imports_path = folder / "imports"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def observed(self, program: WorkerProgram) -> WorkerProgram:
        """Returns the program of a new worker, with a start-up file that notes its imports."""
        path = program.environment.get("PYTHONPATH", "")
        variables = {"PYTHONPATH": self._path_with(import_order, path), import_order.VARIABLE: path}
        return replace(program, environment={**program.environment, **variables})

    def begin(self, program: WorkerProgram) -> None:
        """Starts the standby of this worker, once that has written its imports."""
        if self._process is not None or not self.imports_path.exists():
            return
        environment = program.environment
        changes = json.loads(self.imports_path.read_text())["environment"]
        own, its = socket.socketpair()
        before = self._folder / "environment"
        before.write_text(json.dumps(dict(environment)))
        settings = {
            "connection": its.fileno(),
            "imports": str(self.imports_path),
            "environment": str(before),
        }
        variables = {
            **{name: value for name, value in environment.items() if name not in changes},
            **{name: value for name, value in changes.items() if value is not None},
            "PYTHONPATH": self._path_with(interpreter, environment.get("PYTHONPATH", "")),
            interpreter.VARIABLE: json.dumps(settings),
        }
        waiting = replace(program, environment=variables)
        with its, self._output("out").open("wb") as out, self._output("err").open("wb") as err:
            self._process = waiting.start(out, err, pass_fds=[its.fileno()])
        self._connection, self._lines = own, own.makefile("r")
        self._for = program

    async def fork(self, program: WorkerProgram) -> ForkedWorker | None:
        """Returns a new worker; None if a new process has to be started, and no standby is left.

        `problem` then has the reason, if there was a standby.
        """
        worker = None
        self.problem = ""
        if self._for is not None and program.facts == self._for.facts:
            with contextlib.suppress(OSError, ValueError, KeyError):
                worker = await asyncio.to_thread(self._fork, program)
            if worker is None and not self.problem:
                lines = self.output("err").splitlines()
                self.problem = lines[-1] if lines else "it has ended"
        if worker is None:
            self.end()
        return worker

    def output(self, stream: str) -> str:
        """Returns what the imports have printed to "out" or "err"."""
        with contextlib.suppress(OSError):
            return self._output(stream).read_text(errors="replace")
        return ""

    def end(self) -> None:
        """Kills the standby, and with it a worker of it that still runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._connection is not None and self._lines is not None:
            self._lines.close()
            self._connection.close()
        self._process = self._connection = self._lines = self._for = None
        self._is_ready = False
        self.imports_path.unlink(missing_ok=True)

    def _path_with(self, startup: ModuleType, path: str) -> str:
        """Returns the PYTHONPATH by which Python runs a copy of this module before any program."""
        assert startup.__file__ is not None
        folder = self._folder / startup.__name__.rpartition(".")[2]
        folder.mkdir(exist_ok=True)
        shutil.copy(startup.__file__, folder / "sitecustomize.py")
        return f"{folder}{os.pathsep}{path}" if path else str(folder)

    def _fork(self, program: WorkerProgram) -> ForkedWorker | None:
        assert self._connection is not None
        if not self._is_ready:
            self._connection.settimeout(_READY_LIMIT_S)
            self._is_ready = bool(self._read().get("ready"))
            if not self._is_ready:
                return None
        facts = {"environment": dict(program.environment), "cores": program.cores}
        data = json.dumps(facts).encode() + b"\n"
        pipes = [os.pipe(), os.pipe()]
        out, err = (os.fdopen(reader, "rb", buffering=0) for reader, _ in pipes)
        try:
            self._connection.settimeout(_FORK_LIMIT_S)
            sent = socket.send_fds(self._connection, [data], [writer for _, writer in pipes])
            self._connection.sendall(data[sent:])
            pid = self._read()["pid"]
        except (OSError, ValueError, KeyError):
            out.close()
            err.close()
            raise
        finally:
            for _, writer in pipes:
                os.close(writer)
        self._connection.settimeout(None)
        return ForkedWorker(pid, out, err, self._read)

    def _read(self) -> Mapping[str, int]:
        """Returns the standby's next message; an empty one if it has ended, or is late."""
        assert self._lines is not None and self._connection is not None
        try:
            line = self._lines.readline()
        except TimeoutError:
            self.problem = f"it was not ready after {self._connection.gettimeout():g} s"
            return {}
        except (OSError, UnicodeDecodeError):
            return {}
        return parse_answer(line)

    def _output(self, stream: str) -> Path:
        return self._folder / f"standby-{stream}"


def parse_answer(line: str) -> Mapping[str, int]:
    """Returns a message of the standby; an empty one if the line is none."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    is_sound = isinstance(answer, dict) and all(isinstance(fact, int) for fact in answer.values())
    return answer if is_sound else {}


def can_stand_by(command: Sequence[str], python: str) -> bool:
    """Returns whether a standby can fork workers with this command.

    It must be a script or a module that `python` itself runs, without options: another program, or
    an isolated Python (-I, -S, -E), would not wait for the agent.
    """
    if len(command) < 2:
        return False
    program = command[0] if os.sep in command[0] else shutil.which(command[0]) or ""
    is_python = re.fullmatch(r"python[0-9.]*", os.path.basename(program)) is not None
    is_same = os.path.dirname(program) == os.path.dirname(python)
    return is_python and is_same and (command[1] == "-m" or not command[1].startswith("-"))
