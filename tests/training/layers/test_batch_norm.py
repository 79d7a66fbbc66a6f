"""Batch norm over replicas in one process: values, gradients, and what is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

import tfdist.estimator  # noqa: F401  # With it v1.layers are those of Keras 2.
from tfdist.pipeline import Block, Options, training_model
from tfdist.strategies import LocalStrategy
from tfdist.training import BatchNormalization, batch_normalization
from tfdist.training.layers.group_moments import combine_moments
from tfdist.training.layers.replica_groups import ReplicaGroups

RANDOM = np.random.default_rng(0)


def _run(layer: Any, x: Any, mask: Any = None, **call: Any) -> list[Any]:
    """Returns output, moving averages after the call, and gradients of x, beta and gamma."""
    inputs = tf.constant(x)
    y = layer(inputs, training=True, mask=mask, **call)
    loss = tf.reduce_sum(tf.sin(tf.cast(y, tf.float32)) + tf.cast(y, tf.float32) ** 2)
    gradients = tf.gradients(loss, [inputs, layer.beta, layer.gamma])
    with tf.control_dependencies([y, *gradients, *layer.updates]):
        averages = [v.read_value() for v in (layer.moving_mean, layer.moving_variance)]
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        return list(session.run([y, *averages, *gradients]))


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((7, 5), {}),
        ((3, 4, 5, 2), {"epsilon": 0.1, "gamma_initializer": tf_keras.initializers.Constant(2)}),
        ((3, 2, 5, 4), {"axis": 1, "momentum": 0.3}),
        ((3, 4, 2, 3), {"axis": [1, 3]}),
    ],
)
def test_one_replica_computes_what_tf_keras_does(shape: Any, options: Any) -> None:
    x = RANDOM.normal(size=shape).astype("float32") * 3 + 1
    with tf.Graph().as_default():
        # Its moving variance is that of the batch, without the fused kernel's n / (n - 1).
        expected = _run(tf_keras.layers.BatchNormalization(synchronized=True, **options), x)
    with tf.Graph().as_default():
        found = _run(BatchNormalization(**options), x)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_masked_elements_do_not_count() -> None:
    x = RANDOM.normal(size=(4, 6, 3)).astype("float32")
    mask = RANDOM.random(size=(4, 6)) < 0.6
    with tf.Graph().as_default():
        expected = _run(tf_keras.layers.BatchNormalization(), x, tf.constant(mask))
    with tf.Graph().as_default():
        found = _run(BatchNormalization(), x, tf.constant(mask))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_half_precision_has_statistics_in_float32() -> None:
    x = RANDOM.normal(size=(64, 3)).astype("float16") + np.float16(100)
    with tf.Graph().as_default():
        layer = BatchNormalization(dtype="float16")
        y, mean, *_ = _run(layer, x)
        assert layer.moving_mean.dtype.base_dtype == tf.float32
    assert y.dtype == np.float16
    np.testing.assert_allclose(y.mean(0), 0, atol=1e-3)
    np.testing.assert_allclose(mean, 0.01 * x.astype("float64").mean(0), rtol=1e-6)


def test_moments_of_parts_combine_to_those_of_the_whole_also_if_a_part_is_empty() -> None:
    x = RANDOM.normal(size=(9, 2)) + 1000.0
    rows = []
    for part in (x[:2], x[2:2], x[2:9]):
        mean = part.mean(0) if len(part) else np.zeros(2)
        rows.append([len(part), *mean, 0, 0, *((part - mean) ** 2).sum(0)])
    count, *others = combine_moments(tf.constant(rows, tf.float64)).numpy()
    center, rest, m2 = np.split(np.array(others), 3)
    assert count == 9
    np.testing.assert_allclose(center + rest, x.mean(0), rtol=1e-12)
    np.testing.assert_allclose(m2, 9 * x.var(0), rtol=1e-9)


def _replicas(number: int, call: Callable[[tf.Tensor], tf.Tensor], x: Any) -> list[Any]:
    """Calls a function in each replica with its share of the rows; returns the results."""
    strategy = LocalStrategy(num_replicas=number)
    with tf.Graph().as_default(), strategy.scope():

        def replica() -> Any:
            own = strategy.extended.replica_in_worker()
            return call(tf.constant(np.split(x, number)[own]))

        results = strategy.experimental_local_results(strategy.run(replica))
        with v1.Session(config=strategy.update_config_proto(v1.ConfigProto())) as session:
            session.run(v1.global_variables_initializer())
            return list(session.run(results))


@pytest.mark.parametrize(("size", "together"), [(None, 4), (2, 2), (1, 1)])
def test_neighbouring_replicas_share_their_statistics(size: int | None, together: int) -> None:
    x = RANDOM.normal(size=(8, 3)).astype("float32") + 1000
    results = _replicas(4, lambda own: BatchNormalization(size, epsilon=0.0)(own, training=True), x)
    groups = np.split(x.astype("float64"), 4 // together)
    expected = np.concatenate([(part - part.mean(0)) / part.std(0) for part in groups])
    np.testing.assert_allclose(np.concatenate(results), expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`tf.layers.batch_normalization` is deprecated")
def test_the_function_makes_the_variables_of_v1_layers() -> None:
    def names(normalize: Callable[..., Any]) -> list[str]:
        with tf.Graph().as_default(), v1.variable_scope("block"):
            for name, reuse in ((None, None), ("named", None), ("named", True)):
                normalize(tf.ones([2, 3]), training=True, name=name, reuse=reuse)
            assert len(v1.get_collection(v1.GraphKeys.UPDATE_OPS)) == 6
            return [v.op.name for v in v1.global_variables()]

    assert names(batch_normalization) == names(v1.layers.batch_normalization)


@pytest.mark.parametrize(
    ("size", "error", "message"),
    [
        (0, ValueError, "group_size must be at least 1, got 0"),
        (2.0, TypeError, "group_size must be an integer or None, got 2.0"),
        (True, TypeError, "group_size must be an integer or None, got True"),
    ],
)
def test_a_group_size_that_is_no_count_is_refused(size: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        BatchNormalization(size)


@pytest.mark.parametrize(
    ("size", "nearest"), [(4, "3 and 6"), (5, "3 and 6"), (7, "6"), (100, "6")]
)
def test_a_group_size_that_does_not_divide_the_replicas_is_refused(size: int, nearest: str) -> None:
    message = rf"group_size {size} does not divide the 6 replicas .*\(3 workers x 2\).* {nearest}; "
    with pytest.raises(ValueError, match=message) as caught:
        ReplicaGroups(size=size, num_replicas=2, num_workers=3)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("size", "num_replicas", "num_workers", "worker", "rows"),
    [
        (6, 2, 3, 1, [slice(0, 3)] * 2),
        (2, 2, 3, 1, [slice(0, 1)] * 2),
        (4, 2, 4, 2, [slice(2, 4)] * 2),
        (3, 2, 3, 1, [slice(0, 3), slice(3, 6)]),  # Its replicas are the 3rd and the 4th.
        (2, 4, 1, 0, [slice(0, 1), slice(0, 1), slice(1, 2), slice(1, 2)]),
    ],
)
def test_a_replica_finds_the_rows_of_its_group(
    size: int, num_replicas: int, num_workers: int, worker: int, rows: list[slice]
) -> None:
    groups = ReplicaGroups(
        size=size, num_replicas=num_replicas, num_workers=num_workers, worker_index=worker
    )
    assert [groups.rows_of(replica) for replica in range(num_replicas)] == rows


@pytest.mark.parametrize("name", ["synchronized", "renorm"])
def test_other_kinds_of_statistics_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"takes no {name}: .* Leave it out"):
        BatchNormalization(**{name: True})


def test_a_tensor_cannot_decide_whether_a_message_is_sent() -> None:
    def call(x: tf.Tensor) -> tf.Tensor:
        return BatchNormalization(name="norm")(x, training=v1.placeholder(tf.bool, []))

    with pytest.raises(ValueError, match="layer norm needs training=True or training=False"):
        _replicas(2, call, np.ones((2, 3), "float32"))


@pytest.mark.parametrize("says_training", [True, False])
def test_a_functional_model_needs_to_be_called_with_training(says_training: bool) -> None:
    x = RANDOM.normal(size=(8, 3)).astype("float32")

    def call(own: tf.Tensor) -> tf.Tensor:
        inputs = tf_keras.Input([3])
        model = tf_keras.Model(inputs, BatchNormalization(name="norm", epsilon=0.0)(inputs))
        if says_training:
            return model(own, training=True)
        inputs = tf_keras.Input(tensor=own)
        return BatchNormalization(name="norm")(inputs)

    if says_training:
        expected = (x - x.mean(0)) / x.std(0)
        np.testing.assert_allclose(np.concatenate(_replicas(2, call, x)), expected, atol=1e-5)
    else:
        with pytest.raises(tf.errors.InvalidArgumentError, match="norm needs training=True or"):
            _replicas(2, call, x)


def test_statistics_over_replicas_are_refused_in_a_stage_of_a_pipeline() -> None:
    layers = {size: BatchNormalization(size) for size in (None, 1)}

    def model(x: tf.Tensor, size: int | None) -> tf.Tensor:
        with Block("only", 0):
            return tf.reduce_mean(tf.square(layers[size](x, training=True) - 2.0))

    options = Options().show_progress_bar(False)
    x = RANDOM.normal(size=(4, 3)).astype("float32")
    with pytest.raises(ValueError, match=r"is in a stage of a pipeline, .* Set group_size=1"):
        training_model(lambda x: model(x, None), options)(x)
    assert np.isfinite(training_model(lambda x: model(x, 1), options)(x))
