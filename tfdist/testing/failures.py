"""Errors of a failed run for the test: the first worker that failed, its cause, its output."""

from collections.abc import Sequence

from tfdist.launch.failures.failure import names_text, signal_name
from tfdist.launch.failures.first_failure import WorkerEnd, first_failure
from tfdist.launch.functions.calls import WorkerFailedError

_TAIL_LINES = 30


class WorkerTimeoutError(WorkerFailedError):
    """Not all workers finished within the time limit; all were stopped.

    Attributes:
      late_workers: The indices of the workers that had not finished.
    """

    def __init__(self, message: str, *, late_workers: Sequence[int], output: Sequence[str]) -> None:
        super().__init__(message, worker=late_workers[0], exit_code=None, output=output)
        self.late_workers = tuple(late_workers)


def cause_of(failures: Sequence[WorkerEnd]) -> WorkerEnd | None:
    """Returns the failure that caused the others, or None without any."""
    first = min(failures, key=lambda failure: failure.time_s, default=None)
    return first_failure(failures, others_are_ended=True) or first


def failure_text(
    failure: WorkerEnd,
    *,
    start_s: float,
    num_workers: int,
    stopped: Sequence[int],
    output: str,
    traceback: str = "",
    launcher_output: str = "",
) -> str:
    """Returns the message about a run's first failure.

    The workers that still ran are `stopped`; `output` and `traceback` are the failed worker's,
    `launcher_output` is mpirun's. The time counts from `start_s`, when the workers had started.
    """
    # A worker may be over before the last one has started.
    after = f"after {max(0.0, failure.time_s - start_s):.1f} s"
    if failure.exit_code is None:
        how = f"{after}: {failure.error}"
    elif failure.exit_code < 0:
        how = f"{after}, killed by {signal_name(-failure.exit_code)}"
    else:
        how = f"{after}, with exit code {failure.exit_code}"
    first = " first" if num_workers > 1 else ""
    lines = f"worker {failure.worker} of {num_workers} failed{first}, {how}"
    if stopped:
        verb = "were" if len(stopped) > 1 else "was"
        lines += f"\n{names_text(stopped).capitalize()} {verb} then stopped."
    parts = [lines, traceback.rstrip(), tail_text(f"worker {failure.worker}", output)]
    if failure.exit_code is not None and launcher_output.strip():
        parts.append(tail_text("mpirun", launcher_output))
    return "\n\n".join(part for part in parts if part)


def timeout_text(
    *,
    timeout_s: float,
    num_workers: int,
    late: Sequence[int],
    outputs: Sequence[str],
    stacks: Sequence[str],
) -> str:
    """Returns the message about a time limit: the late workers, their stacks, their output."""
    verb = "had" if len(late) > 1 else "has"
    parts = [
        f"{names_text(late)} of {num_workers} {verb} not finished within the limit of "
        f"{timeout_s:g} s; all were stopped."
    ]
    for worker in late:
        parts.append(tail_text(f"worker {worker}", outputs[worker]))
        if stacks[worker].strip():
            parts.append(f"where worker {worker} was:\n{stacks[worker].strip()}")
    return "\n\n".join(parts)


def tail_text(name: str, output: str) -> str:
    """Returns the last lines of a process's output, under a line that names the process."""
    lines = output.strip().splitlines()
    if not lines:
        return f"{name} wrote nothing."
    cut = f"the last {_TAIL_LINES} of {len(lines)} lines" if len(lines) > _TAIL_LINES else "what"
    return f"{cut} {name} wrote:\n" + "\n".join(lines[-_TAIL_LINES:])
