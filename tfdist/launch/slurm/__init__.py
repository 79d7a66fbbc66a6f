"""The command `tfdist slurm`: a run's batch script, and the processes that it starts."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(words: Sequence[str]) -> int:
    """Writes the batch script and submits it, or prints it; returns the exit code.

    Raises:
      UsageError: If an option is invalid or a program is missing. Nothing was submitted.
    """
    from tfdist.launch.slurm.slurm_options import SLURM

    given = SLURM.parse(words)
    # Imported after --help, which needs none of it.
    from tfdist.launch.errors import UsageError
    from tfdist.launch.machine.mpi import find_mpirun, horovod_problem
    from tfdist.launch.slurm.script import batch_script, submit
    from tfdist.launch.slurm.slurm_checks import slurm_options

    options = slurm_options(given)
    problem = horovod_problem() if options.engine == "horovod" else None
    if problem is not None:
        raise UsageError(f"{problem} --engine grpc needs none of it.")
    script = batch_script(options, mpirun=find_mpirun())
    for notice in options.notices:
        print(f"tfdist slurm: {notice}", file=sys.stderr)
    if options.dry_run:
        print(script, end="")
        return 0
    return submit(script, options)


def __dir__() -> list[str]:
    return [*__all__]
