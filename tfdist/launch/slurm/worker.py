"""What `srun`, or `mpirun` in a job, starts for each worker: it runs the worker's command.

It keeps what the command prints in the worker's own log and records how the command ended. Signals
reach the command directly: Slurm sends them to all processes of a task, Open MPI to the rank's
process group. A worker that was asked to save and stop, and did, leaves with 0: Slurm and Open MPI
would otherwise kill the others, which may still be saving.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from tfdist.cluster.exit_codes import SAVED_AND_STOPPED
from tfdist.launch.linux import die_with_parent
from tfdist.launch.slurm.records import Record, find_job_files

_NOT_OURS = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCONT),
    *(signal.SIGUSR1, signal.SIGUSR2),
)
_CANNOT_START = 127  # as a shell has it


def main(command: Sequence[str]) -> int:
    """Runs a worker's command to its end, and returns the exit code for this process."""
    rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("SLURM_PROCID", ""))
    files, worker, parent = find_job_files(), int(rank), os.getpid()
    record = Record(host=socket.gethostname(), pid=None, started_s=time.time())
    files.write(worker, record)
    # This process stays until the command has ended.
    signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_OURS)

    def prepare() -> None:
        die_with_parent(parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _NOT_OURS)

    with open(files.log_path(worker), "ab", buffering=0) as log:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=prepare,
            )
        except OSError as error:
            log.write(f"cannot start {command[0]}: {error.strerror or error}\n".encode())
            files.write(worker, replace(record, ended_s=time.time(), code=_CANNOT_START))
            return _CANNOT_START
    record = replace(record, pid=process.pid)
    files.write(worker, record)
    code = process.wait()
    files.write(worker, replace(record, ended_s=time.time(), code=code))
    if code in SAVED_AND_STOPPED.values():
        return 0
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
