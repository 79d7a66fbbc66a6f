"""What each worker of a Slurm job leaves behind: its log, and a record of how it ended.

Both lie beside the job's own log, in a folder that all nodes share:
<log folder>/<job name>-<job id>-<worker>.log, and .end. Slurm itself tells only the exit code of
the whole step: where one worker left with 7, and the others were then stopped, that is 143.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

_PREFIX_VARIABLE = "TFDIST_SLURM_FILES"


@dataclass(frozen=True, kw_only=True)
class Record:
    """One worker of the job.

    Attributes:
      host: The node that it runs on.
      pid: Its process; None if it could not be started.
      started_s: When it started, in seconds since 1970.
      ended_s: When it ended; None while it runs, or if nobody was left to tell.
      code: Its exit code, or minus the number of the signal that ended it.
    """

    host: str
    pid: int | None
    started_s: float
    ended_s: float | None = None
    code: int | None = None


@dataclass(frozen=True)
class JobFiles:
    """The files of a job's workers.

    Attributes:
      prefix: What all their paths begin with.
    """

    prefix: str

    def log_path(self, worker: int) -> Path:
        """Where all that the worker prints is kept."""
        return Path(f"{self.prefix}-{worker}.log")

    def write(self, worker: int, record: Record) -> None:
        """Writes a worker's record, so that a reader sees a whole one or none."""
        draft = Path(f"{self._record_path(worker)}.draft")
        draft.write_text(json.dumps(asdict(record)))
        draft.replace(self._record_path(worker))

    def read(self, num_workers: int) -> dict[int, Record]:
        """Returns the records that there are, by the workers' numbers."""
        found = {}
        for worker in range(num_workers):
            with contextlib.suppress(FileNotFoundError):
                found[worker] = Record(**json.loads(self._record_path(worker).read_text()))
        return found

    def remove(self, num_workers: int) -> None:
        """Removes the records; the logs stay."""
        for worker in range(num_workers):
            self._record_path(worker).unlink(missing_ok=True)

    def environment(self) -> dict[str, str]:
        """Returns the variable by which the workers find their files."""
        return {_PREFIX_VARIABLE: self.prefix}

    def _record_path(self, worker: int) -> Path:
        return Path(f"{self.prefix}-{worker}.end")


def find_job_files(environ: Mapping[str, str] = os.environ) -> JobFiles:
    """Returns the files of the job that this process is a worker of."""
    return JobFiles(environ[_PREFIX_VARIABLE])
