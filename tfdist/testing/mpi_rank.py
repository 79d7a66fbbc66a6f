"""The program that mpirun or horovodrun starts for each rank: it does the work, and ends with it.

The rank of a call or a forked script is forked by the fork server, with the environment that mpirun
gave to this process. This process stays until the rank ends: mpirun stops this one, then the server
stops the rank. The rank of another script is a child of this process in the same process group, to
which mpirun sends its signals.
"""

import os
import resource
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from tfdist.launch.machine.processes import die_with_parent
from tfdist.testing.job import Job, become_command, take_place


def main(job_path: str, socket_path: str) -> None:
    """Runs the job in the file as the rank of this process."""
    die_with_parent(os.getppid())
    job = replace(
        Job.from_json(Path(job_path).read_text()),
        name=f"worker-{os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ['HOROVOD_RANK']}",
        environ=dict(os.environ),
    )
    starts_itself = job.command and not job.forked
    _end_with(_run_command(job) if starts_itself else _run_in_server(job, socket_path))


def _run_in_server(job: Job, socket_path: str) -> int:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(socket_path)
        connection.sendall(job.to_json().encode() + b"\n")
        answer = connection.makefile().readline()
    return int(answer) if answer else 1  # no answer: the server has ended


def _run_command(job: Job) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        die_with_parent(parent)
        take_place(job)
        become_command(job)
    job.record_start(pid)
    # These signals reach the whole group; the command handles them.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    _, status = os.waitpid(pid, 0)
    returncode = os.waitstatus_to_exitcode(status)
    job.record_end(returncode)
    return returncode


def _end_with(returncode: int) -> NoReturn:
    """Ends this process with the exit code, or by the signal, that ended the work."""
    if returncode < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the work left a core file if any
        if -returncode != signal.SIGKILL:
            signal.signal(-returncode, signal.SIG_DFL)
        os.kill(os.getpid(), -returncode)
    os._exit(abs(returncode))
