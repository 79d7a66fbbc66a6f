"""A setting of the C library that keeps freed memory, for messages of the same size in each step.

The GNU C library gives large blocks back to the system as soon as they are free. A step with 33 MB
of gradients over gRPC then asked for 4,100 pages again, each of which the system clears. With the
memory kept the step took 1.74 instead of 1.92 times the ideal (`docs/performance.md`).

In TensorFlow 2 blocks above 32 MB are kept as well, for which the library has no other setting than
never to map them: a function's step makes several of them. With 33 MB of gradients over Horovod, a
step of `fit` asked for 4,600 pages again, and took 64 ms instead of 56 (40 without other workers).

What is kept in one arena is of no use to threads of another one, and the library makes up to eight
arenas for a core. So there is at most one for each core.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Mapping

# malloc.h of the GNU C library; mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -3, -4, -8
_NEVER = -1
_LARGEST_MMAP_THRESHOLD = 32 << 20  # The largest allowed on 64-bit systems.
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_")


def keep_memory(environ: Mapping[str, str], *, large_blocks: bool = False) -> bool:
    """Tells the C library of this process to keep freed memory; returns whether it does.

    Nothing is changed where the environment tells the library when to give memory back, nor with
    other C libraries than GNU's. `large_blocks` keeps those above 32 MB as well.
    """
    is_reported = any(name in environ for name in _VARIABLES)
    if is_reported or "glibc.malloc" in environ.get("GLIBC_TUNABLES", ""):
        return False
    return _keep(limits_arenas="MALLOC_ARENA_MAX" not in environ, large_blocks=large_blocks)


@functools.cache
def _keep(*, limits_arenas: bool, large_blocks: bool) -> bool:
    library = ctypes.CDLL(None)
    if not (hasattr(library, "gnu_get_libc_version") and hasattr(library, "mallopt")):
        return False
    if limits_arenas:
        library.mallopt(_M_ARENA_MAX, len(os.sched_getaffinity(0)))
    if large_blocks:
        library.mallopt(_M_MMAP_MAX, 0)
    can_use_again = library.mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
    return bool(library.mallopt(_M_TRIM_THRESHOLD, _NEVER) and can_use_again)
