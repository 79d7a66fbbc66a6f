"""What a new process does before its own work: take its output and its place."""

import os
import signal
from typing import NoReturn

from tfdist.testing.job import Job


def take_place(job: Job) -> None:
    """Gives this process the job's input, output, environment and working folder."""
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
