"""The runs that are known to give other numbers; the list is to be empty.

A key is the name of a program, or a pattern of "library layout name"; the value says what comes.
"""

from __future__ import annotations

import fnmatch
from typing import Any

KNOWN: dict[str, str] = {}


def reason_of(run: Any) -> str:
    """Returns what is known to be wrong with a run; "" if nothing is."""
    if run.name in KNOWN:
        return KNOWN[run.name]
    found = (why for key, why in KNOWN.items() if fnmatch.fnmatchcase(str(run), key))
    return next(found, "")
