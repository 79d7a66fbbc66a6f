"""Trainings with Keras 3 and tf_keras: several workers and replicas equal one process.

Each layout of workers and replicas makes its part of `keras_trainings` in one set of processes.
"""

from collections.abc import Callable
from typing import Any

import keras_trainings
import numpy as np
import pytest

pytestmark = pytest.mark.processes

PROGRAMS = "keras_trainings"
# Engine, workers, replicas of each.
LAYOUTS = {
    "alone": ("none", 1, 1),
    "horovod": ("horovod", 2, 1),
    "grpc 2 x 2": ("grpc", 2, 2),
    "2 replicas": ("none", 1, 2),
}
SHARED = [name for name in LAYOUTS if name != "alone"]

# One process makes all trainings that have something to compare. Each of one library is made by
# several workers as well, and that of the other library by two replicas; random values are drawn in
# all. Workers take longest.
TURNS = ["horovod", "2 replicas", "grpc 2 x 2", "2 replicas"]
KINDS = list(dict.fromkeys(name.split()[1] for name in keras_trainings.CASES))


def is_made_in(layout: str, name: str) -> bool:
    """Returns whether a shared layout makes a training."""
    library, kind = name.split()
    number = KINDS.index(kind) + keras_trainings.LIBRARIES.index(library)
    return kind == "dropout" or TURNS[number % len(TURNS)] == layout


NAMES = {
    layout: [name for name in keras_trainings.CASES if is_made_in(layout, name)]
    for layout in SHARED
}
# Of these the tests know what comes out.
KNOWN = ("overflow", "batch_norm_of_a_replica")
NAMES["alone"] = [name for name in keras_trainings.CASES if not name.endswith(KNOWN)]


def in_layouts_of(kind: str) -> pytest.MarkDecorator:
    """Runs a test for each library, in the shared layout that makes the training."""
    names = [(layout, name) for layout in SHARED for name in NAMES[layout]]
    cases = [(layout, name.split()[0]) for layout, name in names if name.endswith(f" {kind}")]
    return pytest.mark.parametrize(("layout", "library"), cases)


@pytest.mark.parametrize(
    ("layout", "name"),
    [(layout, name) for layout in SHARED for name in NAMES[layout] if name in NAMES["alone"]],
)
def test_a_training_of_all_workers_equals_one_process(
    compare_with_one_process: Callable[..., None], name: str
) -> None:
    compare_with_one_process(name, atol=2e-6)


@in_layouts_of("overflow")
def test_an_overflow_on_one_replica_skips_the_step_on_all(
    found: Callable[[str], list[dict[str, Any]]], library: str
) -> None:
    workers = found(f"{library} overflow")
    # tf_keras counts a step that it skips.
    iterations = [1, 1, 2] if library == "keras" else [1, 2, 3]
    for worker in workers:
        assert [worker[f"scale_{number}"] for number in range(3)] == [1024.0, 512.0, 512.0]
        assert [worker[f"iterations_{number}"] for number in range(3)] == iterations
        weights = [worker[f"own_weights_{number}"] for number in range(3)]
        assert weights == [workers[0][f"own_weights_{number}"] for number in range(3)]
        assert weights[0] == weights[1]
        assert weights[1] != weights[2]


@in_layouts_of("batch_norm_of_a_replica")
def test_batch_norm_of_each_replica_has_equal_statistics_in_the_end(
    found: Callable[[str], list[dict[str, Any]]], library: str
) -> None:
    workers = found(f"{library} batch_norm_of_a_replica")
    for worker in workers:
        assert worker["own_weights"] == workers[0]["own_weights"]


@pytest.mark.parametrize("library", keras_trainings.LIBRARIES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dropout_differs_between_replicas_and_steps_but_not_between_runs(
    found: Callable[[str], list[dict[str, Any]]],
    results_of: Callable[[str], Any],
    layout: str,
    library: str,
) -> None:
    _, num_workers, num_replicas = LAYOUTS[layout]
    for worker in found(f"{library} dropout"):
        kept = np.array(worker["own_kept"])  # [steps, replicas of all workers, 32]
        np.testing.assert_array_equal(kept, worker["own_again"])
        patterns = {tuple(row) for step in kept for row in step}
        assert len(patterns) == 2 * num_workers * num_replicas
    if library == "keras":  # The first replica draws what one process does.
        alone = np.array(results_of("alone")[0]["keras dropout"]["own_kept"])
        np.testing.assert_array_equal(kept[:, 0], alone[:, 0])
