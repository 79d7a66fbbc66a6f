"""What only Linux's kernel can do for whoever starts processes."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>
_PR_SET_CHILD_SUBREAPER = 36
# Loaded before any fork: a forked process must not wait for the loader's lock.
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its parent ends, however it ends.

    Args:
      parent: The parent's process id, taken before the fork: if it has ended since, this
        process ends here.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose own parent ends.

    So none of them escapes whoever looks for them below this process.
    """
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
