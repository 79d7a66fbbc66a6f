"""A program with most of what an Estimator offers, run by every strategy."""

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.strategies import HorovodStrategy, LocalStrategy, MultiWorkerStrategy

_STRATEGIES = {"grpc": MultiWorkerStrategy, "horovod": HorovodStrategy, "none": LocalStrategy}
_WORDS = np.random.RandomState(0).randint(0, 10, (96, 3))
_LABELS = (_WORDS.sum(axis=1) % 2).astype(np.float32)[:, None]  # [96, 1]


def run_program(
    engine: str, folder: str, warm_start_from: str, num_replicas: int
) -> dict[str, Any] | None:
    """Runs the program in this worker; returns the results on worker 0, None on others.

    Warm start, batch sizes, training with decay of the learning rate, evaluation on the host,
    prediction and export.
    """
    config = tfe.RunConfig(train_distribute=_STRATEGIES[engine](num_replicas=num_replicas))
    estimator = tfe.Estimator(
        _model_fn,
        folder,
        config,
        warm_start_from=warm_start_from,
        train_batch_size=24,
        eval_batch_size=6,
        predict_batch_size=12,
    )
    estimator.train(_input_fn, max_steps=3)
    if not config.is_chief:
        return None
    exported = estimator.export_saved_model(folder + "/export", _receiver)
    serve = tf.saved_model.load(exported.decode()).signatures["serving_default"]
    served = serve(tf.constant(_WORDS))["score"]
    return {
        "values": {n: estimator.get_variable_value(n) for n in estimator.get_variable_names()},
        "metrics": estimator.evaluate(_input_fn),
        "predicted": np.array([p["score"] for p in estimator.predict(_input_fn)]),
        "served": served.numpy(),
    }


def _input_fn(params: Any, mode: str, input_context: Any = None) -> tf.data.Dataset:
    data = tf.data.Dataset.from_tensor_slices(({"words": _WORDS}, _LABELS))
    data = data.batch(params["batch_size"], drop_remainder=True)
    if mode == tfe.ModeKeys.TRAIN:
        data = data.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return data


def _model_fn(features: Any, labels: Any, mode: str, params: Any) -> tfe.EstimatorSpec:
    table = v1.get_variable("table", [10, 4], initializer=v1.zeros_initializer())
    bias = v1.get_variable("bias", [1], initializer=v1.zeros_initializer())
    embedded = tf.reduce_mean(tf.nn.embedding_lookup(table, features["words"]), axis=1)
    logits = tf.reduce_sum(embedded, axis=1, keepdims=True) + bias  # [local_batch, 1]
    score = tf.sigmoid(logits)
    if mode == tfe.ModeKeys.PREDICT:
        return tfe.EstimatorSpec(mode, predictions={"score": score})
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    if mode == tfe.ModeKeys.EVAL:
        return tfe.EstimatorSpec(mode, loss=loss, eval_metrics=(_metrics, [labels, score]))
    step = v1.train.get_global_step()
    rate = v1.train.exponential_decay(0.5, step, 2, 0.9)
    optimizer = v1.train.AdamOptimizer(rate)
    return tfe.EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, global_step=step))


def _metrics(labels: Any, score: Any) -> dict[str, Any]:
    return {
        "auc": v1.metrics.auc(labels, score),
        "rmse": v1.metrics.root_mean_squared_error(labels, score),
    }


def _receiver() -> tfe.export.ServingInputReceiver:
    return tfe.export.ServingInputReceiver(
        {"words": v1.placeholder(tf.int64, [None, 3], name="words")},
        v1.get_default_graph().get_tensor_by_name("words:0"),
    )
