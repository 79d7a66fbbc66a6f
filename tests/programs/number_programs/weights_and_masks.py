"""Means over something other than rows: masks, weights of rows, of times and of pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from number_programs.bench import (
    ROWS,
    TIMES,
    WORDS,
    Bench,
    even_batches,
    images,
    labels,
    numbers,
    row_weights,
    sentences,
    series,
    sizes,
)
from number_programs.table import BOTH, KERAS_3, Found, program, put


def _tags() -> Any:
    """Returns int32 [rows, times]: a class for each word."""
    return (sentences() * 7 % 3).astype("int32")


def _tagger(bench: Bench, *, mask: bool = True, rnn: str = "SimpleRNN") -> Any:
    embedding = bench.layers.Embedding(WORDS, 4, mask_zero=mask)
    layer = getattr(bench.layers, rnn)(4, return_sequences=True)
    return bench.sequential(sentences(), [embedding, layer, bench.layers.Dense(3)])


def _crossentropy(bench: Bench, **options: Any) -> Any:
    return bench.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


@program()
def masked_sequences(bench: Bench) -> Found:
    """Embedding(mask_zero=True), LSTM, a class for each word: a mean over words."""
    return bench.train(
        lambda: _tagger(bench, rnn="LSTM"),
        (sentences(), _tags()),
        loss=_crossentropy(bench),
        metrics=["accuracy"],
        predicts=True,
    )


@program()
def masked_sequences_with_weights_of_rows(bench: Bench) -> Found:
    return bench.train(
        lambda: _tagger(bench),
        (sentences(), _tags(), row_weights()[:, None]),
        loss=_crossentropy(bench),
        metrics=["accuracy"],
    )


@program()
def masked_sequences_with_weights_of_words(bench: Bench) -> Found:
    weights = np.linspace(0, 2, ROWS * TIMES).reshape(ROWS, TIMES).astype("float32")
    return bench.train(
        lambda: _tagger(bench),
        (sentences(), _tags(), weights),
        loss=_crossentropy(bench),
        weighted_metrics=["accuracy"],
    )


@program()
def masked_sequences_and_a_batch_without_a_word(bench: Bench) -> Found:
    """The first 9 sentences are empty: some replicas have rows and no word."""
    x = sentences(0)
    x[:9] = 0
    x[7, 0] = 1
    return bench.train(lambda: _tagger(bench), (x, _tags()), loss=_crossentropy(bench))


@program()
def masked_last_output(bench: Bench) -> Found:
    """Masking, a layer without its sequence, a number for each row."""
    layers = lambda: [bench.layers.Masking(0.0), bench.layers.SimpleRNN(4), bench.layers.Dense(1)]  # noqa: E731
    return bench.train(
        lambda: bench.sequential(series(), layers()), (series(), sizes()), metrics=["mae"]
    )


@program()
def masked_series(bench: Bench) -> Found:
    """Masking, GRU, a number for each time."""
    y = series().sum(-1, keepdims=True)
    rnn = lambda: bench.layers.GRU(4, return_sequences=True)  # noqa: E731
    return bench.train(
        lambda: bench.sequential(
            series(), [bench.layers.Masking(0.0), rnn(), bench.layers.Dense(1)]
        ),
        (series(), y),
        metrics=["mae"],
    )


@program()
def masked_series_through_time_distributed(bench: Bench) -> Found:
    layers = lambda: [  # noqa: E731
        bench.layers.Masking(0.0),
        bench.layers.TimeDistributed(bench.layers.Dense(2)),
    ]
    return bench.train(lambda: bench.sequential(series(), layers()), (series(), series()[..., :2]))


@program()
def masked_sequences_with_a_summed_loss(bench: Bench) -> Found:
    return bench.train(
        lambda: _tagger(bench),
        (sentences(), _tags()),
        loss=_crossentropy(bench, reduction="sum"),
        optimizer=lambda: bench.optimizers.SGD(0.01),
    )


# Weights of rows, times and pixels.


@program()
def weights_of_rows(bench: Bench) -> Found:
    return bench.train(
        lambda: bench.sequential(numbers(), [bench.layers.Dense(2)]),
        (numbers(), sizes(2), row_weights()),
        metrics=["mae"],
        weighted_metrics=lambda: ["mse", bench.metrics.RootMeanSquaredError(name="rms")],
    )


@program()
def weights_of_rows_in_a_column(bench: Bench) -> Found:
    return bench.train(
        lambda: bench.sequential(numbers(), [bench.layers.Dense(2)]),
        (numbers(), sizes(2), row_weights()[:, None]),
        weighted_metrics=["mse"],
    )


@program()
def weights_of_rows_that_are_zero_on_a_replica(bench: Bench) -> Found:
    weights = (np.arange(ROWS) % 7 > 3).astype("float32")
    return bench.train(
        lambda: bench.sequential(numbers(), [bench.layers.Dense(2)]),
        (numbers(), sizes(2), weights),
        weighted_metrics=["mse"],
    )


@program()
def weights_of_times(bench: Bench) -> Found:
    weights = np.linspace(0, 2, ROWS * TIMES).reshape(ROWS, TIMES).astype("float32")
    return bench.train(
        lambda: bench.sequential(series(), [bench.layers.Dense(2)]),
        (series(), series()[..., :2], weights),
        metrics=["mae"],
        weighted_metrics=["mse"],
    )


def _segmenter(bench: Bench) -> Any:
    return bench.sequential(images(), [bench.layers.Conv2D(3, 3, padding="same")])


def _pixel_labels() -> Any:
    return (np.abs(images()[..., 0]) * 3).astype("int32").clip(0, 2)


@program()
def weights_of_pixels(bench: Bench) -> Found:
    weights = (np.abs(images()[..., 1]) * np.linspace(0, 2, ROWS)[:, None, None]).astype("float32")
    return bench.train(
        lambda: _segmenter(bench),
        (images(), _pixel_labels(), weights),
        loss=_crossentropy(bench),
        weighted_metrics=["accuracy"],
    )


@program()
def ignored_class(bench: Bench) -> Found:
    """The mean is over pixels of the other classes."""
    return bench.train(
        lambda: _segmenter(bench),
        (images(), _pixel_labels()),
        loss=_crossentropy(bench, ignore_class=0),
        metrics=["accuracy"],
    )


def _of_reduction(
    reduction: str, *, weighted: bool = False, words: bool = False, even: bool = False
) -> Callable[[Bench], Found]:
    """Returns a program of a loss with a reduction."""

    def run(bench: Bench) -> Found:
        more = (row_weights(),) if weighted else ()
        data = (sentences(), _tags(), *more) if words else (numbers(), labels(), *more)

        def make() -> Any:
            if words:
                return _tagger(bench, mask=False)
            return bench.sequential(numbers(), [bench.layers.Dense(3)])

        return bench.train(
            make,
            even_batches(data) if even else data,
            loss=_crossentropy(bench, reduction=reduction),
            optimizer=lambda: bench.optimizers.SGD(0.01),
            metrics=["accuracy"],
            evaluates=True,
            fit={"epochs": 2},
        )

    return run


# tf_keras refuses the others in `fit` under a strategy.
for _reduction, _libraries in (
    ("sum", BOTH),
    ("none", KERAS_3),
    ("sum_over_batch_size", BOTH),
    ("mean", KERAS_3),
    ("mean_with_sample_weight", KERAS_3),
):
    _name = f"reduction_{_reduction}"
    put(_name, __name__, _of_reduction(_reduction), _libraries)
    put(f"{_name}_of_even_batches", __name__, _of_reduction(_reduction, even=True), _libraries)
    put(f"{_name}_with_weights", __name__, _of_reduction(_reduction, weighted=True), _libraries)
put("reduction_none_of_words", __name__, _of_reduction("none", words=True), KERAS_3)


@program()
def loss_that_returns_one_number(bench: Bench) -> Found:
    return bench.train(
        lambda: bench.sequential(numbers(), [bench.layers.Dense(2)]),
        (numbers(), sizes(2)),
        loss=lambda y, p: tf.reduce_mean(tf.square(y - p)),
        metrics=["mae"],
    )


@program()
def loss_that_returns_one_number_with_weights_of_rows(bench: Bench) -> Found:
    """The number counts by the mean of the weights of all rows."""
    return bench.train(
        lambda: bench.sequential(numbers(), [bench.layers.Dense(2)]),
        (numbers(), sizes(2), row_weights()),
        loss=lambda y, p: tf.reduce_mean(tf.square(y - p)),
    )


@program()
def loss_that_returns_a_number_for_each_row(bench: Bench) -> Found:
    return bench.train(
        lambda: bench.sequential(numbers(), [bench.layers.Dense(2)]),
        (numbers(), sizes(2), row_weights()),
        loss=lambda y, p: tf.reduce_sum(tf.abs(y - p), axis=-1),
    )


@program()
def loss_that_returns_a_number_for_each_value(bench: Bench) -> Found:
    return bench.train(
        lambda: bench.sequential(numbers(), [bench.layers.Dense(2)]),
        (numbers(), sizes(2)),
        loss=lambda y, p: tf.abs(y - p),
    )
