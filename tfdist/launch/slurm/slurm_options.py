"""What `tfdist slurm` was asked for, checked before anything is written or submitted."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tfdist.cluster.instance_variables import nearest_multiples
from tfdist.launch.errors import UsageError
from tfdist.launch.options import run_rules as rules
from tfdist.launch.options.program import program_command
from tfdist.launch.options.run_rules import total_replicas
from tfdist.launch.slurm.slurm_parser import time_limit_s

_MOST_TASKS_PER_NODE = 64  # as many ports as `tfdist.cluster.slurm.first_port` leaves to a job
# What the script sets itself, and what to use instead.
_SET_HERE = {
    **{f"--{name}": f"--{name}" for name in ("nodes", "cpus-per-task", "gpus-per-task", "mem")},
    **{f"--{name}": f"--{name}" for name in ("job-name", "time", "partition", "account", "qos")},
    **{f"--{name}": f"--{name}" for name in ("requeue", "wait")},
    "--chdir": "nothing: it is the folder from which you submit",
    "--error": "--log-dir",
    "--export": "--env",
    "--gpus-per-node": "--gpus-per-task",
    "--no-requeue": "--requeue=no",
    "--ntasks": "--num-instances",
    "--ntasks-per-node": "--tasks-per-node",
    "--open-mode": "nothing: it is append",
    "--output": "--log-dir",
    "--signal": "--save-before-end",
}


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """The options of one job. What is None is left to Slurm, or not asked for.

    Attributes:
      command: What every worker runs; a .py file and "-m MODULE" have this Python before them.
      engine: "grpc" or "horovod".
      nodes: Nodes of the job.
      tasks_per_node: Workers on each of them.
      replicas_per_instance: Copies of the model in each worker.
      devices_per_replica: Devices of each copy.
      cpus_per_task: Processor cores of each worker.
      gpus_per_task: GPUs of each worker.
      mem: Memory of each node, as Slurm writes it.
      threads: Threads that compute in each worker; None is as many as it has cores.
      environment: Variables whose values the script has. Those without a value here go to the
        workers, too, from the environment in which the job is submitted.
      job_name: The job's name, and the logs'.
      time: Its time limit, as Slurm writes it.
      partition: Where it may run.
      account: Who is charged for it.
      qos: Its quality of service.
      sbatch_args: More options of sbatch.
      log_dir: The folder of the script and of all logs.
      save_before_end_s: How long before the time limit the workers are told.
      requeue: Whether it goes back into the queue.
      max_restarts: How often the workers may be started again within the job.
      grace_s: How long the other workers may take once one has failed.
      start_timeout_s: How long workers wait for each other at the start.
      dry_run: Whether to print the script only.
      wait: Whether to wait for the job's end.
    """

    command: tuple[str, ...]
    engine: str = "grpc"
    nodes: int = 1
    tasks_per_node: int = 1
    replicas_per_instance: int = 1
    devices_per_replica: int = 1
    cpus_per_task: int | None = None
    gpus_per_task: int | None = None
    mem: str | None = None
    threads: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    job_name: str = "train"
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    sbatch_args: tuple[str, ...] = ()
    log_dir: str = "logs"
    save_before_end_s: int = 120
    requeue: bool = False
    max_restarts: int = 0
    grace_s: float = 30.0
    start_timeout_s: float | None = None
    dry_run: bool = False
    wait: bool = False

    @property
    def num_instances(self) -> int:
        """Workers of the job."""
        return self.nodes * self.tasks_per_node


def slurm_options(
    given: argparse.Namespace, environ: Mapping[str, str] = os.environ
) -> SlurmOptions:
    """Checks what the parser has read.

    Raises:
      UsageError: If something is wrong or does not fit.
    """
    command = program_command(given.command, environ.get("PATH"))
    nodes, tasks_per_node = _places(given.num_instances, given.nodes, given.tasks_per_node)
    num_instances = nodes * tasks_per_node
    if given.evaluator:
        raise UsageError(
            "--evaluator has no place in a Slurm job, whose tasks all train. Leave it out: worker "
            "0 evaluates after the last step, and InMemoryEvaluatorHook does so before."
        )
    options = SlurmOptions(
        command=command,
        engine=given.engine,
        nodes=nodes,
        tasks_per_node=tasks_per_node,
        replicas_per_instance=total_replicas(num_instances, given.num_replicas) // num_instances,
        devices_per_replica=given.devices_per_replica,
        cpus_per_task=given.cpus_per_task,
        gpus_per_task=given.gpus_per_task,
        mem=given.mem,
        threads=given.threads,
        environment=_written(given.env or (), environ),
        job_name=given.job_name or _name_of(command),
        time=given.time,
        partition=given.partition,
        account=given.account,
        qos=given.qos,
        sbatch_args=_sbatch_words(given.sbatch_args or ()),
        log_dir=given.log_dir,
        save_before_end_s=given.save_before_end,
        requeue=given.requeue,
        max_restarts=given.max_restarts,
        grace_s=given.grace,
        start_timeout_s=given.start_timeout,
        dry_run=given.dry_run,
        wait=given.wait,
    )
    _check(options)
    rules.check_log_dir(Path(options.log_dir))
    return options


def _places(instances: int | None, nodes: int | None, per_node: int | None) -> tuple[int, int]:
    """Returns nodes and tasks per node, from those of the three numbers that are given."""
    if instances is None:
        return nodes or 1, per_node or 1
    if nodes is not None and per_node is not None:
        if instances != nodes * per_node:
            raise UsageError(
                f"--num-instances is {instances}, but --nodes {nodes} and --tasks-per-node "
                f"{per_node} make {nodes * per_node}. Leave one of the three out."
            )
        return nodes, per_node
    name, divisor = ("--tasks-per-node", per_node or 1) if nodes is None else ("--nodes", nodes)
    if instances % divisor:
        raise UsageError(
            f"--num-instances is {instances} and {name} is {divisor}, and every node gets equally "
            f"many. Use --num-instances {' or '.join(nearest_multiples(instances, divisor))}."
        )
    rest = instances // divisor
    return (rest, divisor) if nodes is None else (divisor, rest)


def _check(options: SlurmOptions) -> None:
    """Refuses options that do not fit each other."""
    if options.tasks_per_node > _MOST_TASKS_PER_NODE:
        raise UsageError(
            f"--tasks-per-node is {options.tasks_per_node}, and at most {_MOST_TASKS_PER_NODE} "
            "workers share a node. Use more nodes."
        )
    devices = options.replicas_per_instance * options.devices_per_replica
    if options.gpus_per_task not in (None, devices):
        raise UsageError(
            f"--gpus-per-task is {options.gpus_per_task}, but the devices of an instance are "
            f"{devices}: {options.replicas_per_instance} replicas of "
            f"{options.devices_per_replica}. Use --gpus-per-task {devices}."
        )
    cpus, threads = options.cpus_per_task, options.threads
    if cpus is not None and threads is not None and threads > cpus:
        raise UsageError(
            f"--threads is {threads}, but --cpus-per-task is {cpus}: they would share cores. "
            f"Use --cpus-per-task {threads}, or leave --threads out."
        )
    if options.time is not None and time_limit_s(options.time) <= options.save_before_end_s:
        raise UsageError(
            f"--time {options.time} is not longer than --save-before-end "
            f"{options.save_before_end_s} (seconds): the job would be told to stop at its start. "
            "Raise the one or lower the other."
        )


def _sbatch_words(texts: Sequence[str]) -> tuple[str, ...]:
    words = tuple(word for text in texts for word in shlex.split(text))
    for word in words:
        option = word.partition("=")[0]
        if option in _SET_HERE:
            raise UsageError(
                f"--sbatch-args has {option}, which the script sets itself. Remove it, and use "
                f"{_SET_HERE[option]}."
            )
    return words


def _written(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that the script writes down: those given with a value."""
    values = rules.environment(words, environ)
    named = {word.partition("=")[0] for word in words if "=" in word}
    return {name: value for name, value in values.items() if name in named}


def _name_of(command: Sequence[str]) -> str:
    """Returns a job name: that of the script or the module, else the program's."""
    program, *rest = (os.path.basename(word) for word in command)
    is_python = re.fullmatch(r"python[0-9.]*", program) is not None
    named = next((word for word in rest if not word.startswith("-")), program)
    stem = (named if is_python else program).removesuffix(".py")
    return re.sub(r"[^A-Za-z0-9_.-]", "-", stem).lstrip("-.")[:64] or "tfdist"
