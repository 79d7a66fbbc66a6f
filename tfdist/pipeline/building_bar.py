"""The progress bar of building a pipelined model's graph."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

_TOTAL = 100


@contextmanager
def building_bar(*, shown: bool) -> Iterator[Callable[[float], None]]:
    """Shows one bar on stderr, from 0 to 100, while the graph is built.

    Yields:
      A function that takes the share that is done, from 0 to 1.
    """
    columns = (
        TextColumn("Graph compilation:"),
        TaskProgressColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # A notebook is no terminal, and rich's own bars there need a package more.
    console = Console(stderr=True, force_jupyter=False, force_terminal=sys.stderr.isatty())
    with Progress(*columns, console=console, disable=not shown) as progress:
        task = progress.add_task("", total=_TOTAL)
        yield lambda share: progress.update(task, completed=round(share * _TOTAL))
        progress.update(task, completed=_TOTAL)
