"""Which instances are executing a function together while the others do not.

Set by `execute_on_instances`, asked for by every strategy of this process: its collectives are then
between those instances.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# Of the process, not of a thread: replicas run in threads.
_executing: list[tuple[int, ...]] = []


def executing_instances() -> tuple[int, ...] | None:
    """Returns the instances that execute a function by themselves; None if all do the same."""
    return _executing[-1] if _executing else None


@contextmanager
def executing_on(instances: tuple[int, ...]) -> Iterator[None]:
    """Restricts collectives to these instances, of which this is one, in the `with` block."""
    _executing.append(instances)
    try:
        yield
    finally:
        _executing.pop()
