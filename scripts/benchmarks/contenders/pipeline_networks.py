"""Networks of blocks in TensorFlow, trained in stages or by a plain tf.function."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pipeline_work as sizes
import tensorflow as tf
import work

from tfdist.pipeline import Block, Options, PipelinedExecution, Stage, TrainingModel, training_model

NUM_DEVICES = 4
PLAIN_DEVICE = "/device:CPU:1"

# A call with all samples of a weight update; gives the losses.
Step = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


# A module that returns the loss of (x, labels), and has `num_blocks`.
Network: TypeAlias = Any


class DenseNetwork(tf.Module):  # type: ignore[misc]
    """Dense layers, each in a block of its own; the last block has the classes and the loss too."""

    def __init__(self, width: int, num_blocks: int) -> None:
        super().__init__()
        random = np.random.default_rng(0)
        widths = [sizes.DENSE_FEATURES, *[width] * num_blocks, sizes.NUM_CLASSES]
        self.num_blocks = num_blocks
        self.kernels, self.biases = [], []
        for rows, columns in itertools.pairwise(widths):
            values = random.normal(0.0, rows**-0.5, (rows, columns))
            self.kernels.append(tf.Variable(values, dtype=tf.float32))
            self.biases.append(tf.Variable(tf.zeros(columns)))

    def __call__(self, x: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        for number in range(self.num_blocks - 1):
            with Block(block_name(number)):
                x = self._layer(number, x)
        with Block(block_name(self.num_blocks - 1)):
            x = self._layer(self.num_blocks - 1, x)
            return _loss(x @ self.kernels[-1] + self.biases[-1], labels)

    def _layer(self, number: int, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(x @ self.kernels[number] + self.biases[number])


class Encoder(tf.Module):  # type: ignore[misc]
    """BERT's encoder layers, each in a block; the last block has the classes and the loss too."""

    def __init__(self) -> None:
        super().__init__()
        self.num_blocks = work.BERT_LAYERS
        hidden, inner = work.BERT_HIDDEN, work.BERT_INNER
        self.layers = [
            {
                "projected": _weights(hidden, 3 * hidden),
                "attended": _weights(hidden, hidden),
                "inner": _weights(hidden, inner),
                "outer": _weights(inner, hidden),
                "norms": [
                    (tf.Variable(tf.ones(hidden)), tf.Variable(tf.zeros(hidden))) for _ in range(2)
                ],
            }
            for _ in range(self.num_blocks)
        ]
        self.classes = _weights(hidden, sizes.NUM_CLASSES)

    def __call__(self, x: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        for number in range(self.num_blocks - 1):
            with Block(block_name(number)):
                x = _encode(self.layers[number], x)
        with Block(block_name(self.num_blocks - 1)):
            x = _encode(self.layers[-1], x)
            return _loss(_dense(tf.reduce_mean(x, axis=1), self.classes), labels)


def _encode(layer: dict[str, Any], x: tf.Tensor) -> tf.Tensor:
    """Returns an encoder layer's result: [batch, words, hidden] -> the same."""
    batch, words, hidden = x.shape
    heads = work.BERT_HEADS
    projected = tf.reshape(_dense(x, layer["projected"]), [batch, words, 3, heads, hidden // heads])
    query, key, value = tf.unstack(tf.transpose(projected, [2, 0, 3, 1, 4]))
    scores = tf.matmul(query, key, transpose_b=True) * (hidden // heads) ** -0.5
    context = tf.matmul(tf.nn.softmax(scores), value)  # [batch, heads, words, size]
    context = tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [batch, words, hidden])
    x = _norm(x + _dense(context, layer["attended"]), layer["norms"][0])
    inner = tf.nn.gelu(_dense(x, layer["inner"]), approximate=True)  # [batch, words, inner]
    return _norm(x + _dense(inner, layer["outer"]), layer["norms"][1])


def _weights(rows: int, columns: int) -> tuple[tf.Variable, tf.Variable]:
    """Returns a kernel and a bias."""
    kernel = tf.random.stateless_normal([rows, columns], seed=[rows, columns], stddev=rows**-0.5)
    return tf.Variable(kernel), tf.Variable(tf.zeros(columns))


def _dense(x: tf.Tensor, weights: tuple[tf.Variable, tf.Variable]) -> tf.Tensor:
    kernel, bias = weights
    rows = tf.matmul(tf.reshape(x, [-1, x.shape[-1]]), kernel) + bias
    return tf.reshape(rows, [*x.shape[:-1], kernel.shape[1]])


def _norm(x: tf.Tensor, weights: tuple[tf.Variable, tf.Variable]) -> tf.Tensor:
    scale, offset = weights
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, offset, scale, work.BERT_EPSILON)


def _loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns the mean cross-entropy of logits [batch, classes]."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def block_name(number: int) -> str:
    """Returns a block's name."""
    return f"B{number}"


def staged_model(
    network: Network,
    cut: Sequence[Sequence[int]],
    micro_batches: int,
) -> TrainingModel:
    """Trains a new network, whose variables become those of the devices, in stages.

    `cut` has the numbers of each stage's blocks. The stages have devices of their own, in turn.
    """
    stages = [
        Stage(*map(block_name, numbers)).device(index % NUM_DEVICES)
        for index, numbers in enumerate(cut)
    ]
    options = Options().gradient_accumulation(micro_batches).output_mode("all")
    options = options.show_progress_bar(False).execution_strategy(PipelinedExecution(*stages))
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(sizes.LEARNING_RATE)
    return training_model(network, options, optimizer)


def plain_step(make_network: Callable[[], Network], micro_batches: int) -> Step:
    """Trains the network on one device, in a tf.function as one would write it.

    A tape for each micro-batch, one after the other; gradients added up; one update.
    """
    with tf.device(PLAIN_DEVICE):
        network = make_network()
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(sizes.LEARNING_RATE)
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
