"""Small habits of programs written for tf.estimator."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras
from forking_launcher import FORKING_LAUNCHER

import tfdist.estimator as tfe
from tfdist.estimator.v1 import inputs

Make = Callable[..., Any]


def _counter(batches: list[int]) -> Callable[[], tf.data.Dataset]:
    """Makes an input_fn that notes each batch as the model reads it."""

    def note(row: Any) -> Any:
        def noted(value: Any) -> Any:
            batches.append(1)
            return value

        return tf.ensure_shape(tf.numpy_function(noted, [row], tf.float32), [1])

    return lambda: tf.data.Dataset.from_tensors([1.0]).repeat(50).map(note)


def _line(features: Any, mode: str | None) -> tfe.EstimatorSpec:
    loss = tf.reduce_sum(features * v1.get_variable("weight", [1]))
    step = v1.train.get_global_step()
    train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, step)
    # Some libraries leave the mode out.
    return tfe.EstimatorSpec(None, loss=loss, train_op=train_op, predictions=loss)


def test_a_fraction_of_a_step_and_a_spec_without_a_mode(tmp_path: Path) -> None:
    estimator = tfe.Estimator(_line, str(tmp_path).encode())
    assert estimator.model_dir == str(tmp_path)
    batches: list[int] = []
    estimator.train(_counter(batches), steps=2.5)
    assert estimator.get_variable_value("global_step") == 3
    estimator.train(_counter(batches), max_steps=4.5)
    assert estimator.get_variable_value("global_step") == 5
    batches.clear()
    eval_spec = tfe.EvalSpec(_counter(batches), steps=1.5)
    metrics, _ = tfe.train_and_evaluate(
        estimator, tfe.TrainSpec(_counter([]), max_steps=5.5), eval_spec
    )
    assert metrics["global_step"] == 6
    assert metrics["loss"] == pytest.approx(float(estimator.get_variable_value("weight")[0]))


def test_a_spec_without_a_mode_needs_what_the_mode_of_the_call_needs(tmp_path: Path) -> None:
    def model_fn(features: Any) -> tfe.EstimatorSpec:
        return tfe.EstimatorSpec(None, predictions=features)

    with pytest.raises(ValueError, match="Missing loss"):
        tfe.Estimator(model_fn, tmp_path).train(_counter([]), steps=1)


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_features_may_have_numbers_and_names_as_keys(num_replicas: int) -> None:
    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        return _line(tf.reduce_sum(features[0] + features["b"]), mode)

    x = tf.ones([8]).numpy()
    input_fn = inputs.numpy_input_fn({"b": x, 0: x}, batch_size=2, shuffle=False)
    config = tfe.RunConfig(device=tfe.DeviceConfig(num_replicas=num_replicas))
    estimator = tfe.Estimator(model_fn, config=config).train(input_fn)
    assert estimator.get_variable_value("global_step") == 4 // num_replicas


def test_a_keras_metric_of_another_graph_is_refused() -> None:
    with tf.Graph().as_default():
        metric = tf_keras.metrics.Mean()
        metric.update_state([1.0])
    message = r"eval_metric_ops\['mean'\].*from a different graph"
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        tfe.EstimatorSpec("eval", loss=tf.constant(1.0), eval_metric_ops={"mean": metric})


@pytest.mark.parametrize("where", ["strategy", "device"])
def test_a_gpu_that_this_machine_lacks_is_replaced_by_the_cpu(
    logged: list[str], where: str
) -> None:
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("this machine has a GPU")

    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        with tf.device("/gpu:0" if where == "device" else None):
            return _line(features, mode)

    strategy = tf.distribute.OneDeviceStrategy("device:GPU:0") if where == "strategy" else None
    config = tfe.RunConfig(train_distribute=strategy, eval_distribute=strategy)
    estimator = tfe.Estimator(model_fn, config=config).train(_counter([]), steps=2)
    assert estimator.evaluate(_counter([]), steps=1)["global_step"] == 2
    said = [line for line in logged if "this machine has no GPU: the CPU computes" in line]
    assert len(said) == (2 if where == "strategy" else 0)  # One line for each use.


_V1_PROGRAM = """
import sys
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
import tfdist.estimator as tfe
from tfdist.estimator.v1 import inputs
import numpy as np

def model_fn(features, labels, mode):
    output = tf.layers.dense(features["x"], 1)
    loss = tf.losses.mean_squared_error(labels, output)
    tf.summary.scalar("error", loss)
    train_op = tf.train.AdamOptimizer(0.1).minimize(loss, tf.train.get_global_step())
    return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

x = np.ones([20, 1], np.float32)
one_epoch = inputs.numpy_input_fn({"x": x}, x, batch_size=4, shuffle=False)  # [None, 1]
many = lambda: tf.data.Dataset.from_tensor_slices(({"x": x}, x)).batch(4).repeat()
estimator = tfe.Estimator(model_fn, sys.argv[1]).train(one_epoch)
replicas = tfe.RunConfig(device=tfe.DeviceConfig(num_replicas=2))
tfe.Estimator(model_fn, sys.argv[1], replicas).train(many, steps=5)
loops = tfe.RunConfig(device=tfe.DeviceConfig(iterations_per_loop=5), save_summary_steps=1)
tfe.Estimator(model_fn, sys.argv[1], loops).train(many, steps=5)
dnn = tfe.DNNClassifier([2], [tf.feature_column.numeric_column("x")])
dnn.train(lambda: many().map(lambda x, y: (x, tf.cast(y, tf.int64))), steps=2)
assert estimator.get_variable_value("global_step") == 15
in_loops = tfe.Estimator(model_fn, config=loops).train(many, steps=5)
assert in_loops.get_variable_names() == estimator.get_variable_names()
assert "beta1_power" in in_loops.get_variable_names()
"""


@pytest.mark.processes
def test_a_program_without_v2_behaviour_trains_under_the_launcher(
    tmp_path: Path, fake_cluster: Any
) -> None:
    program = tmp_path / "program.py"
    program.write_text(_V1_PROGRAM)
    words = [FORKING_LAUNCHER, "run", str(program), str(tmp_path / "model")]
    fake_cluster.run_script(words, engine="none", forked=True)
