"""The text of a Slurm batch script."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence

from tfdist.cluster.environment import GRACE, START_TIMEOUT
from tfdist.cluster.instance_variables import DEVICES_PER_REPLICA, NUM_LOCAL_REPLICAS
from tfdist.launch.machine.cores_and_gpus import Machine, Share, share_environment
from tfdist.launch.machine.mpi import mpirun_environment, mpirun_options
from tfdist.launch.slurm.slurm_options import SlurmOptions
from tfdist.launch.workers.plan import default_variables

# Short, because the workers have had time to save before: see --save-before-end.
_MPIRUN_KILL_AFTER_S = 1.0
_WIDTH = 90


def batch_script(
    options: SlurmOptions, *, mpirun: str | None = None, environ: Mapping[str, str] = os.environ
) -> str:
    """Returns the text of the batch script for sbatch.

    The workers get `environ`, in which the job is submitted. Its settings for threads are not
    changed.
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
        # mpirun starts one daemon per node, and Slurm would give it the GPUs of one task. So the
        # GPUs are requested per node, and each rank selects its own.
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
        # "B" sends the signal only to the script, and the script's last process passes it on.
        # mpirun is not a step of the job, so Slurm would not signal it.
        "signal": f"B:USR1@{options.save_before_end_s}",
        "export": "ALL",
    }
    elastic = [] if options.min_instances is None else ["--no-kill"]
    requeue = "--requeue" if options.requeue else "--no-requeue"
    return [*_given(wanted), *elastic, requeue, *options.sbatch_args]


def _given(options: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in options.items() if value is not None]


def _variables(
    options: SlurmOptions, mpirun: str | None, environ: Mapping[str, str]
) -> dict[str, str]:
    variables = {
        NUM_LOCAL_REPLICAS: str(options.replicas_per_instance),
        DEVICES_PER_REPLICA: str(options.devices_per_replica),
        GRACE: str(options.save_before_end_s),
        **default_variables(environ),
    }
    if options.threads is not None or options.cpus_per_task is not None:
        cores = tuple(range(options.cpus_per_task or 1))
        # Slurm assigns the GPUs: it sets CUDA_VISIBLE_DEVICES for each task.
        share = Share(num_workers=1, index=0, bind="none", threads=options.threads, num_devices=0)
        variables |= share_environment(share, Machine(cores=cores, numa_nodes=(cores,)), environ)
    if options.start_timeout_s is not None:
        variables[START_TIMEOUT] = f"{options.start_timeout_s:g}"
    if options.engine == "horovod" and mpirun is not None:
        variables |= mpirun_environment(mpirun, {})
    return {**variables, **options.environment}


def _watch(options: SlurmOptions) -> list[str]:
    values = {
        "num-workers": options.num_instances,
        "log-dir": options.log_dir,
        "grace": f"{options.grace_s:g}",
        "max-restarts": options.max_restarts or None,
        "min-instances": options.min_instances,
        "snapshot-steps": options.snapshot_steps,
    }
    return [*_given(values), *(["--requeue"] if options.requeue else [])]


def _starter(options: SlurmOptions, mpirun: str | None) -> list[str]:
    per_node = options.tasks_per_node
    if options.engine == "horovod":
        wide = mpirun_options(
            mpirun or "mpirun", is_local=False, subnet=None, kill_after_s=_MPIRUN_KILL_AFTER_S
        )
        places = ("--map-by", f"ppr:{per_node}:node", "-np", str(options.num_instances))
        return [mpirun or "mpirun", *wide, *places]
    # Given explicitly, because only some versions of srun take all of these from the job.
    values = {
        "nodes": options.nodes,
        "ntasks-per-node": per_node,
        "cpus-per-task": options.cpus_per_task,
        "gpus-per-task": options.gpus_per_task,
    }
    return ["srun", *_given(values), "--distribution=block", "--kill-on-bad-exit=1"]


def _wrapped(words: Sequence[str]) -> list[str]:
    """Returns words as the lines of a command that continues after them."""
    lines = [shlex.quote(words[0])]
    for word in words[1:]:
        longer = f"{lines[-1]} {shlex.quote(word)}"
        lines[-1:] = [longer] if len(longer) < _WIDTH else [lines[-1], shlex.quote(word)]
    return [_continued(f"    {line}") for line in lines]


def _continued(line: str) -> str:
    return f"{line} \\"
