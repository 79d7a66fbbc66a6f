"""Tables of the options of tfdist's commands in docs/reference/commands.md, from the declarations.

    option_tables.py            writes the tables into the page

A table stands between `<!-- options of COMMAND -->` and `<!-- end of options -->`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tfdist.launch.horovod.command import HOROVOD
from tfdist.launch.kubernetes.job_options import KUBERNETES
from tfdist.launch.options.command_line import CommandLine
from tfdist.launch.options.declaration import Option
from tfdist.launch.options.run_options import RUN
from tfdist.launch.slurm.slurm_options import SLURM

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "commands.md"
COMMANDS = (RUN, SLURM, KUBERNETES, HOROVOD)


def with_table(page: str, line: CommandLine) -> str:
    """Returns the text of a page with the table of the options as they are declared.

    Raises:
      ValueError: If the page has no place for the table.
    """
    start, end = f"<!-- options of {line.prog} -->\n", "<!-- end of options -->"
    place = re.compile(f"({re.escape(start)}).*?({end})", re.DOTALL)
    if not place.search(page):
        raise ValueError(f"there is no {start.strip()} with {end} after it. Add both lines.")
    table = "\n".join(_rows(line))
    return place.sub(lambda match: f"{match[1]}\n{table}\n\n{match[2]}", page)


def _rows(line: CommandLine) -> Iterator[str]:
    yield "| option | default | effect |"
    yield "|---|---|---|"
    group = None
    for option in line.declared:
        if not option.help:
            continue
        if option.group != group:
            group = option.group
            yield f"| **{group.title}** | | |"
        effect = f"{option.help}{'; repeatable' if option.is_list else ''}"
        yield f"| {_names(option)} | {_escaped(option.shown_default)} | {_escaped(effect)} |"


def _names(option: Option) -> str:
    first = option.long_name
    others = [name for name in option.names if name != first]
    metavar = "" if option.value is None else option.value.metavar
    joint = f"[={metavar}]" if option.bare is not None else f" {metavar}".rstrip()
    return ", ".join([f"`{first}{joint}`", *(f"`{name}`" for name in others)])


def _escaped(text: str) -> str:
    return re.sub(r"([|<>*_])", r"\\\1", text)


def main() -> None:
    """Writes the tables into the page."""
    page = PAGE.read_text(encoding="utf-8")
    for line in COMMANDS:
        page = with_table(page, line)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
