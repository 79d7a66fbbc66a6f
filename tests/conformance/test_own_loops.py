"""Loops of one's own in TensorFlow 2: values of replicas, input, variables and gradients.

Each layout of workers and replicas runs all programs of `own_loops` in one set of processes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import own_loops
import pytest

pytestmark = pytest.mark.processes

PROGRAMS = "own_loops"
# Engine, workers, replicas of each.
LAYOUTS = {
    "alone": ("none", 1, 1),
    "horovod": ("horovod", 2, 1),
    "grpc 2 x 2": ("grpc", 2, 2),
}
SHARED = [name for name in LAYOUTS if name != "alone"]
# Over Horovod, whose processes take longest, are the programs with all kinds of messages.
NAMES = {
    "horovod": [
        *("reduce", "reduce_in_a_loop", "reduce_an_uneven_axis", "gather", "distributed_values"),
        *("replica_context", "gradients_through_nested_tapes", "unknown_length_in_function"),
        *(
            "datasets_of_other_lengths",
            "functions_given_to_run",
            "random_numbers",
            "cluster_resolver",
            "variables",
            "variable_without_aggregation",
        ),
    ]
}


@pytest.fixture
def replicas(layout: str) -> list[list[int]]:
    """The numbers of the replicas of each worker."""
    _, num_workers, num_replicas = LAYOUTS[layout]
    return [[w * num_replicas + r for r in range(num_replicas)] for w in range(num_workers)]


@pytest.mark.parametrize(
    ("layout", "name"),
    [(layout, name) for layout in SHARED for name in NAMES.get(layout, own_loops.CASES)],
)
def test_all_workers_have_what_one_process_has(
    compare_with_one_process: Callable[..., None], name: str
) -> None:
    compare_with_one_process(name, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_of_replicas_are_reduced(
    found: Callable[[str], list[dict[str, Any]]], replicas: list[list[int]]
) -> None:
    numbers = np.concatenate(replicas)
    for own, worker in zip(replicas, found("reduce"), strict=True):
        assert worker["own_count"] == len(numbers)
        for way in ("function", "eager"):
            assert worker[f"own_{way}_sum"] == np.sum(numbers + 1)
            assert worker[f"own_{way}_mean"] == np.mean(numbers + 1)
            assert worker[f"own_{way}_axis"] == np.mean(numbers)
            assert worker[f"own_{way}_vector"] == [np.sum(numbers)] * 3
            assert worker[f"own_{way}_local"] == [number + 1 for number in own]
    for own, worker in zip(replicas, found("distributed_values"), strict=True):
        assert worker["own_local"] == [10 + number for number in own]
        assert worker["own_sum"] == np.sum(2 * (numbers + 10))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_replicas_are_gathered(
    found: Callable[[str], list[dict[str, Any]]], replicas: list[list[int]]
) -> None:
    numbers = np.concatenate(replicas)
    rows = [[number, number] for number in numbers for _ in range(number + 1)]
    for worker in found("gather"):
        assert worker["own_rows"] == worker["own_in_function"] == rows
        assert worker["own_columns"] == [list(numbers)] * 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_replicas_combine_values_in_their_own_code(
    found: Callable[[str], list[dict[str, Any]]], replicas: list[list[int]]
) -> None:
    numbers = np.concatenate(replicas)
    total, mean = np.sum(numbers), np.mean(numbers)
    expected = {
        "sum": total,
        "mean": mean,
        "nested": 2 * total + len(numbers),
        "gathered": [[number, number] for number in numbers],
        "uneven": [number for number in numbers for _ in range(number + 1)],
        "merged": total + mean,
    }
    for own, worker in zip(replicas, found("replica_context"), strict=True):
        for name, value in expected.items():
            for way in ("function", "eager"):
                each = worker[f"own_{way}_{name}"]
                # TensorFlow gives a tensor that all replicas return back once.
                assert len(each) == (1 if name == "merged" else len(own))
                for one in each:
                    np.testing.assert_array_equal(one, value, err_msg=f"{way} {name}")


@pytest.mark.parametrize(
    ("layout", "name", "rows"),
    [
        *(("grpc 2 x 2", f"loop_{way}", 24) for way in ("in_python", "in_function", "like_orbit")),
        *(("grpc 2 x 2", f"unknown_length_in_{way}", 21) for way in ("python", "eager")),
        *((layout, "unknown_length_in_function", 21) for layout in LAYOUTS),
    ],
)
def test_the_steps_of_a_loop_and_its_rows_are_counted(
    found: Callable[[str], list[dict[str, Any]]], name: str, rows: int
) -> None:
    workers = found(name)
    assert [worker["counted_steps"] for worker in workers] == [3] * len(workers)
    assert sum(worker["own_counted_rows"] for worker in workers) == rows


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_replica_runs_a_function_of_its_own(
    found: Callable[[str], list[dict[str, Any]]], replicas: list[list[int]]
) -> None:
    for own, worker in zip(replicas, found("functions_given_to_run"), strict=True):
        assert worker["own_replicas"] == [own] * 3


@pytest.mark.parametrize("layout", SHARED)
def test_each_replica_draws_numbers_of_its_own(
    found: Callable[[str], list[dict[str, Any]]],
    results_of: Callable[[str], list[dict[str, dict[str, Any]]]],
) -> None:
    each = [own for worker in found("random_numbers") for own in worker["own_numbers"]]
    assert each[0] == results_of("alone")[0]["random_numbers"]["own_numbers"][0]
    numbers = np.ravel(each)
    assert len(set(numbers.tolist())) == len(numbers)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_resolver_names_each_worker_and_one_chief(
    found: Callable[[str], list[dict[str, Any]]], layout: str
) -> None:
    workers = found("cluster_resolver")
    assert [worker["own_chief"] for worker in workers] == [True] + [False] * (len(workers) - 1)
    assert {worker["own_workers"] for worker in workers} == {len(workers)}
    names = [worker["own_task"] for worker in workers]
    assert names == ([""] if layout == "alone" else ["worker 0", "worker 1"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_of_other_lengths_end_all_workers_after_the_same_step(
    found: Callable[[str], list[dict[str, Any]]], replicas: list[list[int]]
) -> None:
    workers = found("datasets_of_other_lengths")
    for way in ("python", "function"):
        assert {worker[f"own_{way}_steps"] for worker in workers} == {4 // len(replicas[0])}
        for worker in workers:
            assert np.isfinite(worker[f"own_{way}_w"]).all()
            assert worker[f"own_{way}_w"] == workers[0][f"own_{way}_w"]


@pytest.mark.parametrize("layout", SHARED)
def test_a_weight_that_each_replica_assigns_is_refused(
    found: Callable[[str], list[dict[str, Any]]],
) -> None:
    for worker in found("variable_without_aggregation"):
        assert worker["own_refused"] == (
            "own_weight:0 is assigned in a replica's code and has no aggregation, so replicas "
            "would have different values. Make it with aggregation="
            "tf.VariableAggregation.MEAN (or SUM, ONLY_FIRST_REPLICA), or assign it outside "
            "strategy.run."
        )


def _combined(values: "np.ndarray[Any, Any]", aggregation: str) -> float:
    """Returns one value for those of all replicas."""
    if aggregation in ("SUM", "MEAN"):
        return float(values.sum() if aggregation == "SUM" else values.mean())
    return float(values[0])


@pytest.mark.parametrize("kind", own_loops.VARIABLES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_variables_are_combined_as_their_aggregation_says(
    found: Callable[[str], list[dict[str, Any]]],
    replicas: list[list[int]],
    kind: str,
) -> None:
    synchronization, aggregation = (one.name for one in own_loops.VARIABLES[kind])
    numbers = np.concatenate(replicas).astype(float)
    is_own = synchronization == "ON_READ" or aggregation == "NONE"  # Of each replica.
    for own, worker in zip(replicas, found("variables"), strict=True):
        value = np.ones(len(numbers))

        def outside(value: Any, own: list[int] = own) -> Any:
            if synchronization == "ON_READ":
                return pytest.approx(_combined(value, aggregation))
            return pytest.approx(value[own[0]])

        assert worker[f"own_{kind}_before"] == outside(value)
        for step in ("assign", "add"):
            change = numbers + (2 if step == "assign" else 0.5)
            if not is_own:
                halves = np.full(len(numbers), 0.5)
                added = _combined(numbers + 1, aggregation) - _combined(halves, aggregation)
                change = _combined(numbers + 2, aggregation) if step == "assign" else added
            value = change + (value if step == "add" else np.zeros(len(numbers)))
            np.testing.assert_allclose(worker[f"own_{kind}_{step}"], value[own], err_msg=step)
            assert worker[f"own_{kind}_{step}_outside"] == outside(value), step
            assert worker[f"own_{kind}_{step}_cross"] == outside(value), step
