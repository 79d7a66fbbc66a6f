"""One process of a run: its work, its files in the run's folder, and its start."""

import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from tfdist.launch.functions.calls import write_whole


@dataclass(frozen=True, kw_only=True)
class Event:
    """The start or end of a process, on the clock that all processes of a machine share."""

    value: int  # the process id of a start, the exit status of an end (-9: killed by signal 9)
    time_s: float


@dataclass(frozen=True, kw_only=True)
class Job:
    """A process to start, and the files for its output, its result and its end."""

    folder: str
    name: str  # "worker-0", or "mpirun"
    environ: dict[str, str]
    cwd: str
    command: tuple[str, ...] = ()  # empty: make the call that lies in the folder
    forked: bool = False  # the command is a script for the Python that the server has forked
    sys_path: tuple[str, ...] = ()
    grace_s: float = 1.0  # between TERM and KILL

    @property
    def call_path(self) -> Path:
        """The call for every worker of the run: (function, args, kwargs), pickled."""
        return Path(self.folder, "call")

    @property
    def all_finished_path(self) -> Path:
        """A file that is made when every worker has its result."""
        return Path(self.folder, "all-finished")

    @property
    def stdout_path(self) -> Path:
        """Standard output; for a call, both outputs in the order in which they were written."""
        return Path(self.folder, f"{self.name}.stdout")

    @property
    def stderr_path(self) -> Path:
        """Standard error, of a command."""
        return Path(self.folder, f"{self.name}.stderr") if self.command else self.stdout_path

    @property
    def result_path(self) -> Path:
        return Path(self.folder, f"{self.name}.result")

    @property
    def stacks_path(self) -> Path:
        """The Python stacks of a call that was asked for them."""
        return Path(self.folder, f"{self.name}.stacks")

    def record_start(self, pid: int) -> None:
        self._record("started", pid)

    def record_end(self, returncode: int) -> None:
        self._record("ended", returncode)

    def started(self) -> Event | None:
        return self._recorded("started")

    def ended(self) -> Event | None:
        return self._recorded("ended")

    def output(self) -> str:
        """Returns the output of the process so far, standard output first."""
        return "".join(
            read_text(path) for path in dict.fromkeys((self.stdout_path, self.stderr_path))
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Job":
        fields: dict[str, Any] = json.loads(text)
        for name in ("command", "sys_path"):
            fields[name] = tuple(fields[name])  # JSON has lists only
        return cls(**fields)

    def _record(self, what: str, value: int) -> None:
        event = {"value": value, "time_s": time.monotonic()}
        write_whole(Path(self.folder, f"{self.name}.{what}"), json.dumps(event).encode())

    def _recorded(self, what: str) -> Event | None:
        try:
            text = Path(self.folder, f"{self.name}.{what}").read_text()
        except FileNotFoundError:
            return None
        return Event(**json.loads(text))


def read_text(path: Path) -> str:
    """Returns the text of a file, or nothing if it is not there yet."""
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""


def take_place(job: Job) -> None:
    """Replaces this process's input, output, environment and working folder by the job's."""
    for number, path in ((0, os.devnull), (1, job.stdout_path), (2, job.stderr_path)):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(job.environ)
    os.chdir(job.cwd)


def become_command(job: Job) -> NoReturn:
    """Replaces this process by the job's command."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, a fresh program does not
    try:
        os.execvpe(job.command[0], job.command, job.environ)
    except OSError as error:
        os.write(2, f"cannot start {job.command[0]}: {error}\n".encode())
        os._exit(127)
