"""Handing a batch script to sbatch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tfdist.launch.errors import UsageError
from tfdist.launch.slurm.options import SlurmOptions

_INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def submit(script: str, options: SlurmOptions) -> int:
    """Submits the job, keeps its script beside its logs, and returns the exit code.

    Raises:
      UsageError: If there is no sbatch here.
    """
    folder = Path(options.log_dir)
    folder.mkdir(parents=True, exist_ok=True)
    command = ["sbatch", "--parsable", *(["--wait"] if options.wait else [])]
    try:
        sbatch = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
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
            return _INTERRUPTED


def _keep(script: str, folder: Path, job_name: str, job_id: str) -> Path:
    path = folder / f"{job_name}-{job_id}.sbatch"
    # It has the variables of --env: for its owner only.
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(script)
    return path


def _tell(job_id: str, path: Path, options: SlurmOptions) -> None:
    log, last = f"{options.log_dir}/{options.job_name}-{job_id}", options.num_instances - 1
    workers = f"{log}-0.log" if last == 0 else f"{log}-0.log to {log}-{last}.log"
    print(f"job {job_id}: {path}\nlogs: {log}.log, and the workers' {workers}", flush=True)
