"""Whether starting all workers again may help."""

from __future__ import annotations

from tfdist.cluster.exit_codes import BAD_CONFIGURATION, PORT_TAKEN
from tfdist.launch.failures import Failure
from tfdist.launch.run_options import RunOptions

_NOT_FOUND = (126, 127)  # a shell's codes for commands that it cannot run


def why_no_restart(failure: Failure, restarts: int, max_restarts: int) -> str | None:
    """Returns why the workers are not started again, or None if they are.

    Args:
      failure: The first failure.
      restarts: How often they were started again before.
      max_restarts: How often they may be.
    """
    if failure.kind == "exited" and failure.code in (BAD_CONFIGURATION, *_NOT_FOUND):
        return "the configuration is bad, and would be so again"
    if restarts >= max_restarts:
        return f"{restarts} of {max_restarts} restarts are used"
    return None


def is_new_port_needed(failure: Failure, options: RunOptions) -> bool:
    """Whether somebody took a port that we had chosen; the user's own choice is left to them."""
    return failure.code == PORT_TAKEN and failure.kind == "exited" and options.is_on_this_machine
