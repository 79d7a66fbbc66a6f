"""Results of the parts of the benchmark: ratios of times, tables, and a part made of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of every part.

    Attributes:
      rounds: How many turns of each contender count.
      models: Names of works, keys of `contenders/work.py`'s WORKS.
      cores: Those that workers may be pinned to, at least two.
      say: Takes a line of progress.
      workers: How many there are in turn where growth is measured.
      is_quick: Whether step times are those of the picture's contenders alone.
    """

    rounds: int
    models: tuple[str, ...]
    cores: tuple[int, ...]
    say: Callable[[str], None]
    workers: tuple[int, ...] = (1, 2, 3, 4)
    is_quick: bool = False


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """One line of a table: a ratio, with what is asked of it.

    Attributes:
      name: "CNN, Horovod: step time against ideal".
      value: The median.
      low: The lower quartile.
      high: The upper quartile.
      target: The worst value that will do; None if it is only reported.
      at_most: Whether the target is the largest allowed value, else the smallest.
      aim: What would be better still.
      note: How it is made, its bound, why it is missed.
    """

    name: str
    value: float
    low: float
    high: float
    target: float | None = None
    at_most: bool = True
    aim: float | None = None
    note: str = ""

    def is_reached(self) -> bool | None:
        """Says whether the value is as good as the target; None if nothing is asked."""
        if self.target is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table that is printed and written.

    Attributes:
      title: Stands above it.
      header: A name for each column.
      rows: As many cells in each as the header has.
      note: Stands below it.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(
                    f"Table {self.title!r}: a row has {len(row)} cells, and the header has "
                    f"{len(self.header)}. Give each row a cell for every column."
                )


@dataclass(frozen=True, kw_only=True)
class Part:
    """The results of one part of the benchmark.

    Attributes:
      name: As `run.py` has it: "steps", "growth", ...
      title: Its heading.
      about: Two to five sentences: what was measured and how, with units.
      tables: In the order in which they are shown.
      ratios: Likewise.
      missing: Peers that were left out, each with the reason and the fix.
      data: Raw times, as JSON has them.
    """

    name: str
    title: str
    about: str
    tables: tuple[Table, ...]
    ratios: tuple[Ratio, ...]
    missing: tuple[str, ...]
    data: dict[str, Any]


def ratio_of(times_a: Sequence[float], times_b: Sequence[float], **what: Any) -> Ratio:
    """Divides two contenders' times round by round.

    Args:
      times_a: Of the contender above the line, one a round.
      times_b: Of the one below.
      **what: The other attributes of the ratio: `name`, `target`, ...
    """
    if len(times_a) != len(times_b) or not times_a:
        raise ValueError(
            f"A ratio needs as many rounds above as below, found {len(times_a)} and "
            f"{len(times_b)}. Measure both in the same rounds, at least one."
        )
    low, value, high = quartiles([a / b for a, b in zip(times_a, times_b, strict=True)])
    return Ratio(value=value, low=low, high=high, **what)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns the lower quartile, the median and the upper quartile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high
