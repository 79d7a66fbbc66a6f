"""Records of a part of the benchmark: its results, the date, and the machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from results import Part, Ratio, Table


class RecordError(ValueError):
    """A file holds no records; the message is one line."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """A part, and how it was measured.

    Attributes:
      part: What was found.
      date: Of the end, "2026-01-31 12:00 UTC".
      rounds: How many turns of each contender counted.
      models: Which were asked for; none if all were.
      machine: What `machine.describe` said.
      cores_taken: How many cores other processes took meanwhile.
    """

    part: Part
    date: str
    rounds: int
    models: tuple[str, ...] = ()
    machine: dict[str, str]
    cores_taken: float


def write_records(path: Path, records: Mapping[str, Record]) -> None:
    """Writes the records as JSON; the file is replaced in one go."""
    content = {name: asdict(record) for name, record in records.items()}
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps({"parts": content}, indent=1) + "\n", encoding="utf-8")
    new.replace(path)


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
    tables = [
        Table(**one | {"header": tuple(one["header"]), "rows": tuple(map(tuple, one["rows"]))})
        for one in part["tables"]
    ]
    changed = {
        "tables": tuple(tables),
        "ratios": tuple(Ratio(**one) for one in part["ratios"]),
        "missing": tuple(part["missing"]),
    }
    models = tuple(found["models"])
    return Record(**found | {"part": Part(**part | changed), "models": models})
