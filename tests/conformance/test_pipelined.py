"""Workers with a pipeline each compute what one pipeline with all their micro-batches does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ENGINES = ["grpc", "horovod"]
VARIABLES = {"table", "hidden", "bias"}


@pytest.fixture(scope="module")
def run_pipeline() -> Callable[..., dict[str, Any]]:
    """A function that trains a pipeline of two stages, and returns its results."""
    import pipelined_training

    return pipelined_training.run_pipeline


@pytest.fixture(scope="module")
def told_before() -> dict[str, list[dict[str, Any]]]:
    """The results of `alone` and `workers` so far, by engine."""
    return {}


@pytest.fixture
def alone(told_before: Any, run_pipeline: Any, fake_cluster: Any, tmp_path: Path) -> dict[str, Any]:
    if "none" not in told_before:
        told_before["none"] = fake_cluster.run(
            run_pipeline, "none", str(tmp_path / "alone"), 8, engine="none", ends_early=-1
        )
    return told_before["none"][0]


@pytest.fixture(params=ENGINES)
def workers(
    request: Any, told_before: Any, run_pipeline: Any, fake_cluster: Any, tmp_path: Path
) -> list[dict[str, Any]]:
    engine, folder = request.param, str(tmp_path / "workers")
    if engine not in told_before:
        told_before[engine] = fake_cluster.run(
            run_pipeline, engine, folder, 4, engine=engine, num_workers=2, ends_early=-1
        )
    return told_before[engine]


def test_two_workers_equal_one_with_all_micro_batches(
    workers: list[dict[str, Any]], alone: dict[str, Any]
) -> None:
    assert alone["values"].keys() == workers[0]["values"].keys() >= VARIABLES
    assert workers[0]["values"]["global_step"] == 3
    for name, value in alone["values"].items():
        np.testing.assert_allclose(workers[0]["values"][name], value, atol=1e-6, err_msg=name)


def test_the_workers_weights_are_bit_equal(workers: list[dict[str, Any]]) -> None:
    for name, value in workers[0]["values"].items():
        assert np.array_equal(value, workers[1]["values"][name]), name


def test_each_gradient_is_reduced_once_a_step_and_on_the_host(
    request: Any, workers: list[dict[str, Any]]
) -> None:
    gradients = ("all_reduce", "CPU:0")
    loss_and_agreement = ("all_reduce_1", "CPU:0")
    if request.node.callspec.params["workers"] == "grpc":
        expected = [gradients]  # The loss and the agreement travel with them: all are small.
    else:
        expected = [gradients, loss_and_agreement]
    for worker in workers:
        for gradient in (
            "bias (float32 (9,))",
            "table (float32 (9, 4))",
            "hidden (float32 (4, 4))",
        ):
            assert worker["reduced"].count(gradient) == 1, worker["reduced"]
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


def test_a_server_that_lacks_a_device_is_named(workers: list[dict[str, Any]]) -> None:
    for worker in workers:
        if worker["refused"]:
            assert worker["refused"] == (
                "the server of this worker was started with 3 logical CPUs, and 4 are needed now: "
                "it cannot get more. Train the model that needs most devices first, or start the "
                "run with `tfdist run --devices-per-replica 3`."
            )
    assert {bool(w["refused"]) for w in workers} == {
        any(op == "QueueEnqueueV2" for _, op, _ in workers[0]["ops"])
    }


@pytest.mark.parametrize("engine", ENGINES)
def test_all_workers_stop_where_the_first_ones_input_ends(
    run_pipeline: Any, fake_cluster: Any, tmp_path: Path, engine: str
) -> None:
    workers = fake_cluster.run(
        run_pipeline, engine, str(tmp_path), 4, engine=engine, num_workers=2, ends_early=1
    )
    # One micro-batch short of a third step.
    assert [worker["values"]["global_step"] for worker in workers] == [2, 2]
