"""The program of one worker of a Slurm job: it runs the command and writes a log and a record.

Both files are in the folder of the job's log, which all nodes share:
<log folder>/<job name>-<job id>-<worker>.log, and .<start>.end. The log has the output of the
command, and the record has its exit code. The record is needed because Slurm reports only the exit
code of the whole step. If one worker exits with 7 and the others are then stopped, that is 143.

Signals reach the command directly: Slurm sends them to all processes of a task, and Open MPI to the
process group of the rank. A worker that has saved and stopped on request exits with 0. Otherwise
Slurm and Open MPI would kill the other workers, which may still be saving.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tfdist.cluster.instance_variables import RESTART_COUNT, read_restart_count
from tfdist.launch.machine.processes import die_with_parent
from tfdist.process.exit_codes import NOT_FOUND, STOP_CODES, shell_code

_PREFIX_VARIABLE = "TFDIST_SLURM_FILES"

_NOT_OURS = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCONT),
    *(signal.SIGUSR1, signal.SIGUSR2),
)


@dataclass(frozen=True, kw_only=True)
class WorkerRecord:
    """The record of one worker of the job.

    Attributes:
      pid: The process id of its command, or None if the command could not be started.
      started_s: Time of its start, in seconds since 1970.
      ended_s: Time of its end, in seconds since 1970. None while it runs, or if no process was left
        to write it.
      code: Its exit code, or minus the number of the signal that ended it.
    """

    host: str
    pid: int | None
    started_s: float
    ended_s: float | None = None
    code: int | None = None


@dataclass(frozen=True)
class JobFiles:
    """The files of a job's workers, with the records of one start of them.

    Attributes:
      prefix: The path of all files, up to the number of a worker.
      start: The job's restarts before this start. A worker of an earlier one, on a node that was
        lost and is back, does not write into the record of its successor.
    """

    prefix: str
    start: int = 0

    def log_path(self, worker: int) -> Path:
        return Path(f"{self.prefix}-{worker}.log")

    def write(self, worker: int, record: WorkerRecord) -> None:
        """Writes a worker's record atomically: a reader sees a complete record or none."""
        draft = Path(f"{self._record_path(worker)}.draft")
        draft.write_text(json.dumps(asdict(record)))
        draft.replace(self._record_path(worker))

    def read(self, num_workers: int) -> dict[int, WorkerRecord]:
        found = {}
        for worker in range(num_workers):
            with contextlib.suppress(FileNotFoundError):
                found[worker] = WorkerRecord(**json.loads(self._record_path(worker).read_text()))
        return found

    def remove(self, num_workers: int) -> None:
        """Removes the records of all starts and keeps the logs."""
        for worker in range(num_workers):
            for path in glob.glob(f"{glob.escape(self.prefix)}-{worker}.*end"):
                Path(path).unlink(missing_ok=True)

    def environment(self) -> dict[str, str]:
        """Returns the environment variables from which the workers get the paths of their files."""
        return {_PREFIX_VARIABLE: self.prefix, RESTART_COUNT: str(self.start)}

    def _record_path(self, worker: int) -> Path:
        return Path(f"{self.prefix}-{worker}.{self.start}.end")


def main(command: Sequence[str]) -> int:
    """Runs a worker's command until it ends, and returns the exit code for this process."""
    rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("SLURM_PROCID", ""))
    worker, parent = int(rank), os.getpid()
    files = JobFiles(os.environ[_PREFIX_VARIABLE], read_restart_count(os.environ))
    record = WorkerRecord(host=socket.gethostname(), pid=None, started_s=time.time())
    files.write(worker, record)
    # Signals are blocked, so that this process runs until the command has ended.
    signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_OURS)

    def prepare() -> None:
        die_with_parent(parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _NOT_OURS)

    with open(files.log_path(worker), "ab", buffering=0) as log:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=prepare
            )
        except OSError as error:
            log.write(f"cannot start {command[0]}: {error.strerror or error}\n".encode())
            files.write(worker, replace(record, ended_s=time.time(), code=NOT_FOUND))
            return NOT_FOUND
    record = replace(record, pid=process.pid)
    files.write(worker, record)
    code = process.wait()
    files.write(worker, replace(record, ended_s=time.time(), code=code))
    return 0 if code in STOP_CODES else shell_code(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
