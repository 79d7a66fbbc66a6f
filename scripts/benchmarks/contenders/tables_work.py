"""The tables that look-ups are measured with, without any framework."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BATCHES = 8  # Other ids in each; they come again after so many steps.
ZIPF = 1.2  # A few rows are looked up most often, as words and films are.
LEARNING_RATE = 0.1  # of Adagrad


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of float32, and what a step looks up in it."""

    rows: int
    width: int  # Floats of a row.
    look_ups: int  # Of a worker and step.
    steps_per_turn: int  # So many take about half a second.

    @property
    def title(self) -> str:
        """Names the table in results."""
        size = self.rows * self.width * 4 / 1e6
        return f"{size:.0f} MB, {self.look_ups:,} rows a step"


TABLES = {
    "few": Table(rows=1_000_000, width=16, look_ups=4_096, steps_per_turn=50),
    "tenfold": Table(rows=10_000_000, width=16, look_ups=4_096, steps_per_turn=50),
    "many": Table(rows=1_000_000, width=64, look_ups=65_536, steps_per_turn=5),
}


def make_ids(table: Table, worker_index: int) -> np.ndarray:
    """Returns the rows to look up, int64 [BATCHES, look_ups]; a row may occur many times."""
    drawn = np.random.default_rng(worker_index).zipf(ZIPF, (BATCHES, table.look_ups))
    # Frequent rows lie anywhere in the table.
    return np.asarray(drawn % table.rows * 7_919 % table.rows, np.int64)
