"""What is said of a run before it starts."""

from __future__ import annotations

import os
from collections.abc import Iterator

from tfdist.launch.command_lines import command_lines, command_text
from tfdist.launch.plan import Plan
from tfdist.launch.run_options import RunOptions
from tfdist.launch.starters import starters_of
from tfdist.launch.topology import topology_text


def notices(options: RunOptions) -> Iterator[str]:
    """Yields a line for each thing that was given and means nothing here."""
    for notice in options.notices:
        yield f"tfdist: {notice}"


def description(
    options: RunOptions, plan: Plan, *, verbosity: int, width: int = 100
) -> Iterator[str]:
    """Yields the topology and, if asked for, the commands and environments."""
    if options.print_topology:
        yield topology_text(plan, width)
    if verbosity > 0:
        if options.uses_mpirun:
            mpirun = starters_of(plan, options, os.environ)[0]
            yield "# the agents that start the workers are started by"
            yield command_text(mpirun.command)
        yield from command_lines(plan)
