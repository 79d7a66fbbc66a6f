"""A part of the benchmark on the terminal."""

from __future__ import annotations

import report
import rich.table
from record import Record
from results import Table
from rich.console import Console
from rich.text import Text


def show_part(record: Record, console: Console) -> None:
    """Prints the tables, the ratios, what was left out, and how busy the machine was."""
    part = record.part
    console.rule(Text(part.title))
    for table in part.tables:
        _show(table, console)
    if part.ratios:
        _show(report.ratio_table(part.ratios, "Ratios"), console)
    for line in part.missing:
        console.print(f"Left out: {line}", style="yellow", markup=False)
    cores = record.machine["cores to run on"]
    taken = f"Other processes took {record.cores_taken:.2f} of {cores} cores meanwhile."
    console.print(taken, markup=False)


def _show(table: Table, console: Console) -> None:
    shown = rich.table.Table(title=Text(table.title), title_justify="left")
    for name in table.header:
        shown.add_column(Text(name))
    for row in table.rows:
        shown.add_row(*map(Text, row))
    console.print(shown)
    if table.note:
        console.print(table.note, markup=False)
