"""Whole models: how they are built, optimizers, precision, callbacks, sparse features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from number_programs.bench import (
    BATCH,
    ROWS,
    WORDS,
    Bench,
    batches,
    even_batches,
    images,
    labels,
    numbers,
    row_weights,
    sentences,
    sizes,
    weights_of,
)
from number_programs.table import BOTH, KERAS_3, TF_KERAS, Found, program, put


def _data() -> tuple[Any, Any]:
    return numbers(), sizes()


# How a model is built.


@program()
def subclassed_model(bench: Bench) -> Found:
    """Its layers have no weights before the first batch."""

    class Model(bench.keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first = bench.layers.Dense(3, "tanh")
            self.second = bench.layers.Dense(1)

        def call(self, x: Any, training: bool = False) -> Any:
            return self.second(self.first(x))

    return bench.train(Model, _data(), predicts=True)


@program()
def nested_models(bench: Bench) -> Found:
    def make() -> Any:
        inner = bench.keras.Sequential([bench.layers.Dense(3, "tanh"), bench.layers.Dense(3)])
        x = bench.keras.Input([4])
        return bench.keras.Model(x, bench.layers.Dense(1)(inner(x)))

    return bench.train(make, _data(), predicts=True)


@program()
def shared_layer(bench: Bench) -> Found:
    """A layer that is called twice: its gradient has two parts."""

    def make() -> Any:
        x = bench.keras.Input([4])
        shared = bench.layers.Dense(4, "tanh")
        return bench.keras.Model(x, bench.layers.Dense(1)(shared(shared(x))))

    return bench.train(make, _data(), predicts=True)


@program()
def residual_blocks(bench: Bench) -> Found:
    def make() -> Any:
        x = bench.keras.Input(images().shape[1:])
        made = bench.layers.Conv2D(3, 3, padding="same")(x)
        more = bench.layers.Conv2D(3, 3, padding="same", activation="relu")(made)
        made = bench.layers.GlobalAveragePooling2D()(bench.layers.Add()([made, more]))
        return bench.keras.Model(x, bench.layers.Dense(2)(made))

    return bench.train(make, (images(), sizes(2)))


@program()
def merging_layers(bench: Bench) -> Found:
    def make() -> Any:
        of = bench.layers
        x = bench.keras.Input([4])
        pair = [of.Dense(3)(x), of.Dense(3, "tanh")(x)]
        parts = [of.Multiply()(pair), of.Maximum()(pair), of.Subtract()(pair), of.Average()(pair)]
        parts += [of.Minimum()(pair), of.Dot(1)(pair)]
        return bench.keras.Model(x, of.Dense(1)(of.Concatenate()(parts)))

    return bench.train(make, _data(), predicts=True)


@program()
def wide_and_deep(bench: Bench) -> Found:
    """Inputs of two kinds; words that only some replicas have."""

    def make() -> Any:
        wide = bench.keras.Input([4], name="wide")
        words = bench.keras.Input([5], dtype="int32", name="words")
        deep = bench.layers.Flatten()(bench.layers.Embedding(WORDS, 2)(words))
        deep = bench.layers.Dense(3, "relu")(deep)
        both = bench.layers.Concatenate()([wide, deep])
        return bench.keras.Model({"wide": wide, "words": words}, bench.layers.Dense(1)(both))

    x = {"wide": numbers(), "words": sentences()}
    return bench.train(make, (x, sizes()), predicts=True, metrics=["mae"])


@program()
def part_of_a_model_that_is_frozen(bench: Bench) -> Found:
    def make() -> Any:
        frozen = bench.layers.Dense(3, "tanh", trainable=False)
        return bench.sequential(numbers(), [frozen, bench.layers.Dense(1)])

    return bench.train(make, _data())


@program()
def two_phases_of_fine_tuning(bench: Bench) -> Found:
    """Trained, unfrozen, compiled again with another rate, trained again."""
    base = {}

    def make() -> Any:
        base["layer"] = bench.layers.Dense(3, "tanh", trainable=False)
        return bench.sequential(numbers(), [base["layer"], bench.layers.Dense(1)])

    model = bench.compiled(make)
    first = bench.trained(model, _data())
    base["layer"].trainable = True
    second = bench.train(lambda: model, _data(), optimizer=lambda: bench.optimizers.Adam(0.01))
    return {**{f"first {name}": value for name, value in first.items()}, **second}


@program()
def model_that_is_fit_twice(bench: Bench) -> Found:
    model = bench.compiled(lambda: bench.sequential(numbers(), [bench.layers.Dense(1)]))
    first = bench.trained(model, _data())
    second = bench.trained(model, (numbers()[::-1].copy(), sizes()), epochs=3, initial_epoch=1)
    return {**{f"first {name}": value for name, value in first.items()}, **second}


@program()
def autoencoder(bench: Bench) -> Found:
    x = numbers()
    return bench.train(
        lambda: bench.sequential(x, [bench.layers.Dense(2, "tanh"), bench.layers.Dense(4)]),
        (x, x),
        predicts=True,
    )


@program()
def constraints(bench: Bench) -> Found:
    of = bench.keras.constraints
    return bench.train(
        lambda: bench.sequential(
            numbers(),
            [
                bench.layers.Dense(3, kernel_constraint=of.MaxNorm(0.5)),
                bench.layers.Dense(1, kernel_constraint=of.NonNeg()),
            ],
        ),
        _data(),
    )


@program()
def weights_set_before_training(bench: Bench) -> Found:
    def make() -> Any:
        model = bench.sequential(numbers(), [bench.layers.Dense(1)])
        model.set_weights([np.full([4, 1], 0.25, "float32"), np.ones([1], "float32")])
        return model

    return bench.train(make, _data())


# Optimizers.


def _of_optimizer(make: Callable[[Bench], Any]) -> Callable[[Bench], Found]:
    def run(bench: Bench) -> Found:
        def model() -> Any:
            layers = [
                bench.layers.Embedding(WORDS, 3),
                bench.layers.Flatten(),
                bench.layers.Dense(1),
            ]
            return bench.sequential(sentences(), layers)

        return bench.train(model, (sentences(), sizes()), optimizer=lambda: make(bench))

    return run


def _decay(bench: Bench) -> Any:
    return bench.optimizers.schedules.ExponentialDecay(0.2, 2, 0.5, staircase=True)


def _cosine(bench: Bench) -> Any:
    return bench.optimizers.schedules.CosineDecay(0.2, 3)


_OPTIMIZERS: dict[str, Callable[[Bench], Any]] = {
    "sgd_with_momentum": lambda b: b.optimizers.SGD(0.1, momentum=0.5, nesterov=True),
    "adam": lambda b: b.optimizers.Adam(0.05, amsgrad=True, epsilon=1e-3),
    "adamw": lambda b: b.optimizers.AdamW(0.05, weight_decay=0.1, epsilon=1e-3),
    "adamax": lambda b: b.optimizers.Adamax(0.05, epsilon=1e-3),
    "adagrad": lambda b: b.optimizers.Adagrad(0.1),
    "adadelta": lambda b: b.optimizers.Adadelta(1.0, epsilon=1e-3),
    "rmsprop": lambda b: b.optimizers.RMSprop(0.02, centered=True, momentum=0.5, epsilon=1e-3),
    "ftrl": lambda b: b.optimizers.Ftrl(0.1, l1_regularization_strength=0.01),
    "lion": lambda b: b.optimizers.Lion(0.01),
    "adafactor": lambda b: b.optimizers.Adafactor(0.05),
    "clipnorm": lambda b: b.optimizers.SGD(0.5, clipnorm=0.1),
    "clipvalue": lambda b: b.optimizers.SGD(0.5, clipvalue=0.02),
    "global_clipnorm": lambda b: b.optimizers.SGD(0.5, global_clipnorm=0.2),
    "average_of_weights": lambda b: b.optimizers.SGD(
        0.2, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "average_of_weights_at_the_end": lambda b: b.optimizers.SGD(
        0.2, use_ema=True, ema_momentum=0.5
    ),
    "exponential_decay": lambda b: b.optimizers.SGD(_decay(b)),
    "cosine_decay": lambda b: b.optimizers.Adam(_cosine(b), epsilon=1e-3),
}
_OPTIMIZERS_OF_KERAS_3: dict[str, Callable[[Bench], Any]] = {
    "lamb": lambda b: b.optimizers.Lamb(0.05, epsilon=1e-3),
    "nadam": lambda b: b.optimizers.Nadam(0.05, epsilon=1e-3),
    "muon": lambda b: b.optimizers.Muon(0.05),
    "schedule_free_adamw": lambda b: b.optimizers.ScheduleFreeAdamW(0.05, epsilon=1e-3),
    "accumulated_gradients": lambda b: b.optimizers.SGD(
        0.2, momentum=0.5, gradient_accumulation_steps=2
    ),
    "accumulated_and_clipped_gradients": lambda b: b.optimizers.SGD(
        0.5, global_clipnorm=0.2, gradient_accumulation_steps=2
    ),
    "loss_scale": lambda b: b.optimizers.LossScaleOptimizer(b.optimizers.SGD(0.1)),
}
for _name, _make in {**_OPTIMIZERS, **_OPTIMIZERS_OF_KERAS_3}.items():
    put(
        f"optimizer_{_name}",
        __name__,
        _of_optimizer(_make),
        KERAS_3 if _name in _OPTIMIZERS_OF_KERAS_3 else BOTH,
    )
put(
    "optimizer_nadam_of_tf_keras",
    __name__,
    _of_optimizer(_OPTIMIZERS_OF_KERAS_3["nadam"]),
    TF_KERAS,
    says="counts how often a function is traced",
    differs=("",),
)


@program()
def float64(bench: Bench) -> Found:
    return bench.train(
        lambda: bench.sequential(numbers(), [bench.layers.Dense(1, dtype="float64")]),
        (numbers(), sizes().astype("float64")),
    )


# Callbacks that watch numbers.


def _watched(bench: Bench, callback: Any, **fit: Any) -> Found:
    fit = {"epochs": 4, "callbacks": [callback], "validation_data": _held_out(), **fit}
    model = bench.compiled(
        lambda: bench.sequential(numbers(), [bench.layers.Dense(1)]), metrics=["mae"]
    )
    found = bench.trained(model, _data(), **fit)
    return {**found, "rate": np.asarray(model.optimizer.learning_rate)}


def _held_out() -> tf.data.Dataset:
    return batches((numbers()[4:17], sizes()[4:17] * 2))


@program()
def early_stopping(bench: Bench) -> Found:
    options = {"monitor": "val_mae", "min_delta": 0.02, "patience": 0}
    callback = bench.keras.callbacks.EarlyStopping(**options, restore_best_weights=True)
    return _watched(bench, callback)


@program()
def reduce_rate_on_plateau(bench: Bench) -> Found:
    options = {"monitor": "val_loss", "factor": 0.1, "patience": 1, "min_delta": 0.05}
    return _watched(bench, bench.keras.callbacks.ReduceLROnPlateau(**options))


@program()
def rate_of_each_epoch(bench: Bench) -> Found:
    schedule = lambda epoch, rate: 0.1 / (epoch + 1)  # noqa: E731
    return _watched(bench, bench.keras.callbacks.LearningRateScheduler(schedule))


@program()
def callback_that_keeps_logs_of_batches(bench: Bench) -> Found:
    kept: list[list[float]] = []

    class Keep(bench.keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            kept.append([logs["loss"], logs["mae"]])

    return {**_watched(bench, Keep(), epochs=1), "kept": np.array(kept)}


@program()
def callback_that_evaluates_itself(bench: Bench) -> Found:
    kept: list[float] = []

    class Look(bench.keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            more = self.model.evaluate(_held_out(), verbose=0, return_dict=True)
            kept.append(more["mae"])

    return {**_watched(bench, Look(), epochs=2), "kept": np.array(kept)}


@program()
def terminate_on_nan(bench: Bench) -> Found:
    x = numbers()
    x[9] = np.nan
    model = bench.compiled(lambda: bench.sequential(x, [bench.layers.Dense(1)]))
    callback = bench.keras.callbacks.TerminateOnNaN()
    history = model.fit(batches((x, sizes())), epochs=3, verbose=0, callbacks=[callback]).history
    return {"epochs": len(history["loss"]), "steps": int(model.optimizer.iterations)}


@program()
def model_checkpoint_of_the_best(bench: Bench) -> Found:
    import os
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "best.weights.h5")
        options = {"monitor": "val_loss", "save_best_only": True, "save_weights_only": True}
        callback = bench.keras.callbacks.ModelCheckpoint(path, **options)
        found = _watched(bench, callback)
        return {**found, "best": np.asarray(callback.best)}


# Sparse and ragged features.


def _sparse_rows() -> tuple[Any, Any]:
    rows, places = np.nonzero(numbers(6) > 0.2)
    indices = np.stack([rows, places], 1)
    values = np.ones(len(rows), "float32")
    return tf.sparse.SparseTensor(indices, values, [ROWS, 6]), sizes()


def _sparse_model(bench: Bench) -> Any:
    x = bench.keras.Input([6], sparse=True)
    return bench.keras.Model(x, bench.layers.Dense(1)(x))


@program()
def sparse_features(bench: Bench) -> Found:
    return bench.train(lambda: _sparse_model(bench), even_batches(_sparse_rows()))


# A worker's error ends the others, and so their layout.
@program(refuses="drop_remainder=True", layouts=("1x2",))
def sparse_features_of_fewer_rows_than_replicas(bench: Bench) -> Found:
    return bench.train(lambda: _sparse_model(bench), batches(_sparse_rows()))


@program(TF_KERAS)
def ragged_features(bench: Bench) -> Found:
    def make() -> Any:
        words = bench.keras.Input([None], dtype="int32", ragged=True)
        rows = bench.layers.Embedding(WORDS, 3)(words)
        rows = bench.layers.Lambda(lambda one: tf.reduce_sum(one, axis=1))(rows)
        return bench.keras.Model(words, bench.layers.Dense(1)(rows))

    lists = [[int(word) for word in row if word] for row in sentences()]
    x = tf.ragged.constant(lists, dtype=tf.int32)
    return bench.train(make, tf.data.Dataset.from_tensor_slices((x, sizes())).batch(BATCH))


# Classes that few rows have.


@program()
def unbalanced_classes_with_all_metrics(bench: Bench) -> Found:
    return bench.train(
        lambda: bench.sequential(numbers(), [bench.layers.Dense(1, "sigmoid")]),
        (numbers(), (labels(2)[:, None] > 0).astype("float32"), row_weights()),
        loss="binary_crossentropy",
        metrics=lambda: ["accuracy", bench.metrics.AUC(num_thresholds=20, name="auc")],
        fit={"epochs": 2, "validation_data": _held_out_binary()},
        evaluates=True,
    )


def _held_out_binary() -> Any:
    return batches((numbers()[3:18], (labels(2)[3:18, None] > 0).astype("float32")))


@program()
def weights_of_a_model_saved_and_loaded(bench: Bench) -> Found:
    import os
    import tempfile

    make = lambda: bench.sequential(numbers(), [bench.layers.Dense(1)])  # noqa: E731
    model = bench.compiled(make)
    bench.trained(model, _data())
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "own.weights.h5")
        model.save_weights(path)
        other = bench.compiled(make)
        other.load_weights(path)
    return {**weights_of(other), **bench.trained(other, _data())}


# More of optimizers and callbacks.


@program(KERAS_3)
def swap_of_averaged_weights(bench: Bench) -> Found:
    def rule() -> Any:
        return bench.optimizers.SGD(0.2, use_ema=True, ema_momentum=0.5)

    model = bench.compiled(
        lambda: bench.sequential(numbers(), [bench.layers.Dense(1)]), optimizer=rule
    )
    callback = bench.keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    return bench.trained(model, _data(), callbacks=[callback], validation_data=_held_out())


@program(KERAS_3)
def optimizer_of_its_own(bench: Bench) -> Found:
    class Slow(bench.optimizers.SGD):
        """Takes a tenth of the rate for biases."""

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            part = 0.1 if len(variable.shape) == 1 else 1.0
            super().update_step(gradient * part, variable, learning_rate)

    return bench.train(
        lambda: bench.sequential(numbers(), [bench.layers.Dense(1)]),
        _data(),
        optimizer=lambda: Slow(0.2),
    )


@program()
def learning_rate_set_between_fits(bench: Bench) -> Found:
    model = bench.compiled(lambda: bench.sequential(numbers(), [bench.layers.Dense(1)]))
    bench.trained(model, _data())
    if bench.is_keras_3:
        model.optimizer.learning_rate = 0.01
    else:
        model.optimizer.learning_rate.assign(0.01)
    return bench.trained(model, _data(), epochs=2)


@program(differs=("",))
def mixed_float16(bench: Bench) -> Found:
    """Numbers that float16 holds exactly: its sums are those of any order."""
    policies = bench.keras.mixed_precision
    set_policy = getattr(policies, "set_global_policy", None) or policies.set_dtype_policy
    set_policy("mixed_float16")
    try:
        x = np.round(numbers() * 4) / 4

        def make() -> Any:
            model = bench.sequential(
                x, [bench.layers.Dense(1, use_bias=False), bench.layers.Activation("linear")]
            )
            model.set_weights([np.full([4, 1], 0.5, "float32")])
            return model

        return bench.train(make, (x, x[:, :1]), optimizer=lambda: bench.optimizers.SGD(0.125))
    finally:
        set_policy("float32")
