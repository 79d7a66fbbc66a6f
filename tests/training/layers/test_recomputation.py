"""Recomputation keeps inputs, outputs and draws of a function, and changes no number."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

import tfdist.estimator as tfe
from tfdist.strategies import LocalStrategy
from tfdist.training import BatchNormalization, recomputation_checkpoint, recompute

X = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def _same(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _dense(x: tf.Tensor, name: str, use_resource: bool = True) -> tf.Tensor:
    shape = [x.shape[-1], x.shape[-1]]
    initializer = v1.random_normal_initializer(stddev=0.4, seed=1)
    weight = v1.get_variable(name, shape, initializer=initializer, use_resource=use_resource)
    return tf.matmul(x, weight)


def _with_dropout(x: tf.Tensor) -> tf.Tensor:
    hidden = tf.nn.dropout(tf.nn.silu(_dense(x, "a")), rate=0.5)  # A gradient of its own.
    return tf.sin(_dense(hidden * tf.random.normal([6]), "b")) + x


def _with_old_variables(x: tf.Tensor) -> tf.Tensor:
    return tf.sin(_dense(tf.sin(_dense(x, "a", use_resource=False)), "b", use_resource=False))


def _with_embedding(x: tf.Tensor) -> tf.Tensor:
    table = v1.get_variable("table", initializer=tf.sin(tf.range(30.0))[:, tf.newaxis])
    rows = tf.nn.embedding_lookup(table, tf.cast(tf.abs(x) * 9, tf.int32))  # [8, 6, 1]
    return tf.sin(rows[..., 0]) * tf.sin(_dense(x, "a"))


def _with_loop(x: tf.Tensor) -> tf.Tensor:
    weight = v1.get_variable("a", initializer=tf.eye(6) / 2)
    _, y = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.sin(y @ weight)), [0, x])
    return tf.cond(tf.reduce_sum(y) > 0, lambda: tf.sin(y), lambda: tf.cos(y))


def _with_layers_of_keras_2(x: tf.Tensor) -> tf.Tensor:
    start = tf_keras.initializers.RandomNormal(seed=1)
    hidden = tf_keras.layers.Dense(6, "gelu", kernel_initializer=start)(x)
    hidden = tf_keras.layers.Dropout(0.5, seed=4)(hidden, training=True)
    return BatchNormalization(1)(hidden, training=True)


def _with_layers_of_keras_3(x: tf.Tensor) -> tf.Tensor:
    keras = pytest.importorskip("keras")
    start = keras.initializers.RandomNormal(seed=1)
    hidden = keras.layers.Dense(6, "silu", kernel_initializer=start)(x)
    return tf.convert_to_tensor(keras.layers.LayerNormalization()(hidden)) + x


def _nested(x: tf.Tensor) -> tf.Tensor:
    inner = recompute(lambda y: tf.sin(_dense(tf.nn.dropout(y, rate=0.3), "c")))
    middle = recomputation_checkpoint(tf.cos(_dense(inner(x), "d")))
    return tf.sin(_dense(middle, "e")) * tf.nn.dropout(x, rate=0.3)


def _values(function: Callable[..., Any], wrap: Wrap, uses_tape: bool = False) -> list[Any]:
    """Returns loss and gradients of two uses of a function, one after the other."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(7)
        x = v1.get_variable("x", initializer=X)
        with tf.GradientTape() as tape:
            y = x.value()
            for name in ("first", "second"):
                with v1.variable_scope(name):
                    y = wrap(function)(y)
            loss = tf.reduce_sum(y**2)
        variables = v1.trainable_variables()
        get = tape.gradient if uses_tape else tf.gradients
        gradients = get(loss, variables)
        assert len(variables) > 2
        assert None not in gradients
        session.run(v1.global_variables_initializer())
        return list(session.run([loss, *(tf.convert_to_tensor(g) for g in gradients)]))


@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
@pytest.mark.parametrize(
    ("function", "uses_tape"),
    [
        (_with_dropout, False),
        (_with_dropout, True),
        (_with_old_variables, False),  # A tape does not watch them.
        (_with_embedding, True),
        (_with_loop, False),
        (_with_layers_of_keras_2, True),
        (_with_layers_of_keras_3, False),
        (_nested, True),
    ],
)
def test_gradients_are_those_without_recomputation(function: Any, uses_tape: bool) -> None:
    expected = _values(function, _same, uses_tape)
    found = _values(function, recompute, uses_tape)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("graph_of_gradient", ["function", "loop"])
def test_a_gradient_may_be_in_a_graph_of_its_own(graph_of_gradient: str) -> None:
    def gradient(wrap: Wrap) -> Any:
        with tf.Graph().as_default(), v1.Session() as session:
            weight = tf.constant(X[:6] / 3)
            layer = wrap(lambda y: tf.sin(tf.nn.dropout(tf.sin(y @ weight), rate=0.3, seed=2)) + y)
            x = tf.constant(X)
            if graph_of_gradient == "loop":
                # One iteration at a time: parallel ones draw in any order.
                body, end = lambda i, y: (i + 1, layer(y)), lambda i, _: i < 3
                _, y = tf.while_loop(end, body, [0, x], parallel_iterations=1)
            else:
                y = tf.function(lambda y: layer(layer(y)))(x)
            return session.run(tf.gradients(y, [x, weight]))

    for one, other in zip(gradient(recompute), gradient(_same), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_assignments_happen_once_and_results_keep_their_structure() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        x = tf.constant(X)

        def function(x: tf.Tensor, *, factor: float) -> dict[str, Any]:
            calls = v1.get_variable("calls", initializer=0, trainable=False)
            with tf.control_dependencies([calls.assign_add(1)]):
                return {"y": tf.sin(tf.sin(x)) * factor, "n": (tf.shape(x), "text", None)}

        result = recompute(function)(x, factor=2.0)
        assert result["n"][1:] == ("text", None)
        gradient = tf.gradients(result["y"], x)[0]
        session.run(v1.global_variables_initializer())
        value, shape = session.run([gradient, result["n"][0]])
        np.testing.assert_allclose(value, 2 * np.cos(np.sin(X)) * np.cos(X), atol=1e-6)
        assert tuple(shape) == X.shape
        assert session.run(v1.global_variables()) == [1]


def test_an_estimator_trains_the_same_weights_in_loops_and_replicas(tmp_path: Path) -> None:
    def train(wrap: Wrap) -> dict[str, Any]:
        def model_fn(features: tf.Tensor, mode: str) -> tfe.EstimatorSpec:
            def layer(x: tf.Tensor) -> tf.Tensor:
                normalize = BatchNormalization(1, name="norm")
                y = normalize(tf.nn.dropout(tf.sin(_dense(x, "a")), rate=0.2), training=True)
                for update in normalize.updates:
                    v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, update)
                return tf.sin(y) + x

            loss = tf.reduce_mean(wrap(layer)(_dense(features, "first")) ** 2)
            with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
                train_op = v1.train.GradientDescentOptimizer(0.1).minimize(
                    loss, v1.train.get_global_step()
                )
            return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

        config = tfe.RunConfig(
            tf_random_seed=1,
            device=tfe.DeviceConfig(iterations_per_loop=2, num_replicas=2),
        )
        estimator = tfe.Estimator(model_fn, tmp_path / wrap.__name__, config)
        estimator.train(lambda: tf.data.Dataset.from_tensors(X).repeat(), max_steps=4)
        return {n: estimator.get_variable_value(n) for n in estimator.get_variable_names()}

    expected, found = train(_same), train(recompute)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6, err_msg=name)


# Memory.


def _encoder_layer(x: tf.Tensor) -> tf.Tensor:
    """Computes self-attention and a feed-forward network, with dropout; x is [8, 32, 32]."""

    def dense(x: tf.Tensor, width: int, name: str) -> tf.Tensor:
        initializer = v1.random_normal_initializer(stddev=0.2, seed=1)
        weight = v1.get_variable(name, [x.shape[-1], width], initializer=initializer)
        return tf.einsum("bsd,de->bse", x, weight)

    def normalize(x: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-3)

    query, key, value = (dense(x, 32, name) for name in ("query", "key", "value"))
    scores = tf.nn.softmax(tf.matmul(query, key, transpose_b=True))  # [8, 32, 32]
    context = tf.matmul(tf.nn.dropout(scores, rate=0.1), value)
    x = normalize(x + tf.nn.dropout(dense(context, 32, "output"), rate=0.1))
    inner = dense(tf.nn.gelu(dense(x, 128, "inner")), 32, "outer")
    return normalize(x + tf.nn.dropout(inner, rate=0.1))


def _encode(wrap: Wrap, layers_at_once: int = 1) -> tuple[int, list[Any]]:
    """Returns the peak of live bytes in a step of an encoder of 8 layers, and its gradients."""
    config = v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        v1.set_random_seed(1)
        x = tf.constant(np.random.default_rng(0).normal(size=(8, 32, 32)).astype("float32"))
        for first in range(0, 8, layers_at_once):

            def layers(x: tf.Tensor, first: int = first) -> tf.Tensor:
                for number in range(first, first + layers_at_once):
                    x = recomputation_checkpoint(x) if number > first else x
                    with v1.variable_scope(f"layer_{number}"):
                        x = _encoder_layer(x)
                return x

            x = wrap(layers)(x)
        gradients = tf.gradients(tf.reduce_sum(x**2), v1.trainable_variables())
        session.run(v1.global_variables_initializer())
        run, metadata = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE), v1.RunMetadata()
        values = session.run(gradients, options=run, run_metadata=metadata)
    records = [
        (record.alloc_micros, record.alloc_bytes)
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
        for memory in node.memory
        for record in memory.allocation_records
    ]
    ordered = [size for _, size in sorted(records, key=lambda record: record[0])]
    return int(np.cumsum(ordered).max()), values


def test_an_encoder_of_8_layers_needs_a_third_of_the_memory_for_equal_gradients() -> None:
    plain, expected = _encode(_same)
    assert plain > 8 * 20 * 8 * 32 * 32 * 4  # At least 20 tensors of a layer's size in each.
    peak, gradients = _encode(recompute, layers_at_once=4)
    assert peak < 0.35 * plain, (peak, plain)
    assert len(gradients) == 8 * 6
    for one, other in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


# Bad input.


def test_a_function_that_returns_no_tensor_is_refused() -> None:
    with (
        tf.Graph().as_default(),
        pytest.raises(TypeError, match=r"^_named_nothing returned None and no"),
    ):
        recompute(_named_nothing)(tf.ones([2]))


def _named_nothing(x: tf.Tensor) -> None:
    """Returns nothing."""


def test_a_batch_norm_over_replicas_is_refused_in_a_function() -> None:
    with (
        tf.Graph().as_default(),
        pytest.raises(ValueError, match=r"is in a function of recompute, .* Set group_size=1"),
    ):
        recompute(lambda x: BatchNormalization()(x, training=True))(tf.ones([2, 3]))


def test_a_tape_in_eager_execution_and_symbols_of_keras_are_refused() -> None:
    x = tf.Variable(1.0)
    assert float(recompute(tf.sin)(x)) == pytest.approx(np.sin(1.0))
    with tf.GradientTape(), pytest.raises(RuntimeError, match="Call it in a model_fn"):
        recompute(tf.sin)(x)
    with pytest.raises(TypeError, match="Call recompute in the `call` of a layer"):
        recompute(tf.sin)(tf_keras.Input([3]))


def test_replicas_recompute_what_is_their_own() -> None:
    strategy = LocalStrategy(num_replicas=2)
    with tf.Graph().as_default(), strategy.scope():

        def replica() -> Any:
            own = tf.constant(X[:, :3]) * float(strategy.extended.replica_in_worker() + 1)
            y = recompute(lambda x: BatchNormalization(1)(tf.sin(x), training=True))(own)
            [gradient] = tf.gradients(y**3, own)
            repeated = [op for op in own.graph.get_operations() if "/recomputed/" in op.name]
            return gradient, tf.constant(sum(op.type == "Sin" for op in repeated))

        results = [strategy.experimental_local_results(one) for one in strategy.run(replica)]
        with v1.Session(config=strategy.update_config_proto(v1.ConfigProto())) as session:
            session.run(v1.global_variables_initializer())
            gradients, sines = session.run(results)
        assert list(sines) == [1, 2]  # Counted after each replica.
        assert np.abs(gradients).max() > 0.1
