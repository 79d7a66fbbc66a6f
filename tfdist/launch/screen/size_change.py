"""The lines that a launcher prints when a run goes on with fewer instances: --min-instances."""

from __future__ import annotations


def going_on_text(why: str, now: int, whole: int) -> str:
    """Returns the number of instances with which the run goes on, after the reason."""
    return f"{why}: going on with {now} of {whole} instances"


def step_text(now: int, whole: int) -> str:
    """Returns how many examples a step has, with this many instances of the whole run."""
    if now == whole:
        return "a step has all of its examples again"
    return (
        f"a step has {now}/{whole} of its examples now if the batch size is each worker's, and "
        "all of them if it is global"
    )
