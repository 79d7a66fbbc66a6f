"""The models in Keras, for every contender on TensorFlow, the old one (2.15) included.

It is Keras 2, unless TF_USE_LEGACY_KERAS says otherwise.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable
from typing import Any

if importlib.util.find_spec("tf_keras"):  # not in TensorFlow 2.15, which has Keras 2 itself
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
import turns
import work as works

v1 = tf.compat.v1

STEPS_PER_EPOCH = 10_000_000  # The turns end it earlier.


def make_model(name: str) -> Any:
    """Returns a Keras model from a batch of features to logits [batch, classes]."""
    if name in (works.RESNET_20, works.BERT_MINI):
        import keras_applications

        return keras_applications.make_model(name)
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

    Args:
      model: The model.
      dataset: An endless one.
      worker_index: Which worker of the contender this is.
      *callbacks: Further callbacks, before the one that takes turns.
      end: Called before the process ends.
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


def make_dataset(name: str, worker_index: int) -> tf.data.Dataset:
    """Returns one batch of the worker's, in memory, again and again."""
    return tf.data.Dataset.from_tensors(works.make_batch(works.WORKS[name], worker_index)).repeat()


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
    layers = tf.keras.layers
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
    layers = [tf.keras.layers.Dense(size, activation="relu") for size in works.MLP_LAYERS]
    return tf.keras.Sequential([*layers, tf.keras.layers.Dense(works.NUM_CLASSES)])


def _make_embedding() -> Any:
    vocabulary = works.WORKS[works.EMBEDDING].vocabulary
    return tf.keras.Sequential(
        [
            tf.keras.layers.Embedding(vocabulary, works.EMBEDDING_SIZE),
            tf.keras.layers.GlobalAveragePooling1D(),
            tf.keras.layers.Dense(works.EMBEDDING_SIZE, activation="relu"),
            tf.keras.layers.Dense(works.NUM_CLASSES),
        ]
    )


_BUILDERS = {
    works.CNN: _make_cnn,
    works.MLP: _make_mlp,
    works.EMBEDDING: _make_embedding,
}
