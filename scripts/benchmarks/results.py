"""Results of the benchmark's parts: medians and ratios, and the one file that keeps them.

The file has no single times: of each contender the median and the quartiles of a step, and of the
step over its bound, taken round by round.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from turn_taking import Turn

Spread: TypeAlias = tuple[float, float, float]
"""The lower quartile, the median and the upper quartile."""
Turns: TypeAlias = Mapping[str, Sequence[Turn]]
"""The turns of contenders that took turns with each other, in the order of the rounds."""
Pairs: TypeAlias = Iterable[tuple[str, str, str]]
"""Ratios to take: name, contender above the line, contender below."""

DIGITS = 4  # significant ones that are kept
LINE_WIDTH = 120


class RecordError(ValueError):
    """A file holds no records; the message is one line."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of every part.

    Attributes:
      rounds: How many turns of each contender count.
      models: Names of works, keys of `contenders/work.py`'s WORKS.
      cores: Those that workers may be pinned to, at least two.
      say: Takes a line of progress.
      is_quick: Whether to measure the contenders of the picture alone.
    """

    rounds: int
    models: tuple[str, ...]
    cores: tuple[int, ...]
    say: Callable[[str], None]
    is_quick: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contender."""

    ms: Spread  # Its step in milliseconds.
    over: Spread  # Its step over the bound of the same round.
    peak_mb: int | None = None  # The most memory that a worker had; None where that is not told.


@dataclass(frozen=True, kw_only=True)
class Part:
    """The results of one part of the benchmark."""

    title: str  # Its heading.
    about: str  # Two to five sentences: what was measured and how, and what the bound is.
    groups: Mapping[str, Mapping[str, Row]]  # The contenders of each model, by its title.
    ratios: Mapping[str, Spread]  # By name, such as "CNN, gRPC: step over ideal".
    missing: tuple[str, ...] = ()  # Peers that were left out, each with the reason and the fix.


@dataclass(frozen=True, kw_only=True)
class Record:
    """A part, and how it was measured."""

    part: Part  # What was found.
    date: str  # Of the end, "2026-01-31 12:00 UTC".
    rounds: int  # How many turns of each contender counted.
    machine: dict[str, str]  # What `machine.describe` said.
    cores_taken: float  # How many cores other processes took meanwhile.
    # Of groups that were measured before the others: how, by their titles.
    earlier: Mapping[str, str] = field(default_factory=dict)

    @property
    def measured(self) -> str:
        """A sentence on the groups that are not in `earlier`: when, how often, how busy it was."""
        return (
            f"Measured on {self.date}, {self.rounds} round{'s' * (self.rounds != 1)}, while other "
            f"processes took {self.cores_taken:.2f} of {self.machine.get('cores', '?')} cores."
        )


def with_earlier(new: Record, old: Record) -> Record:
    """Returns a record with the groups and ratios of an older one that it does not have."""
    kept = {
        title: old.part.groups[title] for title in old.part.groups if title not in new.part.groups
    }
    if not kept:
        return new
    names = {title.split(",")[0] for title in kept}
    ratios = {name: r for name, r in old.part.ratios.items() if name.split(",")[0] in names}
    part = replace(
        new.part, groups={**kept, **new.part.groups}, ratios={**ratios, **new.part.ratios}
    )
    earlier = {title: old.earlier.get(title, old.measured) for title in kept}
    return replace(new, part=part, earlier=earlier)


def quartiles(values: Sequence[float]) -> Spread:
    """Returns the lower quartile, the median and the upper quartile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def ratio(above: Sequence[float], below: Sequence[float]) -> Spread:
    """Divides two contenders' times round by round.

    Raises:
      ValueError: If there is no round, or not as many above as below.
    """
    if len(above) != len(below) or not above:
        raise ValueError(
            f"A ratio needs as many rounds above as below, found {len(above)} and {len(below)}. "
            "Measure both in the same rounds, at least one."
        )
    return quartiles([a / b for a, b in zip(above, below, strict=True)])


def seconds(turns: Sequence[Turn]) -> list[float]:
    """Returns the seconds of a step, one a round."""
    return [turn.seconds for turn in turns]


def row(times: Sequence[float], bound: Sequence[float], peak_bytes: int | None = None) -> Row:
    """Returns a contender's row from its seconds and those of its bound, one a round."""
    low, middle, high = quartiles(times)
    return Row(
        ms=(1e3 * low, 1e3 * middle, 1e3 * high),
        over=ratio(times, bound),
        peak_mb=None if peak_bytes is None else round(peak_bytes / 1e6),
    )


def rows(races: Sequence[Turns], bound: str) -> dict[str, Row]:
    """Returns the rows of all races; of a contender in several races, that of the first.

    The first race has the bound; one without it is compared with the first one's.
    """
    found: dict[str, Row] = {}
    for turns in races:
        bound_s = seconds(turns.get(bound, races[0][bound]))
        for name, own in turns.items():
            peak_bytes = max(turn.peak_bytes for turn in own)
            found.setdefault(name, row(seconds(own), bound_s, peak_bytes))
    return found


def ratios(races: Sequence[Turns], pairs: Pairs) -> dict[str, Spread]:
    """Returns those ratios whose contenders both took part, from the first race that has both."""
    found: dict[str, Spread] = {}
    for name, above, below in pairs:
        for turns in races:
            if above in turns and below in turns and name not in found:
                found[name] = ratio(seconds(turns[above]), seconds(turns[below]))
    return found


def write_records(path: Path, records: Mapping[str, Record]) -> None:
    """Writes the records as JSON; the file is replaced in one go."""
    content = {name: asdict(record) for name, record in records.items()}
    new = path.with_name(path.name + ".new")
    new.write_text(_text({"parts": content}) + "\n", encoding="utf-8")
    new.replace(path)


def _text(value: Any, indent: str = "") -> str:
    """Returns a value as JSON; what fits into a line stands on one."""
    if isinstance(value, float):
        value = float(f"{value:.{DIGITS}g}")
    if not isinstance(value, dict | list | tuple):
        return json.dumps(value)
    inner = indent + " "
    if isinstance(value, dict):
        parts = [f"{json.dumps(name)}: {_text(one, inner)}" for name, one in value.items()]
        begin, end = "{", "}"
    else:
        parts, begin, end = [_text(one, inner) for one in value], "[", "]"
    line = f"{begin}{', '.join(parts)}{end}"
    if len(indent) + len(line) <= LINE_WIDTH and "\n" not in line:
        return line
    return f"{begin}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{end}"


def read_records(path: Path) -> dict[str, Record]:
    """Reads what `write_records` wrote.

    Raises:
      RecordError: If the file can't be read, or holds something else.
    """
    fix = "Name a file that this benchmark wrote, or move it away."
    try:
        parts = json.loads(path.read_text(encoding="utf-8"))["parts"]
        return {name: _record(found) for name, found in parts.items()}
    except OSError as error:
        raise RecordError(f"{path} can't be read: {error.strerror}. {fix}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise RecordError(f"{path} holds no parts of a benchmark ({why}). {fix}") from None


def _record(found: dict[str, Any]) -> Record:
    part = found["part"]
    groups = {
        title: {
            name: Row(ms=_spread(one["ms"]), over=_spread(one["over"]), peak_mb=one["peak_mb"])
            for name, one in contenders.items()
        }
        for title, contenders in part["groups"].items()
    }
    spreads = {name: _spread(one) for name, one in part["ratios"].items()}
    changed = {"groups": groups, "ratios": spreads, "missing": tuple(part["missing"])}
    return Record(**found | {"part": Part(**part | changed)})


def _spread(values: Sequence[float]) -> Spread:
    low, middle, high = values
    return low, middle, high
