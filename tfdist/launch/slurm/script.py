"""The text of a Slurm batch script, and its submission with sbatch."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdist.cluster.environment import GRACE, START_TIMEOUT
from tfdist.cluster.instance_variables import DEVICES_PER_REPLICA, NUM_LOCAL_REPLICAS
from tfdist.cluster.tasks import shown
from tfdist.launch.errors import UsageError
from tfdist.launch.machine.cores_and_gpus import Machine, Share, share_environment
from tfdist.launch.machine.mpi import mpirun_environment, mpirun_options
from tfdist.launch.slurm.slurm_options import SlurmOptions
from tfdist.launch.workers.plan import default_variables
from tfdist.process.exit_codes import INTERRUPTED

# Short, because the workers have had time to save before: see --save-before-end.
_MPIRUN_KILL_AFTER_S = 1.0
_WIDTH = 90
_AS_BYTES = "surrogateescape"  # words that are not UTF-8 stay the bytes that they are


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


def submit(script: str, options: SlurmOptions) -> int:
    """Submits the job, saves its script in the folder of its logs, and returns the exit code.

    Without sbatch on this machine, or if the folder cannot be made, it raises a UsageError.
    """
    folder = Path(options.log_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--log-dir {shown(str(folder))} cannot be made: {error.strerror}. Name another folder."
        ) from None
    command = ["sbatch", "--parsable", *(["--wait"] if options.wait else [])]
    try:
        sbatch = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, errors=_AS_BYTES
        )
    except FileNotFoundError:
        raise UsageError(
            "there is no sbatch on PATH, which submits jobs. Submit from a node of the cluster; "
            "--dry-run prints the script anywhere."
        ) from None
    with sbatch:
        assert sbatch.stdin is not None and sbatch.stdout is not None
        try:
            sbatch.stdin.write(script)
            sbatch.stdin.close()
            job_id = sbatch.stdout.readline().partition(";")[0].strip()
            if job_id:
                _tell(job_id, _keep(script, folder, options.job_name, job_id), options)
            return sbatch.wait()
        except KeyboardInterrupt:
            print("tfdist slurm: the job goes on; scancel ends it", file=sys.stderr)
            return INTERRUPTED


def _keep(script: str, folder: Path, job_name: str, job_id: str) -> Path:
    path = folder / f"{job_name}-{job_id}.sbatch"
    # Only the owner may read it, because it contains the variables of --env.
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(opened, "w", errors=_AS_BYTES) as file:
        file.write(script)
    return path


def _tell(job_id: str, path: Path, options: SlurmOptions) -> None:
    log, last = f"{options.log_dir}/{options.job_name}-{job_id}", options.num_instances - 1
    workers = f"{log}-0.log" if last == 0 else f"{log}-0.log to {log}-{last}.log"
    print(f"job {job_id}: {path}\nlogs: {log}.log, and the workers' {workers}", flush=True)
