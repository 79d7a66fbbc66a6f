"""The end of a worker's log, as it may be shown."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from tfdist.launch.escapes import last_state, strip_escapes

_MOST_BYTES = 65_536


def log_tail(path: Path) -> tuple[str, ...]:
    """Returns the last lines of a log, up to 64 KiB of it; none if it cannot be read."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - _MOST_BYTES))
            text = log.read().decode(errors="replace")
    except OSError:
        return ()
    lines = text.split("\n")
    # The first one is cut, unless it is all there is.
    return plain_lines(lines[1:] if size > _MOST_BYTES and len(lines) > 1 else lines)


def plain_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """Returns lines without escape sequences, and without empty ones at both ends."""
    plain = [strip_escapes(last_state(line.rstrip("\r\n"))).rstrip() for line in lines]
    filled = [number for number, line in enumerate(plain) if line]
    return tuple(plain[filled[0] : filled[-1] + 1]) if filled else ()
