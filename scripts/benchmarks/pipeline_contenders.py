"""One network, trained by a pipeline, in a sharded way, and by a plain tf.function."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.pipeline import Block, Options, Stage, TrainingModel, training_model
from tfdist.pipeline.stages import ExecutionStrategy

NUM_FEATURES, NUM_CLASSES = 960, 10
LEARNING_RATE = 0.01
NUM_DEVICES = 4
PLAIN_DEVICE = "/device:CPU:1"

# A call with all samples of a weight update; gives the losses.
Step = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


class Network(tf.Module):  # type: ignore[misc]
    """Dense layers, each in a block of its own; the last block has the classes and the loss too.

    The first layer has more inputs than the others: it has no gradient to hand back, and the blocks
    should take about the same time.
    """

    def __init__(self, width: int, num_blocks: int) -> None:
        super().__init__()
        random = np.random.default_rng(0)
        sizes = [NUM_FEATURES, *[width] * num_blocks, NUM_CLASSES]
        self.num_blocks = num_blocks
        self.kernels, self.biases = [], []
        for rows, columns in itertools.pairwise(sizes):
            values = random.normal(0.0, rows**-0.5, (rows, columns))
            self.kernels.append(tf.Variable(values, dtype=tf.float32))
            self.biases.append(tf.Variable(tf.zeros(columns)))

    def __call__(self, x: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        for number in range(self.num_blocks - 1):
            with Block(block_name(number)):
                x = self._layer(number, x)
        with Block(block_name(self.num_blocks - 1)):
            x = self._layer(self.num_blocks - 1, x)
            logits = x @ self.kernels[-1] + self.biases[-1]
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            return tf.reduce_mean(losses)

    def _layer(self, number: int, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(x @ self.kernels[number] + self.biases[number])


def block_name(number: int) -> str:
    """Returns a block's name."""
    return f"B{number}"


def samples(count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns as many samples: [count, features] and [count]."""
    random = np.random.default_rng(1)
    images = random.normal(size=(count, NUM_FEATURES)).astype(np.float32)
    return tf.constant(images), tf.constant(random.integers(0, NUM_CLASSES, count))


def staged_model(
    network: Network,
    cut: Sequence[Sequence[int]],
    micro_batches: int,
    strategy: Callable[..., ExecutionStrategy],
    *,
    profile_dir: str | None = None,
) -> TrainingModel:
    """Trains the network in stages.

    Args:
      network: A new one: its variables become those of the devices.
      cut: The numbers of each stage's blocks. The stages have devices of their own, in turn.
      micro_batches: Of one weight update.
      strategy: Makes the execution strategy of the stages.
      profile_dir: Where the first calls write their profiles.
    """
    stages = [
        Stage(*map(block_name, numbers)).device(index % NUM_DEVICES)
        for index, numbers in enumerate(cut)
    ]
    options = Options().gradient_accumulation(micro_batches).output_mode("all")
    options = options.show_progress_bar(False).execution_strategy(strategy(*stages))
    if profile_dir is not None:
        options = options.enable_profiling(profile_dir)
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(LEARNING_RATE)
    return training_model(network, options, optimizer)


def plain_step(width: int, num_blocks: int, micro_batches: int) -> Step:
    """Trains the network on one device, in a tf.function as one would write it.

    A tape for each micro-batch, one after the other; gradients added up; one update.
    """
    with tf.device(PLAIN_DEVICE):
        network = Network(width, num_blocks)
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(LEARNING_RATE)
    variables = network.trainable_variables

    def step(x: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.device(PLAIN_DEVICE):
            losses: list[tf.Tensor] = []
            sums: list[Any] = []
            for one, its_labels in zip(
                tf.split(x, micro_batches), tf.split(labels, micro_batches), strict=True
            ):
                # One after the other, as on a device that has room for one micro-batch.
                with tf.control_dependencies(sums):
                    mine = tf.identity(one)
                with tf.GradientTape() as tape:
                    loss = network(mine, its_labels)
                gradients = tape.gradient(loss, variables)
                sums = [a + b for a, b in zip(sums, gradients, strict=True)] if sums else gradients
                losses.append(loss)
            means = [total / micro_batches for total in sums]
            optimizer.apply_gradients(zip(means, variables, strict=True))
            return tf.stack(losses)

    compiled: Step = tf.function(step, autograph=False)
    return compiled
