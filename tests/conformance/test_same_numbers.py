"""Workers together compute what one process does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

ENGINES = ["grpc", "horovod"]
# What else is the same on workers and on one device, test_features_together.py says.


def _assert_equal_values(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["values"].keys() == other["values"].keys()
    for name, value in one["values"].items():
        np.testing.assert_allclose(value, other["values"][name], atol=1e-6, err_msg=name)


@pytest.mark.parametrize("engine", ENGINES)
def test_two_workers_equal_one_with_the_double_batch(
    train_once: Any, train_alone: Any, engine: str
) -> None:
    together = train_once(engine, optimizer="adam", local_batch=8)
    alone = train_alone(optimizer="adam", local_batch=16)
    _assert_equal_values(together[0], alone)
    assert together[0]["values"]["global_step"] == 6


@pytest.mark.parametrize("engine", ENGINES)
def test_the_reported_loss_is_the_mean_over_the_workers(
    train_once: Any, train_alone: Any, read_events: Any, engine: str
) -> None:
    together = train_once(engine, optimizer="adam", local_batch=8)
    alone = train_alone(optimizer="adam", local_batch=16)
    own = [worker["losses"] for worker in together]  # what model_fn computed on each worker
    np.testing.assert_allclose(np.mean(own, axis=0), alone["losses"], atol=1e-6)
    assert own[0] != own[1]
    written = [value for _, value in read_events(together[0]["model_dir"])["loss"]]
    np.testing.assert_allclose(written, alone["losses"][:1], atol=1e-6)


def test_sparse_gradients_of_an_embedding_are_reduced(train_once: Any, train_alone: Any) -> None:
    options = {"has_embedding": True, "optimizer": "adam"}
    together = train_once("grpc", local_batch=8, **options)
    alone = train_alone(local_batch=16, **options)
    _assert_equal_values(together[0], alone)
    _assert_equal_values(together[1], alone)


def test_a_table_that_is_looked_up_and_multiplied_is_reduced_in_parts(
    train_once: Any, train_alone: Any
) -> None:
    options = {"has_embedding": True, "is_tied": True, "is_weighted": True}
    together = train_once("grpc", local_batch=4, num_replicas=2, **options)
    alone = train_alone(local_batch=16, **options)
    _assert_equal_values(together[0], alone)
    for name, value in together[0]["values"].items():
        assert np.array_equal(value, together[1]["values"][name]), name
    placed = together[0]["placed"]
    assert "TensorScatterAdd" in [kind for kind, _ in placed.values()]
    filled = [name for name, (kind, _) in placed.items() if kind == "UnsortedSegmentSum"]
    # Gathered rows of equal index are added up; no second table is filled by the backward pass.
    assert all("all_reduce" in name for name in filled), filled


@pytest.mark.parametrize(
    ("engine", "options"), [("grpc", {"iterations": 3}), ("none", {"num_replicas": 2})]
)
def test_gradients_of_a_tape_give_the_same_numbers(
    train_once: Any, train_alone: Any, engine: str, options: dict[str, Any]
) -> None:
    num_workers = 1 if engine == "none" else 2
    together = train_once(
        engine, num_workers, optimizer="adam", local_batch=8, uses_tape=True, **options
    )
    _assert_equal_values(together[-1], train_alone(optimizer="adam", local_batch=16))


def test_variables_on_the_device_give_the_same_numbers(train_once: Any, train_alone: Any) -> None:
    options = {"variables_on_host": False, "uses_host_call": True, "optimizer": "adam"}
    together = train_once("grpc", local_batch=8, **options)
    _assert_equal_values(together[1], train_alone(optimizer="adam", local_batch=16))


@pytest.mark.parametrize(("half", "iterations"), [("weights", 1), ("precision", 3)])
def test_weights_in_half_precision_are_rounded_alike_though_the_seeds_differ(
    train_once: Any, train_alone: Any, half: str, iterations: int
) -> None:
    options = {"optimizer": "scaled", half: "bfloat16", "has_embedding": True}
    workers = train_once("grpc", iterations=iterations, **options)
    assert workers[0]["values"]["first"].dtype == tf.bfloat16
    for name, value in workers[0]["values"].items():
        assert np.array_equal(value, workers[1]["values"][name]), name
    # Worker 0's seed counts. A sum in another order may fall on the other side of a random number.
    alone = train_alone(local_batch=16, **options)
    first = workers[0]["values"]["first"].astype(np.float32)
    expected = alone["values"]["first"].astype(np.float32)
    if half == "weights":
        np.testing.assert_allclose(first, expected, rtol=2**-7)
        assert np.mean(first == expected) > 0.8
    else:  # The gradients of halves of the batch are rounded.
        np.testing.assert_allclose(first, expected, rtol=2**-6, atol=2**-6)


def test_keras_layers_that_compute_in_half_precision_train_alike_over_horovod(
    train_once: Any, train_alone: Any
) -> None:
    options = {"policy": "global", "precision": "mixed_bfloat16", "optimizer": "scaled"}
    workers = train_once("horovod", **options)
    for name, value in workers[0]["values"].items():
        assert np.array_equal(value, workers[1]["values"][name]), name
        assert value.dtype in (np.float32, np.int64), name
    alone, exact = (
        train_alone(local_batch=16, **one)["values"]
        for one in (options, {"policy": "float32", "optimizer": "scaled"})
    )
    kernel = workers[0]["values"]["first/kernel"]
    np.testing.assert_allclose(kernel, alone["first/kernel"], atol=0.02)
    assert not np.allclose(alone["first/kernel"], exact["first/kernel"], atol=1e-6)


def test_half_precision_with_float32_weights_is_two_units_from_one_worker_at_most(
    train_once: Any, train_alone: Any
) -> None:
    options = {"precision": "mixed_bfloat16", "has_embedding": True}
    workers = train_once("grpc", iterations=3, **options)
    alone = train_alone(local_batch=16, **options)
    for name, value in workers[0]["values"].items():
        assert np.array_equal(value, workers[1]["values"][name]), name
        if name != "global_step":
            assert value.dtype == np.float32, name
            two_units = 2 * 2.0**-8 * np.abs(value).max()
            np.testing.assert_allclose(value, alone["values"][name], atol=two_units, err_msg=name)


@pytest.mark.parametrize(("engine", "variables_on_host"), [("horovod", False), ("grpc", True)])
def test_workers_end_with_bit_equal_weights_though_their_seeds_differ(
    fake_cluster: Any, train: Any, tmp_path: Path, engine: str, variables_on_host: bool
) -> None:
    def with_own_seed(*args: Any, **options: Any) -> Any:
        import os

        return train(*args, seed=os.getpid(), **options)

    workers = fake_cluster.run(
        with_own_seed,
        engine,
        str(tmp_path),
        engine=engine,
        optimizer="adam",
        has_embedding=True,
        variables_on_host=variables_on_host,
    )
    for name, value in workers[0]["values"].items():
        assert np.array_equal(value, workers[1]["values"][name]), name
