"""The runs that are known to give other numbers; the list is to be empty.

A key is the name of a program, or a pattern of "library layout name"; the value says what comes.
"""

from __future__ import annotations

import fnmatch
from typing import Any

KNOWN: dict[str, str] = {
    "sparse_features_of_keras_3": "a replica without rows ends in a stack",
    "sparse_features": "a replica without rows is refused, in a line",
    "loss_ctc": "a replica without rows ends in a stack",
    "tf_keras * optimizer_nadam": "it counts traces of a function, and in plain Keras eager steps",
}


# Programs in which a worker fails or waits for good; they are not made on several workers.
STOPPING = {
    "loss_ctc",
    "sparse_features",
    "sparse_features_of_keras_3",
}


def is_made(run: Any) -> bool:
    """Returns whether a run can be made without an end of its layout."""
    return run.layout == "1x2" or run.name not in STOPPING


def reason_of(run: Any) -> str:
    """Returns what is known to be wrong with a run; "" if nothing is."""
    if run.name in KNOWN:
        return KNOWN[run.name]
    found = (why for key, why in KNOWN.items() if fnmatch.fnmatchcase(str(run), key))
    return next(found, "")
