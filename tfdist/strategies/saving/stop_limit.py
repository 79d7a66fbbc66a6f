"""The time that a stop by a signal may take, compared with the saves of a training."""

from __future__ import annotations

import math

import tensorflow.compat.v1 as v1

from tfdist.cluster.environment import read_grace


class StopLimit:
    """The launcher's limit for a stop; a save that is too long for it is reported once."""

    def __init__(self) -> None:
        self._limit_s = read_grace()

    def note(self, what: str, seconds: float) -> None:
        """Notes, from any thread, how many seconds it took until the files of a save were whole."""
        needed_s = 2 * seconds
        if self._limit_s is None or needed_s <= self._limit_s:
            return
        v1.logging.warning(
            f"The {what} took {seconds:.1f} s to save, and a stop by a signal may take "
            f"{self._limit_s:g} s. If the signal comes during a save, a second save follows and "
            "may not finish: steps since the last checkpoint would be lost. Raise --grace (for "
            "Slurm --save-before-end) "
            f"to {math.ceil(needed_s) + 1} at least."
        )
        self._limit_s = None
