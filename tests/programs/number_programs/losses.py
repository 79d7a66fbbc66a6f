"""Losses: each of Keras', of several outputs, of layers, and of pairs of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from number_programs.bench import (
    Bench,
    images,
    labels,
    numbers,
    one_hot,
    row_weights,
    sentences,
    sizes,
)
from number_programs.table import BOTH, KERAS_3, TF_KERAS, Found, program, put


def _binary() -> Any:
    return (labels(2)[:, None] > 0).astype("float32")


# Name: a loss of Keras, the last layer's width and activation, y, and the Kerases.
_EACH: dict[str, tuple[Any, ...]] = {
    "mean_squared_error": ("MeanSquaredError", 2, None, lambda: sizes(2)),
    "mean_absolute_error": ("MeanAbsoluteError", 2, None, lambda: sizes(2)),
    "mean_absolute_percentage_error": (
        "MeanAbsolutePercentageError",
        2,
        None,
        lambda: sizes(2) + 3,
    ),
    "mean_squared_logarithmic_error": (
        "MeanSquaredLogarithmicError",
        2,
        "softplus",
        lambda: sizes(2) ** 2,
    ),
    "huber": ("Huber", 2, None, lambda: 3 * sizes(2)),
    "log_cosh": ("LogCosh", 2, None, lambda: sizes(2)),
    "poisson": ("Poisson", 2, "softplus", lambda: sizes(2) ** 2),
    "cosine_similarity": ("CosineSimilarity", 2, None, lambda: sizes(2)),
    "kl_divergence": ("KLDivergence", 3, "softmax", lambda: one_hot() * 0.8 + 0.1),
    "hinge": ("Hinge", 1, None, lambda: 2 * _binary() - 1),
    "squared_hinge": ("SquaredHinge", 1, None, lambda: 2 * _binary() - 1),
    "categorical_hinge": ("CategoricalHinge", 3, None, one_hot),
    "binary_crossentropy": ("BinaryCrossentropy", 1, "sigmoid", _binary),
    "binary_focal_crossentropy": ("BinaryFocalCrossentropy", 1, "sigmoid", _binary),
    "categorical_crossentropy": ("CategoricalCrossentropy", 3, "softmax", one_hot),
    "categorical_focal_crossentropy": ("CategoricalFocalCrossentropy", 3, "softmax", one_hot),
    "sparse_categorical_crossentropy": ("SparseCategoricalCrossentropy", 3, "softmax", labels),
    "generalized_crossentropy": (
        "CategoricalGeneralizedCrossEntropy",
        3,
        "softmax",
        labels,
        KERAS_3,
    ),
}


def _of_loss(name: str, width: int, activation: Any, y: Any) -> Callable[[Bench], Found]:
    def run(bench: Bench) -> Found:
        """Rows have weights, and the last layer's regularizer adds a term."""
        more = {"kernel_regularizer": "l2"}
        return bench.train(
            lambda: bench.sequential(numbers(), [bench.layers.Dense(width, activation, **more)]),
            (numbers(), y(), row_weights()),
            loss=getattr(bench.losses, name)(),
        )

    return run


for _name, (_kind, _width, _activation, _y, *_libraries) in _EACH.items():
    put(
        f"loss_{_name}",
        __name__,
        _of_loss(_kind, _width, _activation, _y),
        _libraries[0] if _libraries else BOTH,
    )


@program(KERAS_3)
def loss_ctc(bench: Bench) -> Found:
    x = np.random.RandomState(5).uniform(-1, 1, [22, 6, 4]).astype("float32")
    y = np.random.RandomState(6).randint(1, 5, [22, 3])
    return bench.train(
        lambda: bench.sequential(x, [bench.layers.Dense(6)]),
        (x, y.astype("int32")),
        loss=bench.losses.CTC(),
        optimizer=lambda: bench.optimizers.SGD(0.01),
    )


@program()
def loss_with_label_smoothing(bench: Bench) -> Found:
    return bench.train(
        lambda: bench.sequential(numbers(), [bench.layers.Dense(3)]),
        (numbers(), one_hot()),
        loss=bench.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
    )


# A loss of a whole batch: of pairs of its rows.


def _segmenter(bench: Bench) -> Any:
    return bench.sequential(images(), [bench.layers.Conv2D(1, 3, activation="sigmoid")])


def _shapes() -> Any:
    return (images()[:, 1:-1, 1:-1, :1] > 0.8).astype("float32")


@program(KERAS_3, says="Dice", differs=("",))
def loss_dice_of_a_batch(bench: Bench) -> Found:
    return bench.train(
        lambda: _segmenter(bench), (images(), _shapes()), loss=bench.losses.Dice(), evaluates=True
    )


@program(KERAS_3)
def loss_dice_of_each_row(bench: Bench) -> Found:
    return bench.train(
        lambda: _segmenter(bench), (images(), _shapes()), loss=bench.losses.Dice(axis=(1, 2, 3))
    )


@program(KERAS_3, says="Tversky", differs=("",))
def loss_tversky_of_a_batch(bench: Bench) -> Found:
    return bench.train(
        lambda: _segmenter(bench), (images(), _shapes()), loss=bench.losses.Tversky()
    )


@program(KERAS_3, says="Circle", differs=("",))
def loss_circle_of_pairs(bench: Bench) -> Found:
    return bench.train(
        lambda: bench.sequential(
            numbers(), [bench.layers.Dense(3), bench.layers.UnitNormalization()]
        ),
        (numbers(), labels()),
        loss=bench.losses.Circle(),
        optimizer=lambda: bench.optimizers.SGD(0.001),
    )


def _contrastive(y: Any, p: Any) -> Any:
    """Each row against all rows of the batch."""
    p = tf.math.l2_normalize(p, axis=-1)
    same = tf.cast(tf.equal(y[:, None], y[None, :]), p.dtype)
    scores = tf.matmul(p, p, transpose_b=True)
    return tf.reduce_mean(tf.square(scores - same[..., 0]), axis=-1)


@program(says="pairs", differs=("",))
def loss_of_pairs_of_rows(bench: Bench) -> Found:
    return bench.train(
        lambda: bench.sequential(numbers(), [bench.layers.Dense(3)]),
        (numbers(), labels()[:, None].astype("float32")),
        loss=_contrastive,
    )


# Several outputs.


def _two_heads(bench: Bench) -> Any:
    x = bench.keras.Input([4])
    return bench.keras.Model(
        x, {"a": bench.layers.Dense(1, name="a")(x), "b": bench.layers.Dense(3, name="b")(x)}
    )


def _two_targets() -> Any:
    return {"a": sizes(), "b": labels()}


def _two_losses(bench: Bench) -> Any:
    return {"a": "mse", "b": bench.losses.SparseCategoricalCrossentropy(from_logits=True)}


@program()
def outputs_by_name(bench: Bench) -> Found:
    return bench.train(
        lambda: _two_heads(bench),
        (numbers(), _two_targets()),
        loss=_two_losses(bench),
        metrics={"a": ["mae"], "b": ["accuracy"]},
        run_eagerly=False,  # Eagerly Keras counts the rows of an output.
        evaluates=True,
        predicts=True,
        fit={"epochs": 2},
    )


@program()
def outputs_with_weights_of_losses(bench: Bench) -> Found:
    return bench.train(
        lambda: _two_heads(bench),
        (numbers(), _two_targets()),
        loss=_two_losses(bench),
        loss_weights={"a": 0.5, "b": 2.0},
        run_eagerly=False,  # Eagerly Keras counts the rows of an output.
        evaluates=True,
    )


@program()
def outputs_with_weights_of_rows(bench: Bench) -> Found:
    weights = {"a": row_weights(), "b": row_weights()[::-1].copy()}
    return bench.train(
        lambda: _two_heads(bench),
        (numbers(), _two_targets(), weights),
        loss=_two_losses(bench),
        weighted_metrics={"a": ["mae"], "b": ["accuracy"]},
        run_eagerly=False,  # Eagerly Keras counts the rows of an output.
        evaluates=True,
    )


@program()
def outputs_in_a_list(bench: Bench) -> Found:
    def make() -> Any:
        x = bench.keras.Input([4])
        return bench.keras.Model(x, [bench.layers.Dense(1)(x), bench.layers.Dense(2)(x)])

    return bench.train(
        make,
        (numbers(), (sizes(), sizes(2))),
        loss=["mse", "mae"],
        evaluates=True,
        run_eagerly=False,
    )


@program()
def outputs_of_which_one_has_no_loss(bench: Bench) -> Found:
    return bench.train(
        lambda: _two_heads(bench),
        (numbers(), {"a": sizes()}),
        loss={"a": "mse"},
        evaluates=True,
    )


@program()
def outputs_with_a_summed_loss(bench: Bench) -> Found:
    return bench.train(
        lambda: _two_heads(bench),
        (numbers(), _two_targets()),
        loss={"a": bench.losses.MeanSquaredError(reduction="sum"), "b": _two_losses(bench)["b"]},
        optimizer=lambda: bench.optimizers.SGD(0.02),
        run_eagerly=False,  # Eagerly Keras counts the rows of an output.
        evaluates=True,
    )


# Losses that layers and models add.


@program()
def regularizers(bench: Bench) -> Found:
    """A term of weights counts once, however many replicas there are."""
    more = {
        "kernel_regularizer": bench.keras.regularizers.L1L2(0.02, 0.01),
        "bias_regularizer": "l2",
    }
    return bench.train(
        lambda: bench.sequential(numbers(), [bench.layers.Dense(2, **more)]),
        (numbers(), sizes(2)),
        evaluates=True,
    )


@program()
def activity_regularizer(bench: Bench) -> Found:
    return bench.train(
        lambda: bench.sequential(
            numbers(), [bench.layers.Dense(3, activity_regularizer="l2"), bench.layers.Dense(1)]
        ),
        (numbers(), sizes()),
        evaluates=True,
    )


@program()
def activity_regularization_layer(bench: Bench) -> Found:
    return bench.train(
        lambda: bench.sequential(
            numbers(),
            [
                bench.layers.Dense(3),
                bench.layers.ActivityRegularization(l1=0.1, l2=0.1),
                bench.layers.Dense(1),
            ],
        ),
        (numbers(), sizes()),
        evaluates=True,
    )


def _adding(bench: Bench, term: Callable[[Any], Any]) -> Any:
    """Returns a layer that adds a term of its rows to the loss."""

    class Adding(bench.layers.Layer):
        def call(self, x: Any) -> Any:
            self.add_loss(term(x))
            return x

    return bench.sequential(numbers(), [bench.layers.Dense(3), Adding(), bench.layers.Dense(1)])


@program()
def add_loss_of_a_mean_of_rows(bench: Bench) -> Found:
    return bench.train(
        lambda: _adding(bench, lambda x: 0.1 * tf.reduce_mean(tf.square(x))),
        (numbers(), sizes()),
        evaluates=True,
    )


@program()
def add_loss_of_a_sum_of_rows(bench: Bench) -> Found:
    return bench.train(
        lambda: _adding(bench, lambda x: 0.01 * tf.reduce_sum(tf.square(x))),
        (numbers(), sizes()),
        evaluates=True,
    )


@program(KERAS_3)
def add_loss_of_a_number_for_each_row(bench: Bench) -> Found:
    return bench.train(
        lambda: _adding(bench, lambda x: 0.1 * tf.reduce_sum(tf.square(x), axis=-1)),
        (numbers(), sizes()),
        evaluates=True,
    )


@program()
def add_loss_of_weights(bench: Bench) -> Found:
    class Penalized(bench.layers.Dense):
        def call(self, x: Any) -> Any:
            self.add_loss(0.1 * tf.reduce_sum(tf.square(tf.convert_to_tensor(self.kernel))))
            return super().call(x)

    return bench.train(
        lambda: bench.sequential(numbers(), [Penalized(2)]),
        (numbers(), sizes(2)),
        evaluates=True,
    )


def _with_endpoint(bench: Bench, *, adds_metric: bool = False) -> Any:
    x, y = bench.keras.Input([4], name="x"), bench.keras.Input([1], name="y")
    p = bench.layers.Dense(1)(x)
    model = bench.keras.Model({"x": x, "y": y}, p)
    model.add_loss(tf.reduce_mean(tf.square(y - p)))
    if adds_metric:
        model.add_metric(tf.reduce_mean(tf.abs(y - p)), name="off")
    return model


@program(TF_KERAS)
def add_loss_of_a_model(bench: Bench) -> Found:
    return bench.train(
        lambda: _with_endpoint(bench),
        {"x": numbers(), "y": sizes()},
        fit={"batch_size": 7, "shuffle": False},
        loss=None,
    )


@program(TF_KERAS)
def add_metric_of_a_model(bench: Bench) -> Found:
    return bench.train(
        lambda: _with_endpoint(bench, adds_metric=True),
        {"x": numbers(), "y": sizes()},
        fit={"batch_size": 7, "shuffle": False, "epochs": 2},
        loss=None,
    )


@program(TF_KERAS)
def add_metric_of_a_layer(bench: Bench) -> Found:
    class Watched(bench.layers.Dense):
        def call(self, x: Any) -> Any:
            made = super().call(x)
            self.add_metric(tf.reduce_mean(tf.abs(made)), name="size")
            return made

    return bench.train(
        lambda: bench.sequential(numbers(), [Watched(1)]), (numbers(), sizes()), evaluates=True
    )


@program()
def vae(bench: Bench) -> Found:
    """The guide's variational autoencoder, whose noise comes with the data."""

    class Vae(bench.keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = bench.layers.Dense(4), bench.layers.Dense(4)

        def call(self, inputs: Any) -> Any:
            x, noise = inputs
            mean, variance = tf.split(self.encoder(x), 2, axis=-1)
            kl = -0.5 * tf.reduce_mean(variance - tf.square(mean) - tf.exp(variance) + 1)
            self.add_loss(kl)
            return self.decoder(mean + tf.exp(0.5 * variance) * noise)

    x = numbers()
    data = tf.data.Dataset.from_tensor_slices(((x, numbers(2)), x)).batch(7)
    return bench.train(Vae, data, evaluates=True)


@program()
def loss_of_one_output_given_as_a_list(bench: Bench) -> Found:
    return bench.train(
        lambda: bench.sequential(numbers(), [bench.layers.Dense(1)]),
        (numbers(), sizes()),
        loss=["mse"],
        loss_weights=[0.5],
        evaluates=True,
    )


@program()
def loss_that_is_a_class(bench: Bench) -> Found:
    """A Loss of one's own, as the guide shows: its call returns a number for each row."""

    class Mean(bench.losses.Loss):
        def call(self, y: Any, p: Any) -> Any:
            return tf.reduce_mean(tf.square(y - p) * 2.0, axis=-1)

    return bench.train(
        lambda: bench.sequential(numbers(), [bench.layers.Dense(2)]),
        (numbers(), sizes(2), row_weights()),
        loss=Mean(),
        evaluates=True,
    )


@program()
def loss_that_is_a_class_and_returns_one_number(bench: Bench) -> Found:
    class Mean(bench.losses.Loss):
        def call(self, y: Any, p: Any) -> Any:
            return tf.reduce_mean(tf.square(y - p))

    return bench.train(
        lambda: bench.sequential(numbers(), [bench.layers.Dense(2)]),
        (numbers(), sizes(2)),
        loss=Mean(),
    )


@program()
def outputs_of_masked_sequences(bench: Bench) -> Found:
    """A class for each word, and a number for each sentence."""

    def make() -> Any:
        words = bench.keras.Input([5], dtype="int32")
        rows = bench.layers.Embedding(12, 3, mask_zero=True)(words)
        rnn = bench.layers.LSTM(3, return_sequences=True)(rows)
        last = bench.layers.LSTM(2)(rnn)
        return bench.keras.Model(
            words,
            {
                "tags": bench.layers.Dense(3, name="tags")(rnn),
                "size": bench.layers.Dense(1, name="size")(last),
            },
        )

    y = {"tags": sentences() % 3, "size": sizes()}
    return bench.train(
        make,
        (sentences(), y),
        loss={"tags": _two_losses(bench)["b"], "size": "mse"},
        metrics={"tags": ["accuracy"], "size": ["mae"]},
        run_eagerly=False,  # Eagerly Keras counts the rows of an output.
    )
