"""The command `tfdist slurm`: a run's batch script, and the processes that it starts."""

from __future__ import annotations

import argparse

from tfdist.launch.slurm.slurm_parser import add_arguments

__all__ = ["add_arguments", "main"]


def main(arguments: argparse.Namespace) -> int:
    """Writes the batch script and submits it, or prints it; returns the exit code.

    Raises:
      UsageError: If an option is invalid or a program is missing. Nothing was submitted.
    """
    from tfdist.launch.errors import UsageError
    from tfdist.launch.machine.mpi import find_mpirun, horovod_problem
    from tfdist.launch.slurm.script import batch_script, submit
    from tfdist.launch.slurm.slurm_options import slurm_options

    options = slurm_options(arguments)
    problem = horovod_problem() if options.engine == "horovod" else None
    if problem is not None:
        raise UsageError(f"{problem} --engine grpc needs none of it.")
    script = batch_script(options, mpirun=find_mpirun())
    if options.dry_run:
        print(script, end="")
        return 0
    return submit(script, options)
