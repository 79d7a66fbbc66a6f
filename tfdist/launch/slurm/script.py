"""The text of a batch script."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence

from tfdist.cluster.instance_variables import DEVICES_PER_REPLICA, NUM_LOCAL_REPLICAS
from tfdist.launch.machine import Machine
from tfdist.launch.mpi import mpirun_environment, mpirun_options
from tfdist.launch.shares import Share, share_environment
from tfdist.launch.slurm.options import SlurmOptions

# The workers have their own time to save, before: see --save-before-end.
_MPIRUN_KILL_AFTER_S = 1.0
_WIDTH = 90
_DEFAULTS = {
    # A worker that is killed leaves its last line.
    "PYTHONUNBUFFERED": "1",
}


def batch_script(
    options: SlurmOptions, *, mpirun: str | None = None, environ: Mapping[str, str] = os.environ
) -> str:
    """Returns the script that sbatch takes.

    Args:
      options: The job.
      mpirun: The path of mpirun, for Horovod.
      environ: The environment in which the job is submitted: it goes to the workers, and what is
        set there about threads is left alone.
    """
    variables = _variables(options, mpirun, environ)
    lines = [
        "#!/bin/bash",
        "# Written by `tfdist slurm`. The log folder must be there when the job starts.",
        *(f"#SBATCH {word}" for word in _directives(options)),
        "",
        *(f"export {name}={shlex.quote(value)}" for name, value in sorted(variables.items())),
        f"python={shlex.quote(sys.executable)}",
        "",
        "# Starts the workers, passes signals on to them, and ends as the one that failed first.",
        _continued('exec "$python" -m tfdist.launch.slurm.job'),
        *_wrapped([*_watch(options), "--"]),
        *_wrapped(_starter(options, mpirun)),
        _continued('    "$python" -m tfdist.launch.slurm.worker'),
        f"    {shlex.join(options.command)}",
    ]
    return "\n".join(lines) + "\n"


def _directives(options: SlurmOptions) -> list[str]:
    gpus, of_whom = options.gpus_per_task, "task"
    if options.engine == "horovod" and gpus is not None:
        # mpirun starts one daemon a node, to which Slurm would give one task's GPUs. Of a node's
        # GPUs each rank takes its own by itself.
        gpus, of_whom = gpus * options.tasks_per_node, "node"
    wanted = {
        "job-name": options.job_name,
        "nodes": options.nodes,
        "ntasks-per-node": options.tasks_per_node,
        "cpus-per-task": options.cpus_per_task,
        f"gpus-per-{of_whom}": gpus,
        "mem": options.mem,
        "time": options.time,
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "output": f"{options.log_dir}/%x-%j.log",
        "open-mode": "append",
        # B: to the script alone, whose last process passes it on: mpirun is no step of the job.
        "signal": f"B:USR1@{options.save_before_end_s}",
        "export": "ALL",
    }
    lines = [f"--{name}={value}" for name, value in wanted.items() if value is not None]
    return [*lines, "--requeue" if options.requeue else "--no-requeue", *options.sbatch_args]


def _variables(
    options: SlurmOptions, mpirun: str | None, environ: Mapping[str, str]
) -> dict[str, str]:
    variables = {
        NUM_LOCAL_REPLICAS: str(options.replicas_per_instance),
        DEVICES_PER_REPLICA: str(options.devices_per_replica),
        **{name: value for name, value in _DEFAULTS.items() if name not in environ},
    }
    if options.threads is not None or options.cpus_per_task is not None:
        cores = tuple(range(options.cpus_per_task or 1))
        # GPUs are Slurm's to give: it sets CUDA_VISIBLE_DEVICES for each task.
        share = Share(num_workers=1, index=0, bind="none", threads=options.threads, num_devices=0)
        variables |= share_environment(share, Machine(cores=cores, numa_nodes=(cores,)), environ)
    if options.start_timeout_s is not None:
        variables["TFDIST_START_TIMEOUT_S"] = f"{options.start_timeout_s:g}"
    if options.engine == "horovod" and mpirun is not None:
        variables |= mpirun_environment(mpirun, {})
    return {**variables, **options.environment}


def _watch(options: SlurmOptions) -> list[str]:
    words = [f"--num-workers={options.num_instances}", f"--log-dir={options.log_dir}"]
    words.append(f"--grace={options.grace_s:g}")
    if options.max_restarts:
        words.append(f"--max-restarts={options.max_restarts}")
    if options.requeue:
        words.append("--requeue")
    return words


def _starter(options: SlurmOptions, mpirun: str | None) -> list[str]:
    per_node = options.tasks_per_node
    if options.engine == "horovod":
        wide = mpirun_options(
            mpirun or "mpirun", is_local=False, subnet=None, kill_after_s=_MPIRUN_KILL_AFTER_S
        )
        places = ("--map-by", f"ppr:{per_node}:node", "-np", str(options.num_instances))
        return [mpirun or "mpirun", *wide, *places]
    # srun takes some of these from the job in some versions only.
    words = [f"--nodes={options.nodes}", f"--ntasks-per-node={per_node}"]
    if options.cpus_per_task is not None:
        words.append(f"--cpus-per-task={options.cpus_per_task}")
    if options.gpus_per_task is not None:
        words.append(f"--gpus-per-task={options.gpus_per_task}")
    return ["srun", *words, "--distribution=block", "--kill-on-bad-exit=1"]


def _wrapped(words: Sequence[str]) -> list[str]:
    """Returns words as lines of a command that goes on after them."""
    lines = [shlex.quote(words[0])]
    for word in words[1:]:
        longer = f"{lines[-1]} {shlex.quote(word)}"
        lines[-1:] = [longer] if len(longer) < _WIDTH else [lines[-1], shlex.quote(word)]
    return [_continued(f"    {line}") for line in lines]


def _continued(line: str) -> str:
    return f"{line} \\"
