"""The benchmark's two pages as Markdown: ten figures with the pictures, and the full record."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import introduction
from record import Record
from results import Ratio, Table

WIDTH = 100
SHORT_NOTE = 80  # Longer ones stand below the table.
# The figures of the page: part, name of the ratio, and what it means to a user.
KEY_FIGURES = (
    (
        "steps",
        "CNN, Horovod: step time against ideal",
        "CNN, 1.4 MB of gradients, Horovod: step over ideal",
    ),
    ("steps", "CNN, gRPC: step time against ideal", "CNN, gRPC: step over ideal"),
    (
        "steps",
        "MLP, Horovod: step time against ideal",
        "MLP, 33 MB of gradients, Horovod: step over ideal",
    ),
    (
        "steps",
        "CNN, Horovod: times as fast as Horovod, DistributedGradientTape",
        "CNN, Horovod: times as fast as Horovod's own DistributedGradientTape",
    ),
    (
        "steps",
        "MLP, Horovod: times as fast as PyTorch DDP, gloo",
        "MLP, Horovod: times as fast as PyTorch DDP over gloo",
    ),
    (
        "steps",
        "CNN, Horovod: times as fast as tf.estimator 2.15, MultiWorkerMirroredStrategy",
        "CNN, Horovod: times as fast as tf.estimator 2.15",
    ),
    (
        "applications",
        "ResNet-20, Horovod: efficiency of two workers",
        "ResNet-20 of examples/cnn, Horovod: throughput of two workers over twice one worker's",
    ),
    (
        "applications",
        "BERT mini, Horovod: efficiency of two workers",
        "BERT mini of examples/bert, Horovod: throughput of two workers over twice one worker's",
    ),
    (
        "slow-link",
        "MLP, Horovod, 200 Mbit/s: step time against max(computation, communication)",
        "MLP, Horovod, link of 200 Mbit/s: step over the longer of computation and communication",
    ),
    (
        "own-cost",
        "Start-up, tfdist, one worker: seconds beyond the least program with TensorFlow",
        "Start-up of one worker: seconds beyond the least TensorFlow program",
    ),
)
_NUMBER = re.compile(r"[-+]?[\d.,]+( ?(%|ms|s|MB|GB/s))?")


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture of a part.

    Attributes:
      path: As the document refers to it.
      text: What it shows, for those who can't see it.
    """

    path: str
    text: str


def page(
    records: Mapping[str, Record], pictures: Mapping[str, Sequence[Picture]], appendix: str
) -> str:
    """Returns the page: the key figures, then the pictures.

    Args:
      records: By the name of their part, in the order in which they are shown.
      pictures: Of each part, by the same name.
      appendix: The appendix, as the page refers to it.
    """
    sections = [introduction.PAGE.replace("APPENDIX", appendix), _key_figures(records)]
    for name, record in records.items():
        shown = [f"![{picture.text}]({picture.path})" for picture in pictures.get(name, ())]
        if shown:
            sections.append("\n\n".join([f"## {record.part.title}", *shown]))
    return "\n".join(section.strip() + "\n" for section in sections if section)


def document(records: Mapping[str, Record], page: str) -> str:
    """Returns the appendix: everything that was found.

    Args:
      records: By the name of their part, in the order in which they are shown.
      page: The page, as the appendix refers to it.
    """
    sections = [introduction.APPENDIX.replace("PAGE", page), _targets(records)]
    sections += [_section(record) for record in records.values()]
    sections.append(_machines(records))
    return "\n".join(section.strip() + "\n" for section in sections if section)


def markdown_table(table: Table) -> str:
    """Returns a table with its title and note; columns of numbers are set to the right."""
    rows = [[_cell(one) for one in row] for row in (table.header, *table.rows)]
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    right = [
        bool(table.rows) and all(_NUMBER.fullmatch(cell) or not cell for cell in column)
        for column in zip(*table.rows, strict=True)
    ] or [False] * len(widths)
    lines = [
        "| " + " | ".join(_set(c, w, r) for c, w, r in zip(row, widths, right, strict=True)) + " |"
        for row in rows
    ]
    rule = "|".join("-" * (w + 1) + (":" if r else "-") for w, r in zip(widths, right, strict=True))
    lines.insert(1, f"|{rule}|")
    paragraphs = [_wrap(table.title and f"**{table.title}**"), "\n".join(lines), _wrap(table.note)]
    return "\n\n".join(text for text in paragraphs if text) + "\n"


def ratio_table(ratios: Sequence[Ratio], title: str) -> Table:
    """Returns a row for each ratio: what was found, what was asked, the outcome, and short notes.

    Columns in which every cell is empty are left out.
    """
    header = ("ratio", "median", "quartiles", "target", "aim", "outcome", "note")
    rows = [
        (
            one.name,
            f"{one.value:.3f}",
            f"{one.low:.3f} to {one.high:.3f}",
            asked(one),
            "" if one.aim is None else f"{one.aim:g}",
            outcome(one),
            one.note if len(one.note) <= SHORT_NOTE else "see below",
        )
        for one in ratios
    ]
    kept = [column for column in range(len(header)) if any(row[column] for row in rows)]
    return Table(
        title=title,
        header=tuple(header[column] for column in kept),
        rows=tuple(tuple(row[column] for column in kept) for row in rows),
    )


def asked(ratio: Ratio) -> str:
    """Returns the target in words; empty if nothing is asked."""
    if ratio.target is None:
        return ""
    return f"at {'most' if ratio.at_most else 'least'} {ratio.target:g}"


def outcome(ratio: Ratio) -> str:
    """Says whether the target was reached, and by how much it was missed."""
    if ratio.target is None:
        return ""
    if ratio.is_reached():
        return "reached"
    short = abs(ratio.value - ratio.target)
    share = f" ({short / abs(ratio.target):.1%})" if ratio.target else ""
    return f"missed by {short:.3g}{share}"


def _key_figures(records: Mapping[str, Record]) -> str:
    """Returns the section with those key figures that were measured."""
    found = {
        (name, ratio.name): ratio for name, one in records.items() for ratio in one.part.ratios
    }
    rows = []
    for part, name, meaning in KEY_FIGURES:
        if (part, name) in found:
            ratio = found[part, name]
            rows.append((meaning, f"{ratio.value:.2f}", asked(ratio)))
    if not rows:
        return ""
    return "## Key figures\n\n" + markdown_table(
        Table(title="", header=("figure", "value", "target"), rows=tuple(rows))
    )


def _targets(records: Mapping[str, Record]) -> str:
    """Returns the section about the targets: a table for each part with those that were missed."""
    by_part = [
        (one.part.title, [ratio for ratio in one.part.ratios if ratio.target is not None])
        for one in records.values()
    ]
    outcomes = [ratio.is_reached() for _, ratios in by_part for ratio in ratios]
    if not outcomes:
        return ""
    summary = f"{sum(map(bool, outcomes))} of {len(outcomes)} targets are reached."
    if not all(outcomes):
        summary += " The others:"
    missed = [(title, [one for one in ratios if not one.is_reached()]) for title, ratios in by_part]
    tables = [_ratios(ratios, title) for title, ratios in missed if ratios]
    return "\n\n".join(["## Targets", summary, *tables])


def _ratios(ratios: Sequence[Ratio], title: str) -> str:
    """Returns the table of the ratios, and a point for each note that is too long for it."""
    points = [
        _wrap(f"- {one.name}: {one.note}", "  ") for one in ratios if len(one.note) > SHORT_NOTE
    ]
    table = markdown_table(ratio_table(ratios, title))
    return f"{table}\n{chr(10).join(points)}".strip()


def _section(record: Record) -> str:
    part = record.part
    paragraphs = [
        f"## {part.title}",
        _wrap(part.about),
        _wrap(_measured(record)),
        *(markdown_table(table) for table in part.tables),
    ]
    if part.missing:
        points = "\n".join(_wrap(f"- {one}", "  ") for one in part.missing)
        paragraphs.append(f"Left out:\n\n{points}")
    return "\n\n".join(text.strip() for text in paragraphs if text)


def _measured(record: Record) -> str:
    cores = record.machine.get("cores to run on", "?")
    return (
        f"Measured on {record.date}, {record.rounds} round{'s' * (record.rounds != 1)}, "
        f"{'only the model(s) ' + ', '.join(record.models) + ', ' if record.models else ''}"
        f"while other processes took {record.cores_taken:.2f} of {cores} cores."
    )


def _machines(records: Mapping[str, Record]) -> str:
    """Returns the section about where it was measured: one table for each machine."""
    seen: list[tuple[dict[str, str], list[str]]] = []
    for record in records.values():
        title = record.part.title
        for machine, parts in seen:
            if machine == record.machine:
                parts.append(title)
                break
        else:
            seen.append((record.machine, [title]))
    tables = [
        Table(
            title="" if len(seen) == 1 else "; ".join(parts),
            header=("what", "which"),
            rows=tuple(machine.items()),
        )
        for machine, parts in seen
    ]
    return "## The machine\n\n" + "\n".join(map(markdown_table, tables))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _set(cell: str, width: int, is_right: bool) -> str:
    return cell.rjust(width) if is_right else cell.ljust(width)


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
