"""A checkpoint that does not fit the model is refused before anything is restored from it."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.estimator.checkpoints.fit import (
    CheckpointMismatchError,
    CheckpointValue,
    difference,
    mismatch,
)
from tfdist.estimator.export import build_raw_serving_input_receiver_fn
from tfdist.process.endings import OneLineError

Make = Callable[..., Any]


def model(
    units: int = 3,
    dtype: tf.DType = tf.float32,
    *,
    has_bias: bool = True,
    parts: int = 1,
    make_scaffold: Callable[[], Any] = lambda: None,
) -> Any:
    """A model_fn whose predictions are features times "kernel" [2, units], plus "bias" [units]."""

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        partitioner = v1.fixed_size_partitioner(parts) if parts > 1 else None
        with v1.variable_scope("", partitioner=partitioner):
            kernel = v1.get_variable("kernel", [2, units], dtype, v1.ones_initializer())
        outputs = tf.matmul(tf.cast(features["x"], dtype), kernel)
        if has_bias:
            outputs += v1.get_variable("bias", [units], dtype, v1.zeros_initializer())
        loss = tf.cast(tf.reduce_mean(tf.square(outputs)), tf.float32)
        step = v1.train.get_global_step()
        return tfe.EstimatorSpec(
            mode,
            predictions=outputs,
            loss=loss,
            train_op=v1.train.GradientDescentOptimizer(0.1).minimize(loss, step),
            scaffold=make_scaffold(),
        )

    return model_fn


def train(model_fn: Any, folder: Path, numbers: Make, **options: Any) -> tfe.Estimator:
    return tfe.Estimator(model_fn, folder, **options).train(numbers(), steps=1)


def evaluate(model_fn: Any, folder: Path, numbers: Make) -> None:
    tfe.Estimator(model_fn, folder).evaluate(numbers(), steps=1)


def predict(model_fn: Any, folder: Path, numbers: Make) -> None:
    next(tfe.Estimator(model_fn, folder).predict(numbers()))


def export(model_fn: Any, folder: Path, numbers: Make) -> None:
    receiver_fn = build_raw_serving_input_receiver_fn({"x": tf.zeros([1, 2])})
    tfe.Estimator(model_fn, folder).export_saved_model(folder / "export", receiver_fn)


def written_in(folder: Path) -> dict[str, bytes]:
    """The files of the checkpoints, and what is in them."""
    return {path.name: path.read_bytes() for path in folder.glob("*") if "ckpt" in path.name}


@pytest.mark.parametrize(
    ("use", "changed", "what"),
    [
        (train, {"units": 5}, "float32 [5]"),
        (evaluate, {"dtype": tf.float64}, "float64 [3]"),
        (predict, {"units": 5}, "float32 [5]"),
        (export, {"dtype": tf.float64}, "float64 [3]"),
    ],
)
def test_a_changed_layer_is_refused_in_one_line(
    numbers: Make, tmp_path: Path, use: Any, changed: dict[str, Any], what: str
) -> None:
    train(model(), tmp_path, numbers)
    before = written_in(tmp_path)
    with pytest.raises(CheckpointMismatchError) as caught:
        use(model(**changed), tmp_path, numbers)
    assert (
        f"Restoring from checkpoint failed for a mismatch between {tmp_path}/model.ckpt-1 and the "
        f"model: bias is float32 [3] in the checkpoint and {what} in the model (variables that "
        "differ: 2 of 3). Use another model_dir, or the model that wrote the checkpoint."
    ) in str(caught.value)
    assert isinstance(caught.value, OneLineError)
    assert isinstance(caught.value, (ValueError, tf.errors.InvalidArgumentError))
    assert caught.value.message == str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert "\n" not in str(caught.value)
    assert written_in(tmp_path) == before


def test_a_variable_that_the_checkpoint_lacks_is_named(numbers: Make, tmp_path: Path) -> None:
    train(model(has_bias=False), tmp_path, numbers)
    with pytest.raises(
        tf.errors.NotFoundError, match=r"bias \(float32 \[3\] in the model\) is not in the checkp"
    ):
        predict(model(), tmp_path, numbers)


@pytest.mark.parametrize("use", [train, export])
def test_what_only_the_checkpoint_has_is_no_error(numbers: Make, tmp_path: Path, use: Any) -> None:
    train(model(), tmp_path, numbers)
    use(model(has_bias=False), tmp_path, numbers)


def test_a_variable_that_a_hook_makes_is_compared(numbers: Make, tmp_path: Path) -> None:
    class Average(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
        def begin(self) -> None:
            v1.get_variable("average", [])

    train(model(), tmp_path, numbers)
    with pytest.raises(CheckpointMismatchError, match=r"average \(float32 \[\] in the model\)"):
        tfe.Estimator(model(), tmp_path).train(numbers(), steps=1, hooks=[Average()])


def test_replicas_refuse_a_changed_layer(numbers: Make, tmp_path: Path) -> None:
    two_replicas = tfe.RunConfig(device=tfe.DeviceConfig(num_replicas=2))
    train(model(), tmp_path, numbers, config=two_replicas)
    with pytest.raises(CheckpointMismatchError, match=r"bias is float32 \[3\] in the checkpoint"):
        train(model(5), tmp_path, numbers, config=two_replicas)


# Partitions.


def test_partitions_are_compared_by_the_shape_of_the_whole(numbers: Make, tmp_path: Path) -> None:
    train(model(3, parts=2), tmp_path, numbers)
    message = r"kernel is float32 \[2, 3\] in the checkpoint and float32 \[2, 5\] in the model"
    with pytest.raises(CheckpointMismatchError, match=message):
        train(model(5, parts=2, has_bias=False), tmp_path, numbers)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_partitions_may_change(numbers: Make, tmp_path: Path, before: int, after: int) -> None:
    train(model(parts=before), tmp_path, numbers)
    again = train(model(parts=after), tmp_path, numbers)
    assert again.get_variable_value("global_step") == 2


# Savers of the user's own.


def test_the_names_of_a_saver_of_ones_own_count(numbers: Make, tmp_path: Path) -> None:
    def renaming_saver() -> Any:
        names = {"kernel": "weights", "bias": "offset", "global_step": "global_step"}
        variables = {names[v.op.name]: v for v in v1.global_variables()}
        return v1.train.Scaffold(saver=v1.train.Saver(variables))

    train(model(make_scaffold=renaming_saver), tmp_path, numbers)
    again = train(model(make_scaffold=renaming_saver), tmp_path, numbers)
    assert set(again.get_variable_names()) == {"weights", "offset", "global_step"}
    with pytest.raises(CheckpointMismatchError, match=r"offset is float32 \[3\] in the checkpoint"):
        train(model(5, make_scaffold=renaming_saver), tmp_path, numbers)


@pytest.fixture
def saved(tmp_path: Path) -> str:
    """A checkpoint of "kernel" [2, 3] and "bias" [3]."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("kernel", [2, 3])
        v1.get_variable("bias", [3])
        session.run(v1.global_variables_initializer())
        return str(v1.train.Saver().save(session, str(tmp_path / "model.ckpt")))


def test_only_what_a_saver_restores_is_compared(saved: str, graph: tf.Graph) -> None:
    kernel, _ = v1.get_variable("kernel", [2, 3]), v1.get_variable("bias", [5])
    assert mismatch(v1.train.Saver([kernel]), saved) is None
    assert "bias is float32 [3]" in str(mismatch(v1.train.Saver(), saved))


def test_a_saver_that_reshapes_may_have_another_shape(saved: str, graph: tf.Graph) -> None:
    six = v1.get_variable("kernel", [6])
    assert mismatch(v1.train.Saver([six], reshape=True), saved) is None
    assert mismatch(v1.train.Saver([six]), saved) is not None
    seven = v1.get_variable("seven", [7])
    assert mismatch(v1.train.Saver({"kernel": seven}, reshape=True), saved) is not None


def test_old_variables_and_unknown_shapes_are_compared_as_far_as_they_go(
    saved: str, graph: tf.Graph
) -> None:
    old = v1.get_variable("kernel", [2, 4], use_resource=False)
    assert "float32 [2, 4] in the model" in str(mismatch(v1.train.Saver([old]), saved))
    unknown = v1.get_variable("bias", initializer=tf.zeros([3]), validate_shape=False)
    assert mismatch(v1.train.Saver([unknown]), saved) is None


def test_a_table_is_compared_by_its_name_and_dtypes(tmp_path: Path) -> None:
    def saver_and_table(dtype: tf.DType = tf.int64, name: str = "table") -> Any:
        default = tf.constant(0, dtype)
        table = tf.lookup.experimental.MutableHashTable(tf.string, dtype, default, name=name)
        return v1.train.Saver(), table.insert(["one"], tf.constant([1], dtype))

    with tf.Graph().as_default(), v1.Session() as session:
        saver, insert = saver_and_table()
        session.run(insert)
        path = saver.save(session, str(tmp_path / "model.ckpt"))
    other_dtype = "int64 [1] in the checkpoint and float32 of any shape in the model"
    for changed, expected in (
        ({}, "None"),
        ({"name": "other"}, "is not in the checkpoint"),
        ({"dtype": tf.float32}, other_dtype),
    ):
        with tf.Graph().as_default():
            assert expected in str(mismatch(saver_and_table(**changed)[0], path))


def objects() -> Any:
    root = tf.train.Checkpoint(**{variable.op.name: variable for variable in v1.global_variables()})
    return v1.train.Scaffold(saver=root)


@pytest.mark.parametrize("use", [train, predict])
def test_an_object_based_checkpoint_is_compared(numbers: Make, tmp_path: Path, use: Any) -> None:
    train(model(make_scaffold=objects), tmp_path, numbers)
    with pytest.raises(CheckpointMismatchError, match=r"float32 \[3\] in the checkpoint and"):
        use(model(5, make_scaffold=objects), tmp_path, numbers)
    use(model(make_scaffold=objects), tmp_path, numbers)


def test_a_saver_that_goes_by_names_is_compared_with_an_object_based_checkpoint(
    numbers: Make, tmp_path: Path
) -> None:
    train(model(make_scaffold=objects), tmp_path, numbers)
    export(model(), tmp_path, numbers)  # It finds the names.
    with pytest.raises(CheckpointMismatchError, match=r"bias is float32 \[3\] in the checkpoint"):
        export(model(5), tmp_path, numbers)
    with pytest.raises(
        CheckpointMismatchError, match=r" is not in the checkpoint \(variables that differ: 3"
    ):
        evaluate(model(), tmp_path, numbers)  # Here it would add operations to a finalized graph.


# Starting from another model's variables.


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"units": 5}, r"bias:0 .* doesn't match"),
        ({"dtype": tf.float64}, r"bias is float32 \[3\] in the checkpoint and float64 \[3\] in"),
    ],
)
def test_a_warm_start_from_another_shape_or_dtype_is_refused(
    numbers: Make, tmp_path: Path, changed: dict[str, Any], expected: str
) -> None:
    older = train(model(), tmp_path / "older", numbers)
    with pytest.raises(ValueError, match=expected):
        train(model(**changed), tmp_path / "new", numbers, warm_start_from=older.model_dir)
    chosen = tfe.WarmStartSettings(older.model_dir, vars_to_warm_start="nothing")
    train(model(**changed), tmp_path / "new", numbers, warm_start_from=chosen)


# The comparison.


def test_the_first_difference_in_the_models_order_is_named_and_an_open_size_may_be_any() -> None:
    def value(*shape: int | None) -> CheckpointValue:
        return CheckpointValue(dtype=tf.float32, shape=tf.TensorShape(shape))

    wanted = {f"layer_{i}": value(2, None) for i in range(9)}
    assert difference(wanted, {**wanted, "layer_8": value(2, 7), "more": value(1)}) is None
    assert difference(wanted, {**wanted, "layer_8": value(3, 7)}) == (
        "layer_8 is float32 [3, 7] in the checkpoint and float32 [2, None] in the model "
        "(variables that differ: 1 of 9)"
    )
    assert difference(wanted, {"layer_0": value(2, 7)}) == (
        "layer_1 (float32 [2, None] in the model) is not in the checkpoint "
        "(variables that differ: 8 of 9)"
    )
