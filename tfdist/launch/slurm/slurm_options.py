"""The options of `tfdist slurm`, checked before anything is written or submitted."""

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

_MOST_TASKS_PER_NODE = 64  # The number of ports that `tfdist.cluster.slurm.first_port` allows.
# Options of sbatch that the script sets itself -> the option to use instead.
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
    """The options of one job. An option that is None is left to Slurm, or was not given.

    Attributes:
      command: The command of every worker. A .py file or "-m MODULE" is preceded by this Python.
      engine: "grpc" or "horovod".
      nodes: Number of nodes of the job.
      tasks_per_node: Number of workers on each node.
      replicas_per_instance: Number of copies of the model in each worker.
      devices_per_replica: Number of devices of each copy.
      cpus_per_task: Number of processor cores of each worker.
      gpus_per_task: Number of GPUs of each worker.
      mem: Memory of each node, in Slurm's notation.
      threads: Number of computing threads in each worker. None means its number of cores.
      environment: Variables that the script sets. Variables given without a value are not in it:
        the workers get them from the environment in which the job is submitted.
      job_name: Name of the job and of its logs.
      time: Time limit of the job, in Slurm's notation.
      partition: Partition in which the job may run.
      account: Account that is charged for the job.
      qos: Quality of service of the job.
      sbatch_args: Further options of sbatch.
      log_dir: Folder of the script and of all logs.
      save_before_end_s: Time in seconds before the time limit at which the workers are told to save
        and stop.
      requeue: Whether the job goes back into the queue.
      max_restarts: Number of times that the workers may be started again within the job.
      grace_s: Time in seconds that the other workers have to end after one has failed.
      start_timeout_s: Time in seconds that workers wait for each other at the start.
      dry_run: Whether to only print the script.
      wait: Whether to wait for the end of the job.
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
        """The number of workers of the job."""
        return self.nodes * self.tasks_per_node


def slurm_options(
    given: argparse.Namespace, environ: Mapping[str, str] = os.environ
) -> SlurmOptions:
    """Checks the parsed arguments and returns the options of the job.

    Raises:
      UsageError: If an option is invalid or does not fit the others.
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
    """Returns nodes and tasks per node, computed from the numbers that are given."""
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
    """Checks that the options fit each other.

    Raises:
      UsageError: If they do not.
    """
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
    """Returns the variables that the script sets: those given with a value."""
    values = rules.environment(words, environ)
    named = {word.partition("=")[0] for word in words if "=" in word}
    return {name: value for name, value in values.items() if name in named}


def _name_of(command: Sequence[str]) -> str:
    """Returns the default job name: the name of the script or module, else of the program."""
    program, *rest = (os.path.basename(word) for word in command)
    is_python = re.fullmatch(r"python[0-9.]*", program) is not None
    named = next((word for word in rest if not word.startswith("-")), program)
    stem = (named if is_python else program).removesuffix(".py")
    return re.sub(r"[^A-Za-z0-9_.-]", "-", stem).lstrip("-.")[:64] or "tfdist"
