"""The lines that a launcher says when a run goes on with fewer instances, with --min-instances."""

from __future__ import annotations

from collections.abc import Collection

from tfdist.cluster.tasks import listed


def lost_text(hosts: Collection[str]) -> str:
    """Returns that these hosts cannot be reached."""
    return f"{listed(sorted(hosts))} cannot be reached"


def too_few_text(hosts: Collection[str], min_instances: int) -> str:
    """Returns why the run cannot go on without these hosts."""
    return f"{lost_text(hosts)}, and fewer than --min-instances {min_instances} would be left"


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
