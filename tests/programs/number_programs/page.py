"""The page docs/keras-numbers.md, written from what came out of the programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from number_programs.table import BOTH, KERAS_3, PROGRAMS, TF_KERAS, Program

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
_NAMES = {BOTH: "both Kerases", KERAS_3: "Keras 3 (not in tf_keras)", TF_KERAS: "tf_keras alone"}


def page_of(runs: Sequence[Any], made: Mapping[Any, Sequence[Any]]) -> str:
    """Returns the page of these runs and what came out of them."""
    parts = [_HEAD.format(number=len(PROGRAMS))]
    for kind, title in _TITLES.items():
        programs = [one for one in PROGRAMS.values() if one.kind == kind]
        parts.append(f"\n## {title}\n")
        for libraries, words in _NAMES.items():
            names = [
                f"`{one.name}`"
                for one in programs
                if one.libraries == libraries and set(_words_of(one)) <= {"exact", ""}
            ]
            if names:
                parts.append(f"\nExact with {words}: {', '.join(names)}.\n")
        rows = [_row(one, runs, made) for one in programs]
        if any(rows):
            head = "\n| program | Keras 3 | tf_keras | line |\n|---|---|---|---|\n"
            parts.append(head + "".join(rows))
    return "".join(parts)


def _words_of(one: Program) -> list[str]:
    """Returns the word for Keras 3 and that for tf_keras; "" if it does not run there."""
    return [one.expected if library in one.libraries else "" for library in BOTH]


def _row(one: Program, runs: Sequence[Any], made: Mapping[Any, Sequence[Any]]) -> str:
    """Returns the row of a program that is not exact with both; "" for the others."""
    words = _words_of(one)
    if set(words) <= {"exact", ""}:
        return ""
    text = one.says or one.refuses or one.keras_refuses
    outcomes = [made[run][0] for run in runs if run.name == one.name and run in made]
    shown = [
        line
        for each in outcomes
        for line in [*each.lines, *each.error.splitlines()]
        if text and text in line
    ]
    line = shown[0].strip().replace("|", "\\|") if shown else ""
    return f"| `{one.name}` | {words[0]} | {words[1]} | {line} |\n"
