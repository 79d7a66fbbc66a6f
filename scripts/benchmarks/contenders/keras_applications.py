"""The models of examples/cnn and examples/bert in Keras, from its layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import work as works

layers = tf.keras.layers


def make_model(name: str) -> Any:
    """Returns ResNet-20 or BERT mini; see `keras_models.make_model`."""
    return _make_resnet() if name == works.RESNET_20 else _make_bert()


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
