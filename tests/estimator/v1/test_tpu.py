"""`tf.compat.v1.estimator.tpu` on CPUs and GPUs: an Estimator with batch sizes and eval_metrics."""

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.estimator.v1 import Estimator, tpu


def _input_fn(params: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices([1.0, 3.0] * 6).batch(params["batch_size"])


def _model_fn(features: Any, labels: Any, mode: str, params: Any) -> tpu.TPUEstimatorSpec:
    weight = v1.get_variable("weight", initializer=2.0)
    loss = tf.reduce_mean(features * weight)  # []
    if mode == tfe.ModeKeys.PREDICT:
        return tpu.TPUEstimatorSpec(mode, predictions={"product": features * weight})
    if mode == tfe.ModeKeys.EVAL:

        def metric_fn(x: tf.Tensor) -> dict[str, Any]:
            return {"mean": v1.metrics.mean(x)}

        return tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=(metric_fn, [features]))

    def host_call(step: tf.Tensor, losses: tf.Tensor) -> tf.Operation:
        calls = v1.get_local_variable("calls", initializer=0, dtype=tf.int32)
        with tf.control_dependencies([tf.identity(losses), tf.identity(step)]):
            return v1.assign_add(calls, 1)

    step = v1.train.get_or_create_global_step()
    return tpu.TPUEstimatorSpec(
        mode,
        loss=loss,
        train_op=v1.train.GradientDescentOptimizer(0.1).minimize(loss, step),
        host_call=(host_call, [tf.reshape(step, [1]), tf.reshape(loss, [1])]),
        scaffold_fn=lambda: v1.train.Scaffold(init_fn=lambda *_: made.append(params["batch_size"])),
        training_hooks=[_CountCalls()],
    )


made: list[int] = []


class _CountCalls(v1.train.SessionRunHook):  # type: ignore[misc]
    """Reads the variable that the host_call counts in."""

    calls = 0

    def begin(self) -> None:
        [self._variable] = [one for one in v1.local_variables() if one.name == "calls:0"]

    def end(self, session: Any) -> None:
        type(self).calls = int(session.run(self._variable))


def test_it_trains_evaluates_and_predicts_like_an_estimator(tmp_path: Path) -> None:
    made.clear()
    config = tpu.RunConfig(
        model_dir=str(tmp_path),
        save_checkpoints_steps=2,
        master="",
        cluster=None,
        tpu_config=tpu.TPUConfig(
            iterations_per_loop=1000,
            num_shards=8,
            per_host_input_for_training=tpu.InputPipelineConfig.PER_HOST_V2,
        ),
    )
    estimator = tpu.TPUEstimator(
        _model_fn,
        config=config,
        use_tpu=False,
        train_batch_size=2,
        eval_batch_size=4,
        predict_batch_size=3,
    )
    assert isinstance(estimator, Estimator)
    estimator.train(_input_fn, max_steps=3)
    # Three steps of 0.1 times the mean of 1 and 3.
    assert estimator.get_variable_value("weight") == pytest.approx(1.4)
    assert (made, _CountCalls.calls) == ([2], 3)
    metrics = estimator.evaluate(_input_fn)
    assert metrics["mean"] == pytest.approx(2.0) and metrics["global_step"] == 3
    products = [float(one["product"]) for one in estimator.predict(_input_fn)]
    assert products == pytest.approx([1.4, 4.2] * 6)


def test_a_config_keeps_its_tpu_config(tmp_path: Path) -> None:
    config = tpu.RunConfig(tpu.TPUConfig(num_shards=4), tf_random_seed=3)
    changed = config.replace(model_dir=str(tmp_path))
    assert (changed.tpu_config.num_shards, changed.tf_random_seed) == (4, 3)
    assert config.replace(tpu_config=tpu.TPUConfig(5)).tpu_config.iterations_per_loop == 5
    assert config.tpu_config.iterations_per_loop == 2 and config.cluster is None
    estimator = tpu.TPUEstimator(_model_fn, config=changed, use_tpu=False)
    assert estimator.config.tpu_config == changed.tpu_config


def test_a_tpu_is_refused() -> None:
    with pytest.raises(ValueError, match=r"use_tpu=True \(its default\).*Give use_tpu=False"):
        tpu.TPUEstimator(_model_fn)
    with pytest.raises(ValueError, match=r"master is 'grpc://a:8470', the address of a TPU"):
        tpu.RunConfig(master="grpc://a:8470")
