"""The models in Keras, for every contender on TensorFlow, the old one (2.15) included.

It is Keras 2, unless TF_USE_LEGACY_KERAS says otherwise.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

if importlib.util.find_spec("tf_keras"):  # not in TensorFlow 2.15, which has Keras 2 itself
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
import turns
import work as works

v1 = tf.compat.v1
layers = tf.keras.layers

STEPS_PER_EPOCH = 10_000_000  # The turns end it earlier.

# One weight: what a step of it takes is what a step costs before anything is computed.
TINY = "tiny"


def make_model(name: str) -> Any:
    """Returns a Keras model from a batch of features to logits [batch, classes]."""
    return _BUILDERS[name]()


def make_built_model(name: str) -> Any:
    """Returns a Keras model, as `make_model`, that has its variables."""
    model = make_model(name)
    if not model.built:
        work = works.WORKS[name]
        model.build((work.batch_size, *work.feature_shape))
    return model


def loss_of(model: Any, features: Any, labels: Any) -> tf.Tensor:
    """Returns the mean loss of a batch; of sequences, that of the words and of the sentences."""
    logits = model(features, training=True)
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits
    if isinstance(logits, dict):
        words = cross_entropy(labels=labels["words"], logits=logits["words"])  # [batch, masks]
        sentences = cross_entropy(labels=labels["sentences"], logits=logits["sentences"])
        return tf.reduce_mean(words) + tf.reduce_mean(sentences)
    return tf.reduce_mean(cross_entropy(labels=labels, logits=logits))


def num_parameters(model: Any) -> int:
    """Returns how many trainable values a built model has."""
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def fit_in_turns(
    model: Any, dataset: Any, worker_index: int, *callbacks: Any, end: Callable[[], Any] = bool
) -> None:
    """Trains a compiled and built model by `fit`, in turns; ends the process at the end.

    The callbacks come before the one that takes turns; `end` is called before the process ends.
    """

    class TakeTurns(tf.keras.callbacks.Callback):  # type: ignore[misc]
        # Else tf_keras would turn each step's loss into a number for it, which is not needed here.
        _supports_tf_logs = True

        def on_train_begin(self, logs: Any = None) -> None:
            self.turns = turns.Turns(worker_index, num_parameters(model))

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if not self.turns.goes_on():
                end()
                os._exit(0)  # No worker is in a step; the end of `fit` is 10 million steps away.

    model.fit(
        dataset, steps_per_epoch=STEPS_PER_EPOCH, verbose=0, callbacks=[*callbacks, TakeTurns()]
    )


class TakeTurns(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Does an Estimator's steps in turns, as this worker of the contender; then calls `end`."""

    def __init__(
        self, worker_index: int = 0, end: Callable[[Any], None] = lambda run: run.request_stop()
    ) -> None:
        self._worker_index = worker_index
        self._end = end

    def after_create_session(self, session: Any, coord: Any) -> None:
        # Of several replicas a variable is a list of copies; there is one in each worker.
        shapes = [variable.shape for variable in v1.trainable_variables()]
        num_parameters = sum(shape.num_elements() for shape in shapes)
        self._turns = turns.Turns(self._worker_index, num_parameters)
        self._turns.goes_on()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if not self._turns.goes_on():
            self._end(run_context)


def make_dataset(name: str, worker_index: int) -> tf.data.Dataset:
    """Returns one batch of the worker's, in memory, again and again."""
    if name == TINY:
        return tf.data.Dataset.from_tensors((1.0, 1.0)).repeat()
    return tf.data.Dataset.from_tensors(works.make_batch(works.WORKS[name], worker_index)).repeat()


@dataclass(frozen=True, kw_only=True)
class Built:
    """A model in a graph."""

    loss: tf.Tensor  # Scalar.
    variables: list[tf.Variable]  # Those to train.
    optimizer: Any  # Of v1.
    updates: list[tf.Operation]  # Further ops that every step runs.


def build(name: str, features: tf.Tensor, labels: tf.Tensor) -> Built:
    """Builds a work's model, or the tiny one, in the current graph."""
    if name == TINY:
        weight = v1.get_variable("weight", initializer=0.0, use_resource=True)
        return Built(
            loss=tf.square(weight * features - labels),
            variables=[weight],
            optimizer=v1.train.GradientDescentOptimizer(0.001),
            updates=[],
        )
    model = make_model(name)
    loss = loss_of(model, features, labels)
    return Built(
        loss=loss,
        variables=model.trainable_variables,
        optimizer=make_optimizer(name),
        updates=model.get_updates_for(None) + model.get_updates_for(features),
    )


def make_optimizer(name: str) -> Any:
    """Returns the work's optimizer as v1 graphs have it."""
    rate = works.LEARNING_RATE
    return {
        "adam": lambda: v1.train.AdamOptimizer(rate),
        "momentum": lambda: v1.train.MomentumOptimizer(rate, 0.9),
        "sgd": lambda: v1.train.GradientDescentOptimizer(rate),
    }[works.WORKS[name].optimizer]()


def make_keras_optimizer(name: str) -> Any:
    """Returns the work's optimizer as Keras has it."""
    optimizers, rate = tf.keras.optimizers, works.LEARNING_RATE
    return {
        "adam": lambda: optimizers.Adam(rate),
        "momentum": lambda: optimizers.SGD(rate, momentum=0.9),
        "sgd": lambda: optimizers.SGD(rate),
    }[works.WORKS[name].optimizer]()


def make_keras_loss(name: str) -> Any:
    """Returns the loss as `compile` takes it: one, or one for each output."""
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return {"words": loss, "sentences": loss} if works.WORKS[name].num_masks else loss


def _make_cnn() -> Any:
    return tf.keras.Sequential(
        [
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(works.NUM_CLASSES),
        ]
    )


def _make_mlp() -> Any:
    hidden = [layers.Dense(size, activation="relu") for size in works.MLP_LAYERS]
    return tf.keras.Sequential([*hidden, layers.Dense(works.NUM_CLASSES)])


def _make_embedding() -> Any:
    vocabulary = works.WORKS[works.EMBEDDING].vocabulary
    return tf.keras.Sequential(
        [
            layers.Embedding(vocabulary, works.EMBEDDING_SIZE),
            layers.GlobalAveragePooling1D(),
            layers.Dense(works.EMBEDDING_SIZE, activation="relu"),
            layers.Dense(works.NUM_CLASSES),
        ]
    )


def _make_resnet() -> Any:
    """Returns ResNet-20 for 32x32 images; its shortcuts leave pixels out and add zeros."""

    def convolve(x: tf.Tensor, filters: int, stride: int) -> tf.Tensor:
        x = layers.Conv2D(filters, 3, stride, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    image = tf.keras.Input(works.WORKS[works.RESNET_20].feature_shape)
    x = layers.ReLU()(convolve(image, works.RESNET_GROUPS[0], 1))
    for group, filters in enumerate(works.RESNET_GROUPS):
        for block in range(works.RESNET_BLOCKS):
            stride = 2 if group > 0 and block == 0 else 1
            inner = convolve(layers.ReLU()(convolve(x, filters, stride)), filters, 1)
            shortcut = _Shortcut(filters)(x) if stride > 1 else x
            x = layers.ReLU()(layers.Add()([inner, shortcut]))  # [batch, height, width, filters]
    x = layers.GlobalAveragePooling2D()(x)
    return tf.keras.Model(image, layers.Dense(works.NUM_CLASSES)(x))


# A layer of its own: in a v1 graph, and in Keras 3, there is no layer of tf.pad.
class _Shortcut(tf.keras.layers.Layer):  # type: ignore[misc]
    """Leaves every other pixel out, and adds channels of zeros."""

    def __init__(self, filters: int) -> None:
        super().__init__()
        self.filters = filters

    def call(self, x: tf.Tensor) -> tf.Tensor:
        added = self.filters - x.shape[-1]
        return tf.pad(x[:, ::2, ::2], [[0, 0], [0, 0], [0, 0], [0, added]])


class _AddPositions(tf.keras.layers.Layer):  # type: ignore[misc]
    """Adds a weight for each position to [batch, sequence, hidden]."""

    def build(self, shape: tf.TensorShape) -> None:
        self.table = self.add_weight(
            name="table", shape=[works.BERT_POSITIONS, shape[-1]], initializer="glorot_uniform"
        )

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x + self.table[: x.shape[1]]


class _Gather(tf.keras.layers.Layer):  # type: ignore[misc]
    """Takes the words at some positions: [batch, sequence, hidden] -> [batch, masks, hidden]."""

    def call(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        return tf.gather(x, positions, batch_dims=1)


class _Decoder(tf.keras.layers.Layer):  # type: ignore[misc]
    """Finds words: the product with the embedding's weights, and a bias."""

    def __init__(self, embedding: Any) -> None:
        super().__init__()
        self.embedding = embedding

    def build(self, shape: tf.TensorShape) -> None:
        self.bias = self.add_weight(
            name="bias", shape=[self.embedding.input_dim], initializer="glorot_uniform"
        )

    def call(self, x: tf.Tensor) -> tf.Tensor:
        # [batch, masks, hidden] -> [batch, masks, vocabulary]
        return tf.matmul(x, self.embedding.embeddings, transpose_b=True) + self.bias


def _gelu(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.gelu(x, approximate=True)


def _make_bert() -> Any:
    """Returns BERT mini from words to the logits of masked words and of the next sentence."""
    work, hidden = works.WORKS[works.BERT_MINI], works.BERT_HIDDEN
    norm: Callable[[], Any] = lambda: layers.LayerNormalization(epsilon=works.BERT_EPSILON)  # noqa: E731
    (length,) = work.feature_shape
    inputs = {
        name: tf.keras.Input([size], dtype=tf.int32, name=name)
        for name, size in {
            "words": length,
            "segments": length,
            "mask": length,
            "positions": work.num_masks,
        }.items()
    }
    embedding = layers.Embedding(work.vocabulary, hidden)
    x = embedding(inputs["words"]) + layers.Embedding(2, hidden)(inputs["segments"])
    x = norm()(_AddPositions()(x))  # [batch, sequence, hidden]
    mask = inputs["mask"][:, tf.newaxis]  # [batch, 1, sequence]
    for _ in range(works.BERT_LAYERS):
        attention = layers.MultiHeadAttention(works.BERT_HEADS, hidden // works.BERT_HEADS)
        x = norm()(x + attention(x, x, attention_mask=mask))
        inner = layers.Dense(works.BERT_INNER, activation=_gelu)(x)
        x = norm()(x + layers.Dense(hidden)(inner))
    masked = _Gather()(x, inputs["positions"])
    masked = norm()(layers.Dense(hidden, activation=_gelu)(masked))
    pooled = layers.Dense(hidden, activation="tanh")(x[:, 0])
    outputs = {"words": _Decoder(embedding)(masked), "sentences": layers.Dense(2)(pooled)}
    return tf.keras.Model(inputs, outputs)


_BUILDERS = {
    works.CNN: _make_cnn,
    works.MLP: _make_mlp,
    works.EMBEDDING: _make_embedding,
    works.RESNET_20: _make_resnet,
    works.BERT_MINI: _make_bert,
}
