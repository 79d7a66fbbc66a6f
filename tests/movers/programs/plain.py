"""Ten steps with checkpoints every four, an evaluation, predictions."""

# ruff: noqa: ANN001, ANN201 (as such programs are)

import argparse
import json

import numpy as np
import tensorflow as tf

import tfdist.estimator as tfe

v1 = tf.compat.v1


def input_fn():
    random = np.random.RandomState(0)
    x = random.randn(64, 2).astype(np.float32)
    y = random.randn(64, 3).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(({"x": x}, y)).batch(4)


def model_fn(features, labels, mode, params):
    kernel = v1.get_variable("kernel", [2, 3], initializer=v1.ones_initializer())
    bias = v1.get_variable("bias", [3], initializer=v1.zeros_initializer())
    output = tf.matmul(features["x"], kernel) + bias
    if mode == tfe.ModeKeys.PREDICT:
        return tfe.EstimatorSpec(mode, predictions={"output": output, "x": features["x"]})
    loss = tf.reduce_mean(tf.square(output - labels))
    v1.summary.scalar("bias_norm", tf.norm(bias))
    v1.summary.histogram("kernel", kernel)
    train_op = v1.train.AdamOptimizer(params["rate"]).minimize(
        loss, global_step=v1.train.get_global_step()
    )
    metrics = {
        "mae": v1.metrics.mean_absolute_error(labels, output),
        "per_column": v1.metrics.mean_tensor(tf.reduce_mean(tf.abs(output - labels), axis=0)),
    }
    return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)


parser = argparse.ArgumentParser()
parser.add_argument("--model-dir")
arguments = parser.parse_args()
config = tfe.RunConfig(
    save_checkpoints_steps=4, save_summary_steps=1, log_step_count_steps=2, tf_random_seed=1
)
estimator = tfe.Estimator(model_fn, arguments.model_dir, config, {"rate": 0.1})
estimator.train(input_fn, steps=10)
metrics = estimator.evaluate(input_fn, steps=5)
named = estimator.evaluate(input_fn, name="all")
predictions = list(estimator.predict(input_fn, predict_keys=["output"]))
values = {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}
print(
    json.dumps(
        {
            "metrics": {name: value.tolist() for name, value in metrics.items()},
            "named": {name: value.tolist() for name, value in named.items()},
            "predictions": [one["output"].tolist() for one in predictions],
            "variables": {name: value.tolist() for name, value in values.items()},
            "latest": estimator.latest_checkpoint().replace(arguments.model_dir, "DIR"),
        }
    )
)
