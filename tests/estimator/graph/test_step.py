"""One step: who increments the global step, what runs where, loops of steps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from brief_training import Fetch, loss_in

import tfdist.estimator as tfe

Make = Callable[..., Any]
Train = Callable[..., tfe.Estimator]


@pytest.fixture
def train(numbers: Make, tmp_path: Path) -> Train:
    """Trains a model_fn for some steps, each call in a folder of its own."""
    folders = iter(range(100))

    def train(
        model_fn: Any, *, steps: int | None = 5, hooks: Any = None, **settings: Any
    ) -> tfe.Estimator:
        max_steps = settings.pop("max_steps", None)
        config = tfe.RunConfig(
            save_summary_steps=settings.pop("save_summary_steps", None),
            log_step_count_steps=None,
            save_checkpoints_steps=settings.pop("save_checkpoints_steps", 1000),
            device=tfe.DeviceConfig(**settings),
        )
        estimator = tfe.Estimator(model_fn, tmp_path / str(next(folders)), config)
        return estimator.train(numbers(), hooks=hooks, steps=steps, max_steps=max_steps)

    return train


def _assert_equal(one: dict[str, Any], other: dict[str, Any], **tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_allclose(value, other[name], err_msg=name, **tolerance)


# Who increments the global step.


@pytest.mark.parametrize(
    ("way", "reshape"), [("host_call", True), ("counted", False), ("uncounted", True)]
)
def test_a_saver_made_in_model_fn_does_not_count_as_counting(
    dense: Make, train: Train, way: str, reshape: bool
) -> None:
    plain = dense(way=way)

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        spec = plain(features, labels, mode)
        return spec._replace(scaffold=v1.train.Scaffold(saver=v1.train.Saver(reshape=reshape)))

    assert train(model_fn).get_variable_value("global_step") == 5


def test_host_call_gives_the_weights_of_minimize(dense: Make, train: Train, weights: Make) -> None:
    with_host_call = weights(train(dense("adam")))
    without = weights(train(dense("adam", way="counted")))
    _assert_equal(with_host_call, without, rtol=0)
    assert np.any(with_host_call["kernel"] != 1.0)


def _of_constants(mode: str, **fields: Any) -> tfe.EstimatorSpec:
    return tfe.EstimatorSpec(mode, loss=tf.constant(1.0), **fields)


def _writes_the_step(where: str) -> tf.Operation:
    step = v1.train.get_global_step()
    if where == "plainly":
        return v1.assign_add(step, 1).op
    if where == "in a branch":
        return tf.cond(tf.constant(True), lambda: step.assign_add(1), lambda: step + 0).op

    @tf.function
    def write() -> tf.Tensor:
        return step.assign_add(1)

    return write().op


@pytest.mark.parametrize(
    ("where", "iterations"),
    [("plainly", 1), ("in a branch", 1), ("in a function", 1), ("plainly", 2)],
)
def test_a_model_with_host_call_that_counts_itself_is_refused(
    train: Train, where: str, iterations: int
) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        host_call = (lambda one: _writes_the_step(where), [tf.constant(1.0)])
        return _of_constants(mode, host_call=host_call)

    with pytest.raises(ValueError, match="Illegal increment of the `global_step` variable"):
        train(model_fn, steps=iterations, iterations_per_loop=iterations)


@pytest.mark.parametrize("where", ["plainly", "in a branch", "in a function"])
def test_a_train_op_that_counts_is_not_counted_again(train: Train, where: str) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        return _of_constants(mode, train_op=_writes_the_step(where))

    assert train(model_fn, steps=3).get_variable_value("global_step") == 3


def test_reading_the_global_step_does_not_count(train: Train) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        step = v1.train.get_global_step()
        seen = v1.get_variable("seen", [], tf.int64, initializer=v1.zeros_initializer())
        branch = tf.cond(step < 3, lambda: step * 10, lambda: step * 100)
        return _of_constants(mode, train_op=seen.assign(branch))

    estimator = train(model_fn, steps=4)
    assert estimator.get_variable_value("global_step") == 4
    assert estimator.get_variable_value("seen") == 300  # The last step saw 3.


# What host_call may do.


def test_host_call_works_without_and_beside_a_train_op(train: Train) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        own = v1.get_variable("own", [], initializer=v1.zeros_initializer())
        hosts = v1.get_variable("hosts", [], initializer=v1.zeros_initializer())
        host_call = (hosts.assign_add, [tf.constant(10.0)])
        return _of_constants(mode, train_op=own.assign_add(1.0), host_call=host_call)

    estimator = train(model_fn, steps=3)
    assert estimator.get_variable_value("own") == 3.0
    assert estimator.get_variable_value("hosts") == 30.0


@pytest.mark.parametrize("settings", [{}, {"iterations_per_loop": 5}, {"num_replicas": 2}])
def test_a_host_call_without_tensors_runs_once_a_step(
    dense: Make, train: Train, settings: dict[str, int]
) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        first = tf.VariableAggregation.ONLY_FIRST_REPLICA
        counter = v1.get_variable("calls", initializer=0.0, trainable=False, aggregation=first)
        spec = dense(way="uncounted")(features, labels, mode)
        return spec._replace(host_call=(lambda: v1.assign_add(counter, 1.0), []))

    estimator = train(model_fn, **settings)
    assert estimator.get_variable_value("calls") == 5
    assert estimator.get_variable_value("global_step") == 5


@pytest.mark.parametrize("result", [None, 1.0, []])
def test_a_host_call_that_returns_no_op_is_refused(train: Train, result: Any) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        return _of_constants(mode, host_call=(lambda one: result, [tf.constant(1.0)]))

    with pytest.raises(TypeError, match="`host_call` return value must be Operation or Tensor"):
        train(model_fn, steps=1)


def test_host_call_gets_sparse_gradients_as_they_are(train: Train) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        table = v1.get_variable("table", [4, 2], initializer=v1.zeros_initializer())
        rows = tf.nn.embedding_lookup(table, tf.constant([1, 1, 3]))
        optimizer = v1.train.GradientDescentOptimizer(1.0)
        loss = tf.reduce_sum(rows)
        gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)

        def update(gradient: Any) -> tf.Operation:
            assert isinstance(gradient, tf.IndexedSlices)
            return optimizer.apply_gradients([(gradient, variables[0])])

        return tfe.EstimatorSpec(mode, loss=loss, host_call=(update, list(gradients)))

    table = train(model_fn, steps=1).get_variable_value("table")
    np.testing.assert_array_equal(table[:, 0], [0.0, -2.0, 0.0, -1.0])


# Loops of steps in one session call.


@pytest.mark.parametrize(("optimizer", "way"), [("momentum", "host_call"), ("adam", "counted")])
def test_a_loop_gives_the_weights_of_single_steps(
    dense: Make, train: Train, weights: Make, optimizer: str, way: str
) -> None:
    model_fn = dense(optimizer, way)
    loop = weights(train(model_fn, steps=8, iterations_per_loop=4))
    single = weights(train(model_fn, steps=8))
    _assert_equal(loop, single, atol=1e-6, rtol=0)
    assert loop["global_step"] == 8


def test_the_loss_of_a_loop_is_the_mean_over_its_steps(dense: Make, train: Train) -> None:
    single, loop = Fetch(loss_in), Fetch(loss_in)
    train(dense(), steps=8, hooks=[single])
    train(dense(), steps=8, hooks=[loop], iterations_per_loop=4)
    np.testing.assert_allclose(
        loop.values, np.reshape(single.values, [2, 4]).mean(axis=1), rtol=1e-6
    )


@pytest.mark.parametrize("settings", [{"num_replicas": 2}, {"gradient_accumulation": 2}])
def test_in_a_loop_a_variable_may_start_with_a_tensor(
    dense: Make, train: Train, settings: dict[str, int]
) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        half = tf.fill([2, 1], 0.25) + 0.25
        v1.get_variable("fixed", initializer=half * tf.ones([1, 3]), trainable=False)
        return dense()(features, labels, mode)

    estimator = train(model_fn, steps=4, iterations_per_loop=2, **settings)
    np.testing.assert_array_equal(estimator.get_variable_value("fixed"), np.full([2, 3], 0.5))


def test_in_a_loop_a_variable_that_starts_with_the_input_is_refused(
    dense: Make, train: Train
) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        v1.get_variable("mean", initializer=tf.reduce_mean(features["x"], axis=0))
        return dense()(features, labels, mode)

    with pytest.raises(ValueError, match=r"'mean' is a tensor of the loop .* initializer=lambda"):
        train(model_fn, steps=4, iterations_per_loop=2)


@pytest.mark.parametrize(
    ("limit", "every", "expected"),
    [
        ({"max_steps": 5, "steps": None}, 100, [0, 8]),
        ({"max_steps": 8, "steps": None}, 100, [0, 8]),
        ({"steps": 12}, 4, [0, 4, 8, 12]),
        ({"steps": 12}, 6, [0, 8, 12]),
    ],
)
def test_whole_loops_reach_max_steps_and_the_interval_between_checkpoints(
    dense: Make,
    train: Train,
    saved_steps: Make,
    limit: dict[str, int | None],
    every: int,
    expected: list[int],
) -> None:
    estimator = train(dense(), iterations_per_loop=4, save_checkpoints_steps=every, **limit)
    assert saved_steps(estimator.model_dir) == expected


def test_the_end_of_the_input_within_a_loop_ends_training(
    make: Make, numbers: Make, saved_steps: Make, tmp_path: Path
) -> None:
    estimator = make(device={"iterations_per_loop": 4}).train(numbers(batches=6))
    # Two steps of the second loop ran before the input ended.
    assert saved_steps(tmp_path) == [0, 6]
    assert estimator.get_variable_value("global_step") == 6


def test_a_loop_takes_tensors_one_batch_after_the_other(
    make: Make, numbers: Make, weights: Make
) -> None:
    def input_fn() -> Any:
        return v1.data.make_one_shot_iterator(numbers(batches=6)()).get_next()

    estimator = make(folder="tensors", device={"iterations_per_loop": 2}).train(input_fn)
    alone = make(folder="dataset").train(numbers(batches=6))
    assert estimator.get_variable_value("global_step") == 6
    _assert_equal(weights(estimator), weights(alone), atol=1e-6)


# Where things run: read from the graphs that the session executed.


class Places(v1.train.SessionRunHook):  # type: ignore[misc]
    """Remembers the device of every node that ran."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[str, str]] = {}

    def before_run(self, run_context: Any) -> Any:
        options = v1.RunOptions(output_partition_graphs=True)
        return v1.train.SessionRunArgs([], options=options)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        for graph in run_values.run_metadata.partition_graphs:
            for node in graph.node:
                op = node.op.removeprefix("_Mkl")  # oneDNN's ops, where the processor has them.
                self.nodes[node.name] = (op, node.device.rsplit("device:", 1)[-1])

    def of(self, op: str, prefix: str = "") -> set[str]:
        """Says on which devices the ops of a type ran, with names that start so."""
        return {d for name, (o, d) in self.nodes.items() if o == op and name.startswith(prefix)}


@pytest.mark.parametrize(
    ("variables_on_host", "way"), [(True, "host_call"), (True, "counted"), (False, "counted")]
)
def test_gradients_are_on_the_device_and_variables_where_the_user_wants_them(
    dense: Make, train: Train, variables_on_host: bool, way: str
) -> None:
    places = Places()
    train(
        dense("adam", way),
        steps=1,
        hooks=[places],
        device="/device:CPU:1",
        variables_on_host=variables_on_host,
    )
    variables = "CPU:0" if variables_on_host else "CPU:1"
    assert places.of("MatMul") == {"CPU:1"}
    assert places.of("MatMul", "gradients/") == {"CPU:1"}
    for name in ("kernel", "kernel/Adam", "kernel/Adam_1", "bias/Adam"):
        assert places.of("VarHandleOp", name) == {variables}, name
    assert places.of("ResourceApplyAdam") == {variables}


def test_the_ops_of_host_call_are_on_the_host(train: Train) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        total = v1.get_variable("total", [], initializer=v1.zeros_initializer())
        on_device = tf.exp(features["x"], name="computed_on_device")

        def update(tensor: tf.Tensor) -> tf.Tensor:
            return total.assign_add(tf.reduce_sum(tf.sin(tensor, name="computed_on_host")))

        return tfe.EstimatorSpec(
            mode, loss=tf.reduce_sum(on_device), host_call=(update, [on_device])
        )

    places = Places()
    train(model_fn, steps=1, hooks=[places], device="/device:CPU:1")
    assert places.of("Exp") == {"CPU:1"}
    assert places.of("Sin") == {"CPU:0"}
    assert places.of("IteratorGetNext") == {"CPU:0"}


def test_a_host_variable_is_read_once_a_step(dense: Make, train: Train) -> None:
    places = Places()
    train(dense(), steps=1, hooks=[places], device="/device:CPU:1")
    reads = [n for n, (op, _) in places.nodes.items() if op == "ReadVariableOp"]
    assert len([name for name in reads if name.startswith("kernel/")]) == 1


def test_where_things_are_changes_no_number(dense: Make, train: Train, weights: Make) -> None:
    places = Places()
    on_host = weights(train(dense("adam"), hooks=[places], device="/device:CPU:0"))
    assert {device for _, device in places.nodes.values()} == {"CPU:0"}
    for settings in ({}, {"variables_on_host": False}):
        other = weights(train(dense("adam"), device="/device:CPU:1", **settings))
        _assert_equal(on_host, other, rtol=0)


def test_a_device_that_does_not_exist_is_refused(dense: Make, train: Train) -> None:
    with pytest.raises(ValueError, match="device '/device:TPU:0' does not exist"):
        train(dense(), steps=1, device="/device:TPU:0")
