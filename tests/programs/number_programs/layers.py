"""Layers: each of Keras' that trains or looks at its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from number_programs.bench import (
    ROWS,
    WORDS,
    Bench,
    images,
    numbers,
    sentences,
    series,
    sizes,
)
from number_programs.table import BOTH, KERAS_3, TF_KERAS, Found, program, put

Layers = Callable[[Any], list[Any]]


def _of_layers(x: Callable[[], Any], layers: Layers) -> Callable[[Bench], Found]:
    """Returns a program: layers, the mean over all places, and two numbers for each row."""

    def run(bench: Bench) -> Found:
        def make() -> Any:
            rows = bench.keras.Input(x().shape[1:], dtype=str(x().dtype))
            made = rows
            for layer in layers(bench.layers):
                made = layer(made)
            made = bench.layers.Flatten()(made)
            return bench.keras.Model(rows, bench.layers.Dense(2)(made))

        rule = lambda: bench.optimizers.SGD(0.02)  # noqa: E731
        return bench.train(make, (x(), sizes(2)), optimizer=rule)

    return run


def _volumes() -> Any:
    x = np.random.RandomState(4).uniform(-1, 1, [ROWS, 3, 3, 3, 1]).astype("float32")
    return x + np.linspace(-1, 1, ROWS).astype("float32")[:, None, None, None, None]


_ROWS: dict[str, Layers] = {
    "dense": lambda of: [of.Dense(3, "relu"), of.Dense(3, "tanh", use_bias=False)],
    "activations": lambda of: [of.Dense(6), of.PReLU(), of.ELU(), of.LeakyReLU(), of.ReLU(4.0)],
    "layer_normalization": lambda of: [of.Dense(4), of.LayerNormalization()],
    "unit_normalization": lambda of: [of.Dense(4), of.UnitNormalization()],
    "group_normalization": lambda of: [of.Dense(4), of.GroupNormalization(2)],
    "einsum_dense": lambda of: [of.EinsumDense("ab,bc->ac", 3, bias_axes="c")],
    "reshape_and_permute": lambda of: [
        of.RepeatVector(3),
        of.Permute((2, 1)),
        of.Reshape((6, 2)),
        of.Dense(2),
    ],
    "lambda_layer": lambda of: [of.Dense(3), of.Lambda(lambda x: x * x)],
    "spectral_normalization": lambda of: [of.SpectralNormalization(of.Dense(3))],
}
_ROWS_OF_KERAS_3: dict[str, Layers] = {
    "rms_normalization": lambda of: [of.Dense(4), of.RMSNormalization()],
}
_SERIES: dict[str, Layers] = {
    "conv_1d": lambda of: [of.Conv1D(3, 2, dilation_rate=2)],
    "conv_1d_transpose": lambda of: [of.Conv1DTranspose(3, 2)],
    "separable_and_depthwise_conv_1d": lambda of: [
        of.SeparableConv1D(3, 2),
        of.DepthwiseConv1D(2),
    ],
    "pools_1d": lambda of: [of.Conv1D(3, 1), of.AveragePooling1D(2), of.GlobalMaxPooling1D()],
    "simple_rnn": lambda of: [of.SimpleRNN(3)],
    "lstm": lambda of: [of.LSTM(3)],
    "gru": lambda of: [of.GRU(3, reset_after=False)],
    "bidirectional_gru": lambda of: [of.Bidirectional(of.GRU(2))],
    "rnn_of_cells": lambda of: [of.RNN([of.SimpleRNNCell(2), of.GRUCell(2)])],
    "time_distributed": lambda of: [of.TimeDistributed(of.Dense(2, "tanh"))],
    "zero_padding_and_cropping_1d": lambda of: [
        of.ZeroPadding1D(1),
        of.Conv1D(2, 2),
        of.Cropping1D(1),
        of.UpSampling1D(2),
    ],
}
_IMAGES: dict[str, Layers] = {
    "conv_2d": lambda of: [of.Conv2D(3, 3, strides=2, padding="same", activation="relu")],
    "conv_2d_transpose": lambda of: [of.Conv2DTranspose(2, 2, strides=2)],
    "separable_and_depthwise_conv_2d": lambda of: [
        of.SeparableConv2D(3, 2),
        of.DepthwiseConv2D(2),
    ],
    "max_pooling_2d": lambda of: [of.Conv2D(2, 1), of.MaxPooling2D(2)],
    "average_pooling_2d": lambda of: [of.Conv2D(2, 1), of.AveragePooling2D(3, 1, "same")],
    "global_pools_2d": lambda of: [of.Conv2D(3, 2), of.GlobalAveragePooling2D()],
    "batch_normalization_over_all_rows": lambda of: [
        of.Conv2D(2, 2),
        of.BatchNormalization(synchronized=True, momentum=0.5),
    ],
    "batch_normalization_that_is_frozen": lambda of: [
        of.Conv2D(2, 2),
        of.BatchNormalization(trainable=False),
    ],
    "group_normalization_of_images": lambda of: [of.Conv2D(4, 2), of.GroupNormalization(2)],
    "layer_normalization_of_images": lambda of: [of.Conv2D(2, 2), of.LayerNormalization((1, 2, 3))],
    "up_sampling_padding_cropping_2d": lambda of: [
        of.UpSampling2D(2),
        of.ZeroPadding2D(1),
        of.Conv2D(2, 3, 3),
        of.Cropping2D(1),
    ],
    "rescaling_resizing_center_crop": lambda of: [
        of.Rescaling(0.5, 0.1),
        of.Resizing(4, 4),
        of.CenterCrop(3, 3),
        of.Conv2D(2, 2),
    ],
}
_VOLUMES: dict[str, Layers] = {
    "conv_3d": lambda of: [of.Conv3D(2, 2), of.GlobalAveragePooling3D()],
    "conv_3d_transpose_and_pools": lambda of: [of.Conv3DTranspose(2, 2), of.MaxPooling3D(2)],
    "conv_lstm_2d": lambda of: [of.ConvLSTM2D(2, 2)],
}


def _put_all(of: dict[str, Layers], x: Callable[[], Any], libraries: tuple[str, ...]) -> None:
    for name, layers in of.items():
        put(name, __name__, _of_layers(x, layers), libraries)


_put_all(_ROWS, numbers, BOTH)
_put_all(_ROWS_OF_KERAS_3, numbers, KERAS_3)
_put_all(_SERIES, series, BOTH)
_put_all(_IMAGES, images, BOTH)
_put_all(_VOLUMES, _volumes, BOTH)
_put_all(
    {"locally_connected": lambda of: [of.LocallyConnected1D(2, 2), of.ThresholdedReLU(0.1)]},
    series,
    TF_KERAS,
)


# Norms over all rows.


@program()
def batch_normalization_over_all_rows_evaluated(bench: Bench) -> Found:
    """The moving averages of a replica without rows, and evaluate with them."""
    return bench.train(
        lambda: bench.sequential(
            numbers(),
            [
                bench.layers.BatchNormalization(synchronized=True, momentum=0.5),
                bench.layers.Dense(1),
            ],
        ),
        (numbers(), sizes()),
        optimizer=lambda: bench.optimizers.SGD(0.01),
        fit={"epochs": 2},
        evaluates=True,
        predicts=True,
    )


@program(KERAS_3)
def batch_normalization_over_all_words(bench: Bench) -> Found:
    """With a mask the statistics are those of the words."""

    def make() -> Any:
        layers = [
            bench.layers.Embedding(WORDS, 3, mask_zero=True),
            bench.layers.BatchNormalization(synchronized=True, momentum=0.5),
            bench.layers.Dense(1),
        ]
        return bench.sequential(sentences(), layers)

    return bench.train(make, (sentences(), sentences()[..., None] / 5.0), evaluates=True)


# Attention.


def _of_pairs(layer: Callable[[Any], Any], *, masked: bool = False) -> Callable[[Bench], Found]:
    def run(bench: Bench) -> Found:
        def make() -> Any:
            words = bench.keras.Input([5], dtype="int32")
            rows = bench.layers.Embedding(WORDS, 4, mask_zero=masked)(words)
            one = layer(bench.layers)
            named = "query" in type(one).__name__.lower() or "MultiHead" in type(one).__name__
            made = one(rows, rows) if named else one([rows, rows])
            made = bench.layers.GlobalAveragePooling1D()(made)
            return bench.keras.Model(words, bench.layers.Dense(2)(made))

        return bench.train(make, (sentences(), sizes(2)))

    return run


for _name, _layer, _libraries in (
    ("attention", lambda of: of.Attention(use_scale=True), BOTH),
    ("additive_attention", lambda of: of.AdditiveAttention(), BOTH),
    ("multi_head_attention", lambda of: of.MultiHeadAttention(2, 3), BOTH),
    ("group_query_attention", lambda of: of.GroupQueryAttention(3, 4, 2), KERAS_3),
):
    put(_name, __name__, _of_pairs(_layer), _libraries)
put(
    "multi_head_attention_with_a_mask",
    __name__,
    _of_pairs(lambda of: of.MultiHeadAttention(2, 3), masked=True),
)


# Words.


@program()
def embedding(bench: Bench) -> Found:
    """Words are repeated, and rows of the table are in one replica or in several."""
    return bench.train(
        lambda: bench.sequential(
            sentences(),
            [bench.layers.Embedding(WORDS, 3), bench.layers.Flatten(), bench.layers.Dense(2)],
        ),
        (sentences(), sizes(2)),
        optimizer=lambda: bench.optimizers.Adam(0.05),
        predicts=True,
    )


@program(KERAS_3)
def reversible_embedding(bench: Bench) -> Found:
    def make() -> Any:
        table = bench.layers.ReversibleEmbedding(WORDS, 3)
        words = bench.keras.Input([5], dtype="int32")
        return bench.keras.Model(words, table(table(words), reverse=True))

    return bench.train(
        make,
        (sentences(), np.roll(sentences(), 1, 1)),
        loss=bench.losses.SparseCategoricalCrossentropy(from_logits=True),
    )


# Preprocessing.


@program()
def normalization_that_has_adapted(bench: Bench) -> Found:
    def make() -> Any:
        layer = bench.layers.Normalization()
        layer.adapt(numbers())
        return bench.sequential(numbers(), [layer, bench.layers.Dense(2)])

    return bench.train(make, (numbers(), sizes(2)), predicts=True)


@program()
def discretization_and_category_encoding(bench: Bench) -> Found:
    def make() -> Any:
        layers = [
            bench.layers.Discretization(bin_boundaries=[-0.5, 0.0, 0.5]),
            bench.layers.CategoryEncoding(4, output_mode="multi_hot"),
            bench.layers.Dense(2),
        ]
        return bench.sequential(numbers(), layers)

    return bench.train(make, (numbers(), sizes(2)), predicts=True)


@program()
def lookup_of_integers(bench: Bench) -> Found:
    def make() -> Any:
        layers = [
            bench.layers.IntegerLookup(vocabulary=list(range(2, 9))),
            bench.layers.Embedding(8, 3),
            bench.layers.Flatten(),
            bench.layers.Dense(2),
        ]
        return bench.sequential(sentences().astype("int64"), layers)

    return bench.train(make, (sentences().astype("int64"), sizes(2)))


@program()
def hashing(bench: Bench) -> Found:
    def make() -> Any:
        layers = [
            bench.layers.Hashing(6),
            bench.layers.Embedding(6, 3),
            bench.layers.Flatten(),
            bench.layers.Dense(2),
        ]
        return bench.sequential(sentences().astype("int64"), layers)

    return bench.train(make, (sentences().astype("int64"), sizes(2)))


@program()
def text_vectorization_in_the_dataset(bench: Bench) -> Found:
    with bench.scope():
        words = bench.layers.TextVectorization(max_tokens=WORDS, output_sequence_length=4)
        texts = [" ".join(f"w{word}" for word in row if word) for row in sentences()]
        words.adapt(texts)
    data = tf.data.Dataset.from_tensor_slices((texts, sizes(2))).batch(7)
    return bench.train(
        lambda: bench.sequential(
            sentences()[:, :4].astype("int64"),
            [bench.layers.Embedding(WORDS, 3), bench.layers.Flatten(), bench.layers.Dense(2)],
        ),
        data.map(lambda text, y: (words(text), y)),
    )


# States of rows.


def _stateful(layer: str, **more: Any) -> Callable[[Bench], Found]:
    def run(bench: Bench) -> Found:
        """Rows go on in the next batch and in the next epoch; evaluate begins with them."""
        x = np.random.RandomState(0).randn(24, 2, 3).astype("float32")
        y = x.sum((1, 2))[:, None]
        replicas = 1 if bench.strategy is None else bench.in_sync
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(12, drop_remainder=True)

        def make() -> Any:
            rows = bench.keras.Input(batch_shape=(12 // replicas, 2, 3))
            rnn = getattr(bench.layers, layer)(4, stateful=True)
            rnn = bench.layers.Bidirectional(rnn) if more.get("both") else rnn
            return bench.keras.Sequential([rows, rnn, bench.layers.Dense(1)])

        found = bench.train(make, data, fit={"epochs": 3, **_resets(bench, more)}, evaluates=True)
        return {name: value for name, value in found.items() if not _is_state(value)}

    return run


def _resets(bench: Bench, more: dict[str, Any]) -> dict[str, Any]:
    """Returns arguments of `fit` that begin each epoch with states of zeros."""
    if not more.get("resets"):
        return {}

    class Reset(bench.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            for layer in self.model.layers:
                if hasattr(layer, "reset_states"):
                    layer.reset_states()
                elif hasattr(layer, "reset_state"):
                    layer.reset_state()

    return {"callbacks": [Reset()]}


def _is_state(value: Any) -> bool:
    """Returns whether a weight has a place for each row of a replica."""
    shape = np.shape(value)
    return len(shape) == 2 and shape[0] in (2, 3, 4, 6, 12) and shape[1] == 4 and shape[0] != 3


put("stateful_lstm", __name__, _stateful("LSTM"), KERAS_3, refuses="stateful=True")
put("stateful_gru", __name__, _stateful("GRU"), KERAS_3, refuses="stateful=True")
put(
    "stateful_simple_rnn_that_is_reset",
    __name__,
    _stateful("SimpleRNN", resets=True),
    KERAS_3,
    refuses="stateful=True",
)
put(
    "stateful_lstm_of_tf_keras",
    __name__,
    _stateful("LSTM"),
    TF_KERAS,
    keras_refuses="not yet supported with",
)
