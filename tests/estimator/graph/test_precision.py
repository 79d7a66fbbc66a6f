"""A model in half precision: what is cast where, what crosses, and what is refused."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras
from brief_training import Crossings
from small_training import train

import tfdist.estimator as tfe
from tfdist import training
from tfdist.estimator.graph.precision import ModelPrecision
from tfdist.strategies.placement import HOST
from tfdist.training.precision import find_precision

LAYOUTS: dict[str, dict[str, Any]] = {
    "micro-batches": {"accumulation": 2, "local_batch": 8},
    "replicas": {"num_replicas": 2, "local_batch": 8},
    "loop": {"iterations": 3, "local_batch": 16},
    "on the device": {"variables_on_host": False, "local_batch": 16},
}
SAME_SUMS = ("loop", "on the device")
MODELS: dict[str, dict[str, Any]] = {
    "layers": {"policy": "global", "precision": "mixed_float16"},
    "variables": {"has_embedding": True, "precision": "mixed_bfloat16"},
    "half weights": {"has_embedding": True, "precision": "bfloat16", "optimizer": "SGD"},
}


@pytest.fixture(scope="module")
def whole_batch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The weights of a device that takes the whole batch, for each model."""
    return {
        name: train("none", str(tmp_path_factory.mktemp("whole")), local_batch=16, **options)
        for name, options in MODELS.items()
    }


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        *(("layers", layout) for layout in ("micro-batches", "loop")),
        *(("variables", layout) for layout in ("replicas", "on the device")),
        # Rounded by chance: only equal sums give equal weights.
        *(("half weights", layout) for layout in SAME_SUMS),
    ],
)
def test_each_layout_is_two_units_of_the_half_from_one_device(
    whole_batch: Any, tmp_path: Path, model: str, layout: str
) -> None:
    values = train("none", str(tmp_path), **{**MODELS[model], **LAYOUTS[layout]})["values"]
    expected = whole_batch[model]["values"]
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        if model != "half weights":
            assert value.dtype in (np.float32, np.int64), name
        exact, found = value.astype(np.float64), values[name].astype(np.float64)
        two_units = 2 * 2.0**-8 * np.abs(exact).max()
        np.testing.assert_allclose(found, exact, atol=two_units, err_msg=name)
        if layout in SAME_SUMS:
            np.testing.assert_array_equal(found, exact, err_msg=name)


# What crosses between the device and the host.


SHAPES = {"first": [8, 100], "bias": [100], "last": [100, 50]}


def _train_variables(folder: Path, hook: Any, device: Any, reads: int = 1) -> tfe.Estimator:
    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        first, bias, last = (v1.get_variable(name, shape) for name, shape in SHAPES.items())
        hidden = tf.cast(features, find_precision(device.precision).compute)
        for _ in range(reads):
            out = tf.matmul(tf.nn.relu(tf.nn.bias_add(tf.matmul(hidden, first), bias)), last)
        loss = tf.reduce_mean(tf.square(tf.cast(out, tf.float32)))
        pairs = v1.train.GradientDescentOptimizer(0.1).compute_gradients(loss)

        def update(*gradients: Any) -> Any:
            assert all(g.dtype == tf.float32 and g.device == HOST for g in gradients)
            weights = [weight for _, weight in pairs]
            optimizer = v1.train.GradientDescentOptimizer(0.1)
            return optimizer.apply_gradients(zip(gradients, weights, strict=True))

        return tfe.EstimatorSpec(mode, loss=loss, host_call=(update, [g for g, _ in pairs]))

    def input_fn() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors(np.ones([4, 8], "float32")).repeat()

    estimator = tfe.Estimator(model_fn, folder, tfe.RunConfig(device=device))
    return estimator.train(input_fn, hooks=[hook], max_steps=2)


@pytest.mark.parametrize("reads", [1, 2])
def test_half_the_bytes_cross_each_way(tmp_path: Path, reads: int) -> None:
    num_bytes = {}
    for precision in ("float32", "mixed_bfloat16"):
        hook = Crossings()
        device = tfe.DeviceConfig(precision=precision)
        _train_variables(tmp_path / precision, hook, device, reads)
        crossed = [(n, d) for n, d, _ in hook.sent if not re.match("IteratorGetNext|Mean", n)]
        # Each weight once to the device, and its gradient once to the host.
        assert len(crossed) == 2 * len(SHAPES), crossed
        assert sum(name.startswith("gradients/") for name, _ in crossed) == len(SHAPES)
        num_bytes[precision] = sum(dtype.size for _, dtype in crossed)
    assert num_bytes["mixed_bfloat16"] * 2 == num_bytes["float32"]


def test_in_a_loop_of_steps_weights_and_gradients_cross_in_half(tmp_path: Path) -> None:
    hook = Crossings()
    device = tfe.DeviceConfig(precision="mixed_float16", iterations_per_loop=2)
    _train_variables(tmp_path, hook, device)
    halves = [name for name, dtype, _ in hook.sent if dtype == tf.float16]
    assert len(halves) == 2 * len(SHAPES), hook.sent
    rest = [name for name, dtype, _ in hook.sent if dtype == tf.float32]
    assert all(re.search("IteratorGetNext|Mean|loop_body_control", name) for name in rest), rest


def test_micro_batches_are_added_in_float32_on_the_device(tmp_path: Path) -> None:
    hook = Crossings()
    device = tfe.DeviceConfig(precision="mixed_float16", gradient_accumulation=2)
    _train_variables(tmp_path, hook, device)
    # The sums cross once a step; gradients of one micro-batch do not.
    assert not [name for name, *_ in hook.sent if name.startswith("gradients/")]
    assert sum(dtype == tf.float16 for _, dtype, _ in hook.sent) == len(SHAPES)


# Reads of one weight.


def _in_model(function: Callable[[], Any], precision: str = "mixed_bfloat16") -> Any:
    """Calls a function in a graph, as a model_fn of this precision."""
    numbers = ModelPrecision(find_precision(precision), HOST)
    with numbers.around_model():
        return numbers.call(function)


def _gradient(read: Callable[[Any], Any], use_tape: bool = False) -> Any:
    """Returns the gradient of a sum over the elements of what `read` makes of a weight."""

    def model() -> Any:
        weight = v1.get_variable("w", [3], initializer=v1.ones_initializer())
        if not use_tape:
            return tf.gradients(tf.reduce_sum(read(weight)), v1.trainable_variables())[0]
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(read(weight))
        return tape.gradient(total, v1.trainable_variables())[0]

    with tf.Graph().as_default(), v1.Session() as session:
        gradient = _in_model(model)
        session.run(v1.global_variables_initializer())
        return session.run(tf.convert_to_tensor(gradient))


def _in_loop(weight: Any) -> Any:
    start = [tf.constant(0), tf.zeros([3], tf.float32)]
    return tf.while_loop(
        lambda i, _: i < 1000, lambda i, x: (i + 1, x + tf.cast(weight, tf.float32)), start
    )[1]


@pytest.mark.parametrize("use_tape", [False, True])
@pytest.mark.parametrize(
    "read",
    [
        lambda weight: tf.add_n([tf.cast(tf.identity(weight), tf.float32) for _ in range(300)]),
        _in_loop,
    ],
    ids=["reads", "loop"],
)
def test_gradients_of_many_reads_are_added_in_float32(read: Any, use_tape: bool) -> None:
    """A sum of ones in bfloat16 stays at 256: it has no 257."""
    expected = 1000 if read is _in_loop else 300
    np.testing.assert_allclose(_gradient(read, use_tape), expected, rtol=2.0**-8)


@pytest.mark.parametrize("use_tape", [False, True])
def test_rows_and_values_of_a_weight_are_read_in_half(use_tape: bool) -> None:
    def read(weight: Any) -> Any:
        rows, value = tf.nn.embedding_lookup(weight, [2, 2]), weight * 3.0
        assert rows.dtype == value.dtype == tf.bfloat16
        assert weight.dtype == weight.read_value().dtype == tf.float32
        return tf.concat([tf.nn.bias_add(tf.cast(value, tf.bfloat16)[None], weight)[0], rows], 0)

    np.testing.assert_array_equal(_gradient(read, use_tape), [4, 4, 6])


def test_a_read_that_waits_for_an_update_gets_the_new_value() -> None:
    def model() -> Any:
        weight = v1.get_variable("w", [], initializer=v1.ones_initializer())
        with tf.control_dependencies([tf.identity(weight)]):
            update = weight.assign(5.0)
        with tf.control_dependencies([update]):
            return tf.identity(weight)

    with tf.Graph().as_default(), v1.Session() as session:
        after = _in_model(model)
        session.run(v1.global_variables_initializer())
        assert session.run(after) == 5
        [weight] = v1.trainable_variables()
        assert tf.convert_to_tensor(weight).dtype == tf.float32


@pytest.mark.parametrize(
    ("precision", "stored"), [("mixed_float16", tf.float32), ("float16", tf.float16)]
)
def test_layers_of_tensorflow_1_follow_the_dtype_of_their_inputs(
    precision: str, stored: tf.DType
) -> None:
    def model() -> Any:
        inputs = tf.ones([2, 4])
        for dtype in (tf.float16, tf.float32):
            hidden = v1.layers.dense(tf.cast(inputs, dtype), 3, name=dtype.name)
            hidden = v1.layers.batch_normalization(hidden, training=True, fused=False)
            assert hidden.dtype == dtype

    with tf.Graph().as_default(), pytest.warns(UserWarning, match="deprecated"):
        _in_model(model, precision)
        dtypes = {v.op.name: v.dtype for v in v1.trainable_variables()}
    assert dtypes.pop("float16/kernel") == dtypes.pop("float16/bias") == stored
    assert set(dtypes.values()) == {tf.float32}


# The policy of tf_keras.


@pytest.mark.parametrize("own", [None, "mixed_bfloat16"])
@pytest.mark.parametrize("fails", [False, True])
def test_the_policy_is_that_of_before_once_model_fn_is_done(
    graph: tf.Graph, own: Any, fails: bool
) -> None:
    def model() -> None:
        assert tf_keras.mixed_precision.global_policy().name == "mixed_float16"
        if fails:
            raise RuntimeError("model_fn")

    tf_keras.mixed_precision.set_global_policy(own)
    before = tf_keras.mixed_precision.global_policy().name
    try:
        with pytest.raises(RuntimeError, match="model_fn") if fails else nullcontext():
            _in_model(model, "mixed_float16")
        assert tf_keras.mixed_precision.global_policy().name == before
        layer = tf_keras.layers.Dense(2)
        assert layer.dtype_policy.name == before
        _in_model(lambda: layer.build([1, 2]), "float32")
    finally:
        tf_keras.mixed_precision.set_global_policy(None)


# All modes.


def _estimator(
    folder: Path, seen: list[Any], output: Any, optimizer: Any = None, **device: Any
) -> tfe.Estimator:
    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        out = output(features)
        seen.append((mode, out.dtype))
        out = tf.cast(out, tf.float32)
        loss = tf.reduce_mean(tf.square(out - 1.0))
        if mode != tfe.ModeKeys.TRAIN:
            return tfe.EstimatorSpec(mode, loss=loss, predictions=out)
        step = v1.train.get_global_step()
        chosen = (optimizer or v1.train.AdamOptimizer)(0.1)
        return tfe.EstimatorSpec(mode, loss=loss, train_op=chosen.minimize(loss, step))

    return tfe.Estimator(model_fn, folder, tfe.RunConfig(device=tfe.DeviceConfig(**device)))


def _input_fn() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors(np.ones([2, 3], "float32")).repeat(2)


def _dense(features: Any) -> Any:
    given = features["feature"] if isinstance(features, dict) else features
    start = tf_keras.initializers.GlorotUniform(seed=3)
    return tf_keras.layers.Dense(4, kernel_initializer=start, name="dense")(given)


def test_all_modes_compute_in_half_and_checkpoints_are_those_of_float32(tmp_path: Path) -> None:
    seen: list[Any] = []
    mixed = _estimator(tmp_path, seen, _dense, precision="mixed_bfloat16")
    mixed.train(_input_fn)
    loss = mixed.evaluate(_input_fn)["loss"]
    prediction = next(iter(mixed.predict(_input_fn)))
    receiver = tfe.export.build_raw_serving_input_receiver_fn(tf.ones([2, 3]))
    folder = mixed.export_saved_model(str(tmp_path / "export"), receiver)
    assert [mode for mode, _ in seen] == ["train", "eval", "infer", "infer"]
    assert {dtype for _, dtype in seen} == {tf.bfloat16}
    with tf.Graph().as_default(), v1.Session() as session:
        loaded = v1.saved_model.load(session, ["serve"], folder.decode())
        signature = loaded.signature_def["serving_default"]
        fed = {one.name: np.ones([2, 3]) for one in signature.inputs.values()}
        output = session.run(next(iter(signature.outputs.values())).name, fed)
    np.testing.assert_array_equal(output[0], prediction)
    exact = _estimator(tmp_path, seen, _dense)
    assert exact.evaluate(_input_fn)["loss"] == pytest.approx(loss, rel=0.02)
    exact.train(_input_fn)
    assert exact.get_variable_value("global_step") == 4


def test_stochastic_rounding_can_be_switched_off(tmp_path: Path) -> None:
    """In float16 the neighbours of 1000 are 0.5 away, and a step of SGD is at most 1e-4."""

    def output(features: Any) -> Any:
        start = v1.constant_initializer(1000.0)
        weight = v1.get_variable("w", [10_000], initializer=start)
        return weight * tf.cast(1e-3 * features[0, 0], tf.float16)

    moved = {}
    for rounds in (None, True, False):
        device = {"precision": "16.16", "stochastic_rounding": rounds}
        folder = tmp_path / str(rounds)
        made = _estimator(folder, [], output, lambda _: training.SGD(1e4), **device)
        weights = made.train(_input_fn).get_variable_value("w")
        assert weights.dtype == np.float16
        moved[rounds] = int((weights != 1000).sum())
    assert moved[False] == 0
    assert moved[None] == moved[True]


# What is refused or said.


def _of_floats(features: Any) -> Any:
    return tf.matmul(features, tf.Variable(tf.ones([3, 2])))


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (None, "no weight of model_fn follows it. Use layers of tf_keras without dtype"),
        ("float32", r'Keras 3 call keras.mixed_precision.set_global_policy\("mixed_bfloat16"\)'),
        ("mixed_bfloat16", None),
    ],
)
def test_a_model_that_does_not_follow_the_precision_is_refused_unless_keras_3_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str | None, message: str | None
) -> None:
    monkeypatch.setattr("tfdist.estimator.graph.precision.policy_of_keras_3", lambda: policy)
    estimator = _estimator(tmp_path, [], _of_floats, precision="mixed_bfloat16")
    with pytest.raises(ValueError, match=message) if message else nullcontext():
        estimator.train(_input_fn)


@pytest.mark.parametrize(("precision", "is_off"), [("float32", 0), ("mixed_bfloat16", 2)])
def test_convolutions_in_bfloat16_are_not_fused(
    tmp_path: Path, precision: str, is_off: int
) -> None:
    config = _estimator(tmp_path, [], _dense, precision=precision).config.session_config
    assert config.graph_options.rewrite_options.remapping == is_off
    assert config.allow_soft_placement


def test_a_stock_optimizer_with_half_weights_is_refused(tmp_path: Path) -> None:
    estimator = _estimator(tmp_path, [], _dense, precision="float16")
    with pytest.raises(ValueError, match=r"Adam would update dense/kernel in float16.* Use LAMB"):
        estimator.train(_input_fn)


def test_a_half_loss_and_an_emulated_half_are_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        loss = tf.reduce_mean(_dense(features))
        train_op = training.SGD(0.1).minimize(loss, v1.train.get_global_step())
        return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

    lines: list[str] = []
    for level in ("info", "warning"):
        monkeypatch.setattr(v1.logging, level, lambda text, *args: lines.append(text % args))
    module = "tfdist.estimator.loop.model_check"
    monkeypatch.setattr(f"{module}.processor_features", lambda: {"avx2"})
    device = tfe.DeviceConfig(precision="mixed_bfloat16")
    tfe.Estimator(model_fn, tmp_path, tfe.RunConfig(device=device)).train(_input_fn)
    assert sum(line.startswith("bfloat16 is emulated on this CPU") for line in lines) == 1
    assert sum(line.startswith("The loss is bfloat16") for line in lines) == 1
