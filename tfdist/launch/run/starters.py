"""The commands that start the agents: directly on this machine, through mpirun, or through ssh."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tfdist.launch.machine.mpi import find_mpirun, mpirun_environment, mpirun_options
from tfdist.launch.machine.processes import python_command
from tfdist.launch.machine.remote_hosts import SLURM_JOB, own_names
from tfdist.launch.options.hosts import remote_shell
from tfdist.launch.options.run_options import RunOptions
from tfdist.launch.workers.channel import ADDRESSES_VARIABLE, READS_ENVIRONMENT, TOKEN_VARIABLE
from tfdist.launch.workers.plan import Plan, WorkerPlan

AGENT = "tfdist.launch.run.agent"
RELAY = "tfdist.launch.run.rank_relay"
# The variables for finding programs on another machine, and for connecting to the launcher. The
# command contains only their names, because other users of a machine can read its commands.
_EXPORTED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", ADDRESSES_VARIABLE, TOKEN_VARIABLE)
# Agents stop their workers within the grace period. mpirun must wait this much longer than that
# before it kills the agents.
_MPIRUN_PATIENCE_S = 15.0


@dataclass(frozen=True, kw_only=True)
class Starter:
    """A command that starts one or more agents.

    Attributes:
      name: Its name in messages: "mpirun", or "the agent of worker 1".
      workers: The indices of the workers for which it starts an agent.
      is_mpirun: True if it is mpirun, which ends with each start of the workers.
      sent: The names of variables that it reads from its standard input, as one line of JSON: ssh
        passes on no environment.
    """

    name: str
    workers: tuple[int, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    is_mpirun: bool = False
    sent: tuple[str, ...] = ()


def starters_of(plan: Plan, options: RunOptions, environ: Mapping[str, str]) -> list[Starter]:
    """Returns the commands that start the agents of all workers.

    On other machines ssh starts the agents, one call for each machine; with Horovod, or if
    mpirun's own options are given, mpirun does, unless the agents stay over restarts. The agent of
    an evaluator is always started directly on this machine.
    """
    if uses_ssh(options, environ):
        shell = remote_shell(options.mpi_global_args, environ)
        own = own_names()
        elsewhere = dict.fromkeys(one.host for one in plan.workers if one.host not in own)
        return [
            *(_direct(worker) for worker in plan.workers if worker.host in own),
            *(_ssh(shell, host, plan, environ) for host in elsewhere),
        ]
    if options.keeps_agents or (options.is_on_this_machine and options.engine == "grpc"):
        return [_direct(worker) for worker in plan.workers]
    others = [_direct(worker) for worker in plan.workers if not worker.replicas]
    return [_mpirun(AGENT, plan, options, environ), *others]


def relay_starter(plan: Plan, options: RunOptions, environ: Mapping[str, str]) -> Starter | None:
    """Returns the command that starts ranks for agents that mpirun does not start.

    None if mpirun starts the agents, or there are no ranks.
    """
    if not (options.keeps_agents and options.engine == "horovod"):
        return None
    return _mpirun(RELAY, plan, options, environ)


def uses_ssh(options: RunOptions, environ: Mapping[str, str]) -> bool:
    """Returns whether ssh starts the agents of other machines.

    In a job of Slurm mpirun does, if there is one: Slurm starts its daemons without ssh.
    """
    if options.is_on_this_machine or options.uses_mpirun:
        return False
    return SLURM_JOB not in environ or find_mpirun() is None


def _ssh(shell: Sequence[str], host: str, plan: Plan, environ: Mapping[str, str]) -> Starter:
    workers = tuple(worker.index for worker in plan.workers if worker.host == host)
    # The shell on the other machine reads the words once more.
    agents = shlex.join(python_command(AGENT, ",".join(map(str, workers)), READS_ENVIRONMENT))
    return Starter(
        name=f"{Path(shell[0]).name} to {host}",
        workers=workers,
        command=(*shell, host, agents),
        sent=tuple(name for name in _EXPORTED if _is_set(name, environ)),
    )


def _direct(worker: WorkerPlan) -> Starter:
    return Starter(
        name=f"the agent of {worker.name}",
        workers=(worker.index,),
        command=tuple(python_command(AGENT, str(worker.index))),
    )


def _mpirun(module: str, plan: Plan, options: RunOptions, environ: Mapping[str, str]) -> Starter:
    instances = [worker for worker in plan.workers if worker.replicas]
    mpirun = find_mpirun()
    assert mpirun is not None  # was checked
    words = [
        *(mpirun, *options.mpi_global_args),
        *mpirun_options(
            mpirun,
            is_local=options.is_on_this_machine,
            subnet=options.host_subnet,
            kill_after_s=options.grace_s + _MPIRUN_PATIENCE_S,
        ),
    ]
    for worker in instances:
        if worker.index > 0:
            words.append(":")
        words += ["-np", "1", "-H", worker.host]
        words += [word for name in _EXPORTED for word in ("-x", name) if _is_set(name, environ)]
        words += [*options.mpi_local_args, *options.instance_mpi_local_args.get(worker.index, ())]
        words += python_command(module, str(worker.index))
    return Starter(
        name="mpirun",
        workers=tuple(worker.index for worker in instances),
        command=tuple(words),
        environment=mpirun_environment(mpirun, environ),
        is_mpirun=True,
    )


def _is_set(name: str, environ: Mapping[str, str]) -> bool:
    return name in environ or name in (ADDRESSES_VARIABLE, TOKEN_VARIABLE)
