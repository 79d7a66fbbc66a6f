"""Small Keras programs on replicas and workers give the numbers of plain Keras.

`tests/programs/number_programs` has the programs, and `tests/programs/keras_numbers.py` runs one by
hand. A run of the suite makes half of the programs, each with one Keras in turn, and deals the
layouts out; --write-keras-numbers makes all programs, and writes docs/keras-numbers.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import keras_numbers
import pytest
from keras_numbers import LAYOUTS, Outcome, Run
from number_programs.page import PAGE, page_of

# The first test of a layout makes all runs of it.
pytestmark = [pytest.mark.processes, pytest.mark.timeout(keras_numbers.LIMIT_S + 20)]

Outcomes = Callable[[Run], list[Outcome]]
# The parts of the layouts; a program takes the least time in one process, the most in 2x2.
_PARTS = {"1x2": 14, "grpc2": 2, "horovod2": 2, "2x2": 1, "grpc3": 1}
# Workers divide these inputs, and add over their rows, in other ways than the replicas of one.
_OF_WORKERS = {
    "weights_of_classes": "horovod2",
    "py_dataset": "2x2",
    "weights_of_rows_in_a_column": "grpc2",
    "batch_normalization_over_all_rows": "horovod2",
    "batch_normalization_over_all_rows_evaluated": "grpc2",
}
# Of these kinds a run of the suite makes every second program.
_HALVED = ("inputs", "layers", "losses", "metrics", "models", "weights_and_masks")


def dealt(runs: Sequence[Run], *, has_all: bool) -> list[Run]:
    """Returns one run for each program, with one Keras in turn, in a layout that it has.

    Without `has_all` those of half of the programs of some kinds.
    """
    candidates_of: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        candidates_of.setdefault((run.name, run.library), []).append(run)
    chosen: list[Run] = []
    uses: Counter[tuple[str, str]] = Counter()
    for number, (name, one) in enumerate(keras_numbers.PROGRAMS.items()):
        if one.kind in _HALVED and number % 2 and not has_all:
            continue
        library = one.libraries[number // 2 % len(one.libraries)]
        # The layout that is furthest behind its part of this Keras' runs.
        candidates = candidates_of[name, library]
        run = min(candidates, key=lambda one: uses[one.layout, one.library] / _PARTS[one.layout])
        uses[run.layout, library] += 1
        chosen.append(replace(run, layout=_OF_WORKERS.get(name, run.layout)))
    return chosen


ALL = keras_numbers.all_runs()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "run" in metafunc.fixturenames:
        has_all = bool(metafunc.config.getoption("--write-keras-numbers"))
        runs = sorted(dealt(ALL, has_all=has_all), key=lambda run: run.layout)
        metafunc.parametrize("run", runs, ids=str)


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, fake_cluster_server: Any) -> Iterator[Outcomes]:
    """Returns the outcomes of a run; all runs of a layout are made together."""
    from tfdist.testing.fake_cluster import FakeCluster

    # Those that were chosen, with -k as well.
    items = [getattr(item, "callspec", None) for item in request.session.items]
    runs = [spec.params["run"] for spec in items if spec and "run" in spec.params]
    runs = [run for run in runs if isinstance(run, Run)]
    cluster = FakeCluster(fake_cluster_server)
    made: dict[Run, list[Outcome]] = {}

    def outcomes(run: Run) -> list[Outcome]:
        if run not in made:
            needed = {*runs, *(one.reference for one in runs)}
            together = [one for one in needed if _process_of(one) == _process_of(run)]
            made.update(keras_numbers.run_layout(cluster, sorted(together)))
        return made[run]

    yield outcomes
    cluster.close()
    if request.config.getoption("--write-keras-numbers"):
        PAGE.write_text(page_of(runs, made), encoding="utf-8")


def _process_of(run: Run) -> str:
    """Returns the same text for runs that the same processes make."""
    return run.layout.split()[0]


def test_a_program_gives_the_numbers_of_plain_keras_or_says_so(
    outcomes: Outcomes, run: Run
) -> None:
    problem = keras_numbers.problem_of(run, outcomes(run), outcomes(run.reference)[0])
    assert not problem, problem


def test_each_program_is_made_and_each_layout_has_some() -> None:
    assert {run.name for run in dealt(ALL, has_all=True)} == {run.name for run in ALL}
    made = dealt(ALL, has_all=False)
    assert len({run.name for run in made}) >= 150
    assert {run.layout for run in made} == set(LAYOUTS)


def test_a_wrong_number_and_other_bits_of_a_worker_are_found() -> None:
    """Of the comparison itself."""
    import numpy as np

    run = next(run for run in ALL if run.program.expected == "exact" and not run.program.holds)
    right = Outcome(found={"loss": np.array([0.5, 0.25])}, lines=[])
    off = Outcome(found={"loss": np.array([0.5, 0.25001])}, lines=[])
    near = Outcome(found={"loss": np.array([0.5, 0.2500001])}, lines=[])
    assert keras_numbers.problem_of(run, [right, right], right) == ""
    assert "0.25001" in keras_numbers.problem_of(run, [off, off], right)
    assert "other bits" in keras_numbers.problem_of(run, [right, near], right)
