"""Trainings with Keras 3 and tf_keras: several workers and replicas equal one process.

Each layout of workers and replicas makes all of `keras_trainings` in one set of processes.
"""

from collections.abc import Callable
from typing import Any

import keras_trainings
import numpy as np
import pytest

pytestmark = pytest.mark.processes

Results = list[dict[str, dict[str, Any]]]  # Of each worker, by the training's name.

# Engine, workers, replicas of each.
LAYOUTS = {
    "alone": ("none", 1, 1),
    "grpc": ("grpc", 2, 1),
    "horovod": ("horovod", 2, 1),
    "grpc 2 x 2": ("grpc", 2, 2),
}
SHARED = [name for name in LAYOUTS if name != "alone"]


@pytest.fixture(scope="module")
def made_before() -> dict[str, Results]:
    """Returns the results of `results_of` so far, by layout."""
    return {}


@pytest.fixture
def results_of(fake_cluster: Any, made_before: dict[str, Results]) -> Callable[[str], Results]:
    """Makes all trainings in a layout; what came out is kept."""

    def run_all(num_replicas: int) -> Any:
        import keras_trainings  # By name: AutoGraph reads the source of its functions.

        return keras_trainings.run_all(num_replicas)

    def results_of(layout: str) -> Results:
        if layout not in made_before:
            engine, num_workers, num_replicas = LAYOUTS[layout]
            made_before[layout] = fake_cluster.run(
                run_all, num_replicas, engine=engine, num_workers=num_workers, timeout_s=400
            )
        return made_before[layout]

    return results_of


@pytest.fixture
def found(
    results_of: Callable[[str], Results], layout: str
) -> Callable[[str], list[dict[str, Any]]]:
    """Returns what a training gives on each worker of a layout; its error fails the test."""

    def found(name: str) -> list[dict[str, Any]]:
        own = [worker[name] for worker in results_of(layout)]
        for worker in own:
            assert "error" not in worker, worker["error"]
        return own

    return found


@pytest.mark.parametrize("name", keras_trainings.CASES)
@pytest.mark.parametrize("layout", SHARED)
def test_a_training_of_all_workers_equals_one_process(
    found: Callable[[str], list[dict[str, Any]]],
    results_of: Callable[[str], Results],
    name: str,
) -> None:
    alone = results_of("alone")[0][name]
    assert "error" not in alone, alone["error"]
    workers = found(name)
    for key, value in workers[0].items():
        if key.startswith("own_"):
            continue
        np.testing.assert_allclose(value, alone[key], atol=2e-6, err_msg=key)
        for worker in workers[1:]:
            np.testing.assert_array_equal(value, worker[key], err_msg=key)


@pytest.mark.parametrize("library", keras_trainings.LIBRARIES)
@pytest.mark.parametrize("layout", LAYOUTS)
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


@pytest.mark.parametrize("library", keras_trainings.LIBRARIES)
@pytest.mark.parametrize("layout", LAYOUTS)
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
    results_of: Callable[[str], Results],
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
