"""The checks of `tfdist slurm`'s options, before anything is written or submitted."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.cluster.instance_variables import nearest_multiples
from tfdist.launch.errors import UsageError
from tfdist.launch.options import run_rules as rules
from tfdist.launch.options.program import program_command
from tfdist.launch.slurm.slurm_options import SlurmOptions, time_limit_s

_MOST_TASKS_PER_NODE = 64  # The number of ports that `tfdist.cluster.slurm.first_port` allows.
# Options of sbatch that the script sets itself -> the option to use instead.
_SET_HERE = {
    **{name: name for name in ("--nodes", "--cpus-per-task", "--gpus-per-task", "--mem")},
    **{name: name for name in ("--job-name", "--time", "--partition", "--account", "--qos")},
    **{name: name for name in ("--requeue", "--wait")},
    "--chdir": "nothing: it is the folder from which you submit",
    "--error": "--log-dir",
    "--export": "--env",
    "--gpus-per-node": "--gpus-per-task",
    "--no-kill": "--min-instances",
    "--no-requeue": "--requeue=no",
    "--ntasks": "--num-instances",
    "--ntasks-per-node": "--tasks-per-node",
    "--open-mode": "nothing: it is append",
    "--output": "--log-dir",
    "--signal": "--save-before-end",
}


def slurm_options(
    given: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> SlurmOptions:
    """Returns the job's options; a UsageError if a value is invalid or does not fit the others."""
    command = program_command(given.get("command", ()), environ.get("PATH"), prog="tfdist slurm")
    nodes, tasks_per_node = _places(
        given.get("num_instances"), given.get("nodes"), given.get("tasks_per_node")
    )
    num_instances = nodes * tasks_per_node
    if given.get("evaluator"):
        raise UsageError(
            "--evaluator has no place in a Slurm job, whose tasks all train. Leave it out: worker "
            "0 evaluates after the last step, and InMemoryEvaluatorHook does so before."
        )
    settled = {
        "command": command,
        "nodes": nodes,
        "tasks_per_node": tasks_per_node,
        "num_instances": num_instances,
        "num_replicas": rules.total_replicas(num_instances, given.get("num_replicas")),
        "environment": _written(given.get("environment", ()), environ),
        "job_name": given.get("job_name") or _name_of(command),
        "sbatch_args": _sbatch_words(given.get("sbatch_args", ())),
    }
    options = SlurmOptions(**{**given, **settled})
    _check(options)
    rules.check_folder("--log-dir", Path(options.log_dir))
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
    rules.check_restarts(
        most=options.num_instances,
        least=options.min_instances,
        snapshot_steps=options.snapshot_steps,
        max_restarts=options.max_restarts,
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
    words = rules.split_words(texts)
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
