"""The command `tfdist slurm`: writes a run's batch script and submits it with sbatch."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tfdist.launch.errors import UsageError
from tfdist.launch.machine.mpi import find_mpirun, horovod_problem
from tfdist.launch.slurm.script import batch_script
from tfdist.launch.slurm.slurm_checks import slurm_options
from tfdist.launch.slurm.slurm_options import SLURM, SlurmOptions
from tfdist.process.exit_codes import INTERRUPTED
from tfdist.process.text import shown

_AS_BYTES = "surrogateescape"  # words that are not UTF-8 stay the bytes that they are


def main(words: Sequence[str]) -> int:
    """Submits the job that `words` describe; returns the exit code."""
    options = slurm_options(SLURM.parse(words))
    problem = horovod_problem() if options.engine == "horovod" else None
    if problem is not None:
        raise UsageError(f"{problem} --engine grpc needs none of it.")
    script = batch_script(options, mpirun=find_mpirun())
    for notice in options.notices:
        print(f"tfdist slurm: {notice}", file=sys.stderr)
    if options.dry_run:
        print(script, end="")
        return 0
    return _submit(script, options)


def _submit(script: str, options: SlurmOptions) -> int:
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
            with contextlib.suppress(BrokenPipeError):  # It has ended, and says why.
                sbatch.stdin.write(script)
                sbatch.stdin.close()
            job_id = sbatch.stdout.readline().partition(";")[0].strip()
            if job_id:
                _keep(script, folder / f"{options.job_name}-{job_id}", job_id, options)
            return sbatch.wait()
        except KeyboardInterrupt:
            print("tfdist slurm: the job goes on; scancel ends it", file=sys.stderr)
            return INTERRUPTED


def _keep(script: str, prefix: Path, job_id: str, options: SlurmOptions) -> None:
    """Writes the script beside the job's logs, and says where all of them are."""
    try:
        # Only the owner may read it, because it contains the variables of --env.
        opened = os.open(f"{prefix}.sbatch", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(opened, "w", errors=_AS_BYTES) as file:
            file.write(script)
    except OSError as error:
        print(f"tfdist slurm: {prefix}.sbatch is not written: {error.strerror}", file=sys.stderr)
    last = options.num_instances - 1
    workers = f"{prefix}-0.log" if last == 0 else f"{prefix}-0.log to {prefix}-{last}.log"
    print(
        f"job {job_id}: {prefix}.sbatch\nlogs: {prefix}.log, and the workers' {workers}", flush=True
    )
