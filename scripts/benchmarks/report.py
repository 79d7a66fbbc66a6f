"""The benchmark's two pages as Markdown: the summary with the pictures, and the full record."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from peers import MIRRORED_FIT
from results import Record, Row, Spread

WIDTH = 100
COMMAND = "python scripts/benchmarks/run.py"


@dataclass(frozen=True, kw_only=True)
class KeyFigure:
    """A figure, and the worst value that it may have."""

    part: str  # The part that measures it.
    ratio: str
    meaning: str  # What it means to a user.
    bound: float  # The worst value that will do.
    at_most: bool = True  # Whether the bound is the largest allowed value, else the smallest.
    why: str = ""  # Why it is not stricter; a sentence.

    def is_kept(self, value: float) -> bool:
        """Returns whether a value is as good as the bound."""
        return value <= self.bound if self.at_most else value >= self.bound

    def __str__(self) -> str:
        return f"at {'most' if self.at_most else 'least'} {self.bound:g}"


_TURNS = (
    "With a core for each worker Horovod's thread and the computation take turns at the "
    "scheduler's ticks of 4 ms"
)
KEY_FIGURES = (
    KeyFigure(
        part="steps",
        ratio="CNN, Horovod: step over ideal",
        meaning="CNN, 1.4 MB of gradients, Horovod: step over ideal",
        bound=1.7,
        why=f"{_TURNS}; on a machine with other processors the same program took 1.27.",
    ),
    KeyFigure(
        part="steps",
        ratio="CNN, gRPC: step over ideal",
        meaning="CNN, gRPC: step over ideal",
        bound=1.85,
        why="A message costs 0.4 ms of processor time, whatever its size, and the step takes 4 ms.",
    ),
    KeyFigure(
        part="steps",
        ratio="MLP, Horovod: step over ideal",
        meaning="MLP, 33 MB of gradients, Horovod: step over ideal",
        bound=1.5,
        why="The reduction alone takes 0.5 times the ideal, on the cores that compute.",
    ),
    *(
        KeyFigure(
            part="fit",
            ratio=f"{model}, Horovod, Keras 3: fit over plain fit",
            meaning=f"{model}, `fit` of Keras 3, Horovod: step over that of a worker alone",
            bound=bound,
            why=why,
        )
        for model, bound, why in (
            ("CNN", 1.4, f"{_TURNS}."),
            ("MLP", 1.35, "As for the Estimator's MLP."),
            ("ResNet-20", 1.05, ""),
        )
    ),
    *(
        KeyFigure(
            part="fit",
            ratio=f"{model}, Horovod: fit of tf_keras over a loop",
            meaning=f"{model}, Horovod: step of tf_keras' `fit` over that of a loop",
            bound=bound,
            why=why,
        )
        for model, bound, why in (
            ("CNN", 1.15, "Keras' own code around a step takes 0.7 ms of processor time."),
            ("MLP", 1.05, ""),
            ("ResNet-20", 1.05, ""),
        )
    ),
    *(
        KeyFigure(
            part="fit",
            ratio=f"{model}, tf_keras: times as fast as {MIRRORED_FIT}",
            meaning=f"{model}, `fit` of tf_keras, gRPC: times as fast as TensorFlow's own strategy",
            bound=bound,
            at_most=False,
            why=why,
        )
        for model, bound, why in (
            ("CNN", 1.5, "A message costs 0.4 ms of processor time, whatever its size."),
            (
                "MLP",
                1.9,
                "Bare, 33 MB take 34 to 41 ms, on the cores that compute. Over Horovod the step "
                "takes three quarters of the time.",
            ),
            ("ResNet-20", 1.0, "The reduction is a small part of the step."),
        )
    ),
    KeyFigure(
        part="applications",
        ratio="ResNet-20: efficiency of two workers, tfdist, Horovod",
        meaning="ResNet-20, Horovod: throughput of two workers over twice one worker's",
        bound=0.93,
        at_most=False,
    ),
    KeyFigure(
        part="applications",
        ratio="BERT mini: efficiency of two workers, tfdist, Horovod",
        meaning="BERT mini, Horovod: throughput of two workers over twice one worker's",
        bound=0.86,
        at_most=False,
        why="45 MB take 23 ms alone, beside a step of 324: computing first would give 0.91, and "
        "Horovod's thread waits on the core that computes.",
    ),
    KeyFigure(
        part="pipelines",
        ratio="BERT mini's encoder, m = 16: share of the ideal",
        meaning="Pipeline of two stages, BERT mini's encoder: share of the ideal speed-up",
        bound=0.95,
        at_most=False,
    ),
    KeyFigure(
        part="slow-link",
        ratio="MLP, Horovod, 200 Mbit/s: step over max(computation, communication)",
        meaning="MLP, link of 200 Mbit/s: step over the longer of computation and communication",
        bound=1.15,
    ),
    *(
        KeyFigure(
            part="tables",
            ratio=f"{size} MB, Horovod: divided over whole",
            meaning=f"Look-ups in a table of {size} MB, Horovod: divided over whole",
            bound=1.15,
        )
        for size in (64, 256)
    ),
    KeyFigure(
        part="own-cost",
        ratio="Start-up, tfdist, one worker: seconds beyond the least program with TensorFlow",
        meaning="Start-up of one worker: seconds beyond the least TensorFlow program",
        bound=0.5,
    ),
)

PAGE = f"""\
# Benchmarks

How fast tfdist's Estimator, Keras' `fit` and pipelines train, against other libraries that do the
same and against what is possible at best. One command writes this page and
[the record](RECORD), which has all medians, the method and the machine; no figure is written by
hand.

- Two workers, each a process pinned to its own core, train with 64 samples a worker.
- The contenders take turns in one run, and a ratio divides the times of neighbouring turns; the
  median over the rounds is shown.
- *Ideal* is a bound: the same step in both workers at once, without any reduction.

```bash
pip install -e ".[benchmark]"
{COMMAND}          # everything
{COMMAND} --quick  # the first picture: less than ten minutes, into build/quick-benchmark
```
"""

WORKERS = """\
## More workers

Up to eight workers were measured on one machine with two cores, so that they share cores.
[Measured once](lab/measured-once.md) has their step times, with 0.1 to 33 MB of gradients over both
engines, and nothing is extrapolated from them. On machines with a core for each worker and a
network between them, measure: `tfdist run` and `examples/bert` print samples a second.
"""

RECORD = f"""\
# The benchmark record

The figures behind [the benchmarks](PAGE), as `{COMMAND}` writes them.

- A *worker* is a process pinned to its own core, with one thread for computation. Data are in
  memory. All contenders on TensorFlow run with TF_ENABLE_ONEDNN_OPTS=1, its default on newer
  processors, and other libraries are used the way their own documentation recommends.
- *Contenders* are all started first and then take turns: A B A B ... in one run. One runs at a
  time; the others are stopped by a signal. The first turn of each warms up and is left out. A
  turn's time is that of the slowest worker, a step.
- A cell has a step's median in ms, and in brackets the median of its ratio to the bound of the same
  round. Times on shared machines change from hour to hour; ratios of neighbouring turns hold.
- All turns of a contender are of one start of its processes; another start may differ by 5 %.
- The command needs two idle cores; over Horovod what `tfdist horovod install` builds, for
  `tf.estimator` what `python scripts/old_tensorflow.py` makes, for the slow link root. PyTorch may
  be in an environment of its own: `TFDIST_BENCHMARK_TORCH` names its Python. What is missing is
  left out. `--only fit` measures one part again and keeps the others, `--models mlp` one model,
  `--rounds 5` is quicker, and `--from-json` writes the pages again from `lab/benchmarks.json`,
  which has the quartiles too.
"""

# The parts, the variants of tfdist that share a cell, and what a table shows.
COMPARISONS = (
    (("steps", "applications"), ("Horovod", "gRPC"), "The Estimator, over Horovod / over gRPC:"),
    (
        ("fit",),
        ("Keras 3", "tf_keras"),
        "`fit` of Keras 3 / of tf_keras, over Horovod against Horovod's own ways, and over gRPC "
        "against TensorFlow's:",
    ),
)
COMPARED = """\
How many times as fast tfdist trains with two workers. Below 1 the other library is faster. The less
a model has to reduce beside its computation, the less can libraries differ."""


def page(records: Mapping[str, Record], pictures: Mapping[str, tuple[str, str]]) -> str:
    """Returns the page: against other libraries, against the bounds, then the pictures.

    Records, and the path and text of each part's picture, are by the names of the parts.
    """
    sections = [PAGE.replace("RECORD", "lab/record.md"), _comparisons(records), _bounds(records)]
    for name, record in records.items():
        if name in pictures:
            path, text = pictures[name]
            sections.append(f"## {record.part.title}\n\n![{text}]({path})")
    return "\n".join(section.strip() + "\n" for section in [*sections, WORKERS] if section)


def record_page(records: Mapping[str, Record]) -> str:
    """Returns the record: a table for each part, and the machines."""
    sections = [RECORD.replace("PAGE", "../benchmarks.md")]
    sections += [section(record) for record in records.values()]
    return "\n".join([*(one.strip() + "\n" for one in sections), _machines(records)])


def section(record: Record) -> str:
    """Returns a part of the record."""
    part = record.part
    titles: dict[str, list[str]] = {record.measured: []}
    for title, how in record.earlier.items():
        titles.setdefault(how, []).append(title)
    measured = [
        f"{' and '.join(of)}: {how[0].lower()}{how[1:]}" if of else how
        for how, of in titles.items()
    ]
    left_out = [f"Left out: {one}" for one in part.missing]
    paragraphs = [f"## {part.title}", *map(_wrap, (part.about, *measured, *left_out))]
    return "\n\n".join([*paragraphs, group_table(part.groups)])


def group_table(groups: Mapping[str, Mapping[str, Row]]) -> str:
    """Returns a row for each contender and a column for each group, or the other way round.

    The longer of the two stands below one another.
    """
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    cells = {
        (title, name): _cell(found)
        for title, group in groups.items()
        for name, found in group.items()
    }
    if len(groups) > len(names):
        header: Sequence[str] = ["", *names]
        lines = [[title, *(cells.get((title, name), "") for name in names)] for title in groups]
    else:
        header = ["", *groups]
        lines = [[name, *(cells.get((title, name), "") for title in groups)] for name in names]
    return markdown_table(header, lines)


def _cell(found: Row) -> str:
    memory = "" if found.peak_mb is None else f"; {found.peak_mb:,} MB"
    return f"{_number(found.ms[1])} ({found.over[1]:.2f}{memory})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Returns an aligned table."""
    table = [[cell.replace("|", "\\|") for cell in one] for one in (header, *lines)]
    widths = [max(3, *map(len, column)) for column in zip(*table, strict=True)]
    rule = ["-" * width for width in widths]
    return "\n".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(one, widths, strict=True))} |"
        for one in (table[0], rule, *table[1:])
    )


def _all_ratios(records: Mapping[str, Record], *parts: str) -> dict[str, Spread]:
    return {
        name: spread
        for part in parts
        if part in records
        for name, spread in records[part].part.ratios.items()
    }


def _comparisons(records: Mapping[str, Record]) -> str:
    """Returns the tables of the other libraries: how many times as fast tfdist is."""
    tables = [
        f"{_wrap(about)}\n\n{table}"
        for parts, variants, about in COMPARISONS
        if (table := _times_as_fast(_all_ratios(records, *parts), variants))
    ]
    return "\n\n".join(["## Against other libraries", COMPARED, *tables]) if tables else ""


def _times_as_fast(ratios: Mapping[str, Spread], variants: Sequence[str]) -> str:
    """Returns a row for each library and a column for each model; empty if nothing is compared.

    Ratios named "MODEL, VARIANT: times as fast as LIBRARY" are taken; the variants share a cell.
    """
    pattern = re.compile(rf"(.+), ({'|'.join(variants)}): times as fast as (.+)")
    found: dict[tuple[str, str], dict[str, str]] = {}
    for name, (_, median, _) in ratios.items():
        if match := pattern.fullmatch(name):
            model, variant, peer = match.groups()
            found.setdefault((peer, model), {})[variant] = f"{median:.2f}"
    models, libraries = (list(dict.fromkeys(key[place] for key in found)) for place in (1, 0))
    lines = [
        [
            peer,
            *(
                " / ".join(of[one] for one in variants if one in of)
                for of in (found.get((peer, model), {}) for model in models)
            ),
        ]
        for peer in libraries
    ]
    return markdown_table([" / ".join(variants), *models], lines) if lines else ""


def _bounds(records: Mapping[str, Record]) -> str:
    """Returns the key figures that were measured, each with its bound and where that is from."""
    lines, reasons = [], []
    for figure in KEY_FIGURES:
        spread = _all_ratios(records, figure.part).get(figure.ratio)
        if spread is None:
            continue
        mark = "" if figure.is_kept(spread[1]) else "**worse**"
        lines.append([figure.meaning, f"{spread[1]:.2f}", str(figure), mark])
        if figure.why:
            reasons.append(_wrap(f"- {figure.meaning}: {figure.why}", "  "))
    if not lines:
        return ""
    table = markdown_table(["figure", "value", "bound", ""], lines)
    why = ["Why a bound is not stricter:", "\n".join(reasons)] if reasons else []
    return "\n\n".join(["## Against the bounds", table, *why])


def _machines(records: Mapping[str, Record]) -> str:
    """Returns where it was measured: one point for each machine."""
    seen: dict[str, list[str]] = {}
    for record in records.values():
        facts = ", ".join(f"{name} {value}" for name, value in record.machine.items())
        seen.setdefault(facts, []).append(record.part.title)
    points = [_wrap(f"- {'; '.join(parts)}: {facts}.", "  ") for facts, parts in seen.items()]
    return "## The machines\n\n" + "\n".join(points) + "\n"


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
