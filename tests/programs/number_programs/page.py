"""The page docs/keras-numbers.md, written from what came out of the programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from number_programs.known import reason_of
from number_programs.table import BOTH, PROGRAMS, Program

PAGE = Path(__file__).parents[3] / "docs" / "keras-numbers.md"

_HEAD = """\
# Keras programs and their numbers

{number} small programs run with Keras 3 and tf_keras. Layouts take turns: two replicas, two workers over
gRPC, two over Horovod, two workers with two replicas each, and three workers over gRPC. Plain Keras
runs them in one process with the global batch. Rows are sorted and unbalanced. The batches do not
divide by the replicas, and the last one has one row, so some replicas have none.

| word | means |
|---|---|
| exact | all numbers are those of plain Keras to 6 decimals (relative 1e-5), and bit-equal on all workers |
| said | one line says what differs; all other numbers are exact |
| refused | one line says what does not work, and what to write |
| different | none of these: a known fault |

Numbers are losses, metrics, results of `evaluate`, weights and predictions. `tests/programs/number_programs`
has the programs, and `python tests/programs/keras_numbers.py` runs each in all layouts.
`pytest tests/conformance/test_keras_numbers.py --write-keras-numbers` writes this page.
"""  # noqa: E501
_TITLES = {
    "overrides": "Parts of `fit` that a model defines itself",
    "inputs": "Input, epochs and steps",
    "weights_and_masks": "Masks, weights of rows and reductions",
    "losses": "Losses",
    "metrics": "Metrics",
    "layers": "Layers",
    "models": "Models, optimizers, callbacks",
}
_NAMES = {"keras": "Keras 3", "tf_keras": "tf_keras"}


def page_of(runs: Sequence[Any], made: Mapping[Any, Sequence[Any]]) -> str:
    """Returns the page of these runs and what came out of them."""
    parts = [_HEAD.format(number=len(PROGRAMS))]
    for kind, title in _TITLES.items():
        parts.append(f"\n## {title}\n\n| program | Keras 3 | tf_keras |\n|---|---|---|\n")
        for one in PROGRAMS.values():
            if one.kind == kind:
                cells = [_cell(one, [r for r in runs if r.name == one.name], k) for k in BOTH]
                parts.append(f"| {one.name.replace('_', ' ')} | {' | '.join(cells)} |\n")
    lines = [line for one in PROGRAMS.values() if (line := _line(one, runs, made))]
    if lines:
        parts.append("\n## The lines\n\n| program | line |\n|---|---|\n" + "".join(lines))
    return "".join(parts)


def _cell(one: Program, runs: Sequence[Any], library: str) -> str:
    if library not in one.libraries:
        return ""
    is_known = any(reason_of(run) for run in runs if run.library == library)
    return "different" if is_known else one.expected


def _line(one: Program, runs: Sequence[Any], made: Mapping[Any, Sequence[Any]]) -> str:
    """Returns the row with the line that the first run of a program has shown; "" without one."""
    text = one.says or one.refuses
    outcomes = [made[run][0] for run in runs if run.name == one.name and run in made]
    shown = [line for each in outcomes for line in [*each.lines, each.error] if text in line]
    if not text or not shown:
        return ""
    line = shown[0].replace("|", "\\|").replace("\n", " ")
    return f"| {one.name.replace('_', ' ')} | {line} |\n"
