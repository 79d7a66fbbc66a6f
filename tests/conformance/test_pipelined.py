"""Workers with a pipeline each compute what one pipeline with all their micro-batches does."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

VARIABLES = {"table", "hidden", "bias"}

PLAIN = "one replica"
REPLICAS = {"num_replicas": 2, "micro_batch": 2, "count": 4, "is_weighted": True}
MAPPING = ("device_mapping", (1, 0))
# The trainings over each engine, with two workers. Those with the most devices come first.
TRAININGS: dict[str, dict[str, dict[str, Any]]] = {
    "none": {
        PLAIN: {"count": 8},
        "weighted": {"count": 8, "is_weighted": True},
        "weighted loop": {"count": 8, "is_weighted": True, "iterations": 3},
        "half": {"count": 8, "precision": "mixed_bfloat16"},
    },
    "grpc": {
        "loop of replicas": {
            **REPLICAS,
            "iterations": 3,
            "spec": (("recomputation", True), MAPPING),
        },
        "half": {"count": 4, "precision": "mixed_bfloat16"},
        PLAIN: {"count": 4},
        "ends early": {**REPLICAS, "ends_early": 1},  # One micro-batch short of a third step.
    },
    "horovod": {
        "replicas": {**REPLICAS, "spec": (("pipeline_schedule", "grouped"), MAPPING)},
        PLAIN: {"count": 4},
    },
}
# A training of two workers, and that of one worker which gives the same numbers.
EQUAL = [
    ("grpc", "loop of replicas", "weighted loop"),
    ("grpc", "half", "half"),
    ("grpc", PLAIN, PLAIN),
    ("horovod", "replicas", "weighted"),
    ("horovod", PLAIN, PLAIN),
]


def _run_all(engine: str, folder: str, trainings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from pipelined_training import run_pipelines

    return run_pipelines(engine, folder, trainings)


@pytest.fixture(scope="module")
def reported_before() -> dict[str, list[dict[str, Any]]]:
    """The results of `run` so far, by engine: for each worker by training."""
    return {}


@pytest.fixture
def run(
    reported_before: Any, fake_cluster: Any, tmp_path: Path
) -> Callable[[str], list[dict[str, Any]]]:
    """Makes the trainings over an engine in turn, once; returns each worker's results by name."""

    def run(engine: str) -> list[dict[str, Any]]:
        if engine not in reported_before:
            names, folder = list(TRAININGS[engine]), str(tmp_path / engine)
            trainings = list(TRAININGS[engine].values())
            reported = fake_cluster.run(_run_all, engine, folder, trainings, engine=engine)
            reported_before[engine] = [dict(zip(names, one, strict=True)) for one in reported]
        return reported_before[engine]

    return run


@pytest.fixture(params=["grpc", "horovod"])
def all_workers(request: Any, run: Any) -> list[dict[str, Any]]:
    return run(request.param)


@pytest.fixture
def workers(all_workers: Any) -> list[dict[str, Any]]:
    """The results of the workers with one replica."""
    return [worker[PLAIN] for worker in all_workers]


@pytest.mark.parametrize(("engine", "training", "of_one"), EQUAL)
def test_two_workers_equal_one_with_all_micro_batches(
    run: Any, engine: str, training: str, of_one: str
) -> None:
    found, expected = run(engine)[0][training], run("none")[0][of_one]
    assert expected["values"].keys() == found["values"].keys() >= VARIABLES
    assert found["values"]["global_step"] == 3
    # All layouts add the same gradients of micro-batches, in float32; Adam divides by small ones.
    unit = 1e-6 if training != "half" else 2.0**-8
    for name, value in expected["values"].items():
        np.testing.assert_allclose(found["values"][name], value, atol=unit, err_msg=name)
    np.testing.assert_allclose(found["reported"], expected["reported"], atol=2 * unit)
    assert len(found["reported"][0]) == (2 if "replicas" in training else 1)


def test_the_workers_weights_are_bit_equal(all_workers: list[dict[str, Any]]) -> None:
    one, other = all_workers
    for training in one:
        assert one[training]["reported"] == other[training]["reported"]
        for name, value in one[training]["values"].items():
            assert np.array_equal(value, other[training]["values"][name]), (training, name)


def test_the_stages_divide_the_cores_of_a_worker(run: Any) -> None:
    assert run("none")[0][PLAIN]["threads"] == max(1, len(os.sched_getaffinity(0)) // 2)


def test_each_gradient_is_reduced_once_a_step_and_on_the_host(
    request: Any, all_workers: list[dict[str, Any]], workers: list[dict[str, Any]]
) -> None:
    gradients = ("all_reduce", "CPU:0")
    loss_and_agreement = ("all_reduce_1", "CPU:0")
    if request.node.callspec.params["all_workers"] == "grpc":
        expected = [gradients]  # The loss and the agreement travel with them: all are small.
    else:
        expected = [gradients, loss_and_agreement]
    for worker in all_workers:
        for reported in worker.values():
            for gradient in (
                "bias (float32 (9,))",
                "table (float32 (9, 4))",
                "hidden (float32 (4, 4))",
            ):
                assert reported["reduced"].count(gradient) == 1, reported["reduced"]
    for worker in workers:
        reductions = [
            (name.split("/")[0], place)
            for name, op, place in worker["ops"]
            if "all_reduce" in name and op.startswith(("QueueEnqueue", "Horovod"))
        ]
        assert sorted(reductions) == expected
        updates = [place for _, op, place in worker["ops"] if op == "ResourceApplyAdam"]
        assert updates == ["CPU:0"] * len(VARIABLES)


def test_each_stage_runs_on_its_own_device(workers: list[dict[str, Any]]) -> None:
    for worker in workers:
        assert worker["calls"] == {
            ("forward_0_", "CPU:1"),
            ("backward_0", "CPU:1"),
            ("forward_1_", "CPU:2"),
            ("backward_1", "CPU:2"),
        }


def test_each_replica_has_its_own_devices(all_workers: list[dict[str, Any]]) -> None:
    for worker in all_workers:
        places: dict[str, set[str]] = {}
        replicas = next(found for name, found in worker.items() if "replicas" in name)
        for function, place in replicas["calls"]:
            places.setdefault(function, set()).add(place)
        stage_0, stage_1 = {"CPU:2", "CPU:4"}, {"CPU:1", "CPU:3"}  # By the device_mapping.
        assert places == {
            "forward_0_": stage_0,
            "backward_0": stage_0,
            "forward_1_": stage_1,
            "backward_1": stage_1,
        }


def test_a_server_that_lacks_a_device_is_named(workers: list[dict[str, Any]]) -> None:
    for worker in workers:
        if worker["refused"]:
            assert worker["refused"] == (
                "the server of this worker was started with 5 logical CPUs, and 6 are needed now: "
                "it cannot get more. Train the model that needs most devices first, or start the "
                "run with `tfdist run --devices-per-replica 5`."
            )
    assert {bool(w["refused"]) for w in workers} == {
        any(op == "QueueEnqueueV2" for _, op, _ in workers[0]["ops"])
    }


def test_all_workers_stop_where_the_first_ones_input_ends(run: Any) -> None:
    steps = [worker["ends early"]["values"]["global_step"] for worker in run("grpc")]
    assert steps == [2, 2]
