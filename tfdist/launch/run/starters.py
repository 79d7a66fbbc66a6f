"""The commands that start the agents: directly on this machine, or through mpirun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfdist.launch.machine.mpi import find_mpirun, mpirun_environment, mpirun_options
from tfdist.launch.machine.processes import python_command
from tfdist.launch.options.run_options import RunOptions
from tfdist.launch.workers.channel import ADDRESSES_VARIABLE, TOKEN_VARIABLE
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
      command: The command.
      environment: The variables that are set for it, in addition to the inherited ones.
      is_mpirun: True if it is mpirun, which ends with each start of the workers.
    """

    name: str
    workers: tuple[int, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    is_mpirun: bool = False


def starters_of(plan: Plan, options: RunOptions, environ: Mapping[str, str]) -> list[Starter]:
    """Returns the commands that start the agents of all workers.

    With Horovod, and with either engine on other machines, mpirun starts the agents of the
    instances, unless they stay over restarts. The agent of an evaluator is always started directly
    on this machine.
    """
    if not options.uses_mpirun or options.keeps_agents:
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
