"""The command `tfdist slurm`: a run's batch script, and the processes that it starts."""

from collections.abc import Sequence

__all__ = ["main"]


def main(words: Sequence[str]) -> int:
    """Writes the batch script and submits it, or prints it; returns the exit code.

    `words` are those after `tfdist slurm`.
    If an option is invalid or a program is missing, it raises a UsageError, and submits nothing.
    """
    # Imported here, because the processes of a job need none of it.
    from tfdist.launch.slurm import command

    return command.main(words)


def __dir__() -> list[str]:
    return [*__all__]
