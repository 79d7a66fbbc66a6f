"""Small trainings with Keras 3 and tf_keras, of which one process makes all in turn.

Each takes the strategy and the library, and returns a dict of arrays. Names that begin with "own_"
are of this worker or for one number of replicas; everything else is equal for one process with the
global batch and for all workers.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

Case = Callable[[Any, Any], dict[str, Any]]
LIBRARIES = ("keras", "tf_keras")
CASES: dict[str, Case] = {}
ROWS, WORDS = 8, 16  # Of a global batch, and of the embedding.


def case(function: Case) -> Case:
    for library in LIBRARIES:
        CASES[f"{library} {function.__name__}"] = function
    return function


def run_all(num_replicas: int = 1, names: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Makes the trainings in turn; one that fails returns its error as "error"."""
    from tfdist.strategies import strategy_for_run

    strategy = strategy_for_run(num_replicas=num_replicas)
    libraries = {name: importlib.import_module(name) for name in LIBRARIES}
    results: dict[str, dict[str, Any]] = {}
    for name in names or CASES:
        library = libraries[name.split()[0]]
        library.utils.set_random_seed(7)
        try:
            found = CASES[name](strategy, library)
        except Exception:  # A test shows it.
            found = {"error": traceback.format_exc()}
        results[name] = {key: _plain(value) for key, value in found.items()}
        # A collection of garbage takes longer than a training here.
        library.backend.clear_session(**({"free_memory": False} if is_keras_3(library) else {}))
    return results


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else np.asarray(value, np.float64).tolist()


def is_keras_3(library: Any) -> bool:
    return not hasattr(library, "__internal__")


def features(batches: int = 3) -> tuple[Any, Any, Any]:
    """Returns (words [rows, 2], numbers [rows, 4], labels [rows])."""
    random = np.random.RandomState(0)
    number = batches * ROWS
    return (
        random.randint(0, WORDS, [number, 2]),
        random.uniform(-1, 1, [number, 4]).astype("float32"),
        random.randint(0, 3, number),
    )


def flat(values: Sequence[Any]) -> Any:
    return np.concatenate([np.ravel(value) for value in values])


# Optimizers, in loops of one's own.


def _trained(
    strategy: Any,
    library: Any,
    make: Callable[[Any], Any],
    *,
    minimizes: bool = False,
    outside_replicas: bool = False,
) -> dict[str, Any]:
    """Trains an embedding and a layer for 4 steps.

    Words are repeated in a batch. Keras adds their rows before some rules, and not before others.

    Args:
      strategy: The strategy.
      library: Keras 3 or tf_keras.
      make: Makes the optimizer.
      minimizes: Whether the optimizer takes gradients.
      outside_replicas: Whether replicas only take gradients, and the optimizer gets their sums.
    """
    with strategy.scope():
        model, optimizer = _word_model(library), make(library)
    loss_of = library.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def step(words: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        def loss() -> tf.Tensor:
            each = loss_of(labels, model(words, training=True))  # [rows]
            return 5.0 * tf.nn.compute_average_loss(each, global_batch_size=ROWS)

        weights = model.trainable_variables
        if minimizes:
            optimizer.minimize(loss, weights)
            return loss()
        with tf.GradientTape() as tape:
            value = loss()
        gradients = tape.gradient(value, weights)
        if outside_replicas:
            return value, gradients
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return value

    @tf.function
    def train(words: Any, labels: Any) -> tf.Tensor:
        found = strategy.run(step, args=(words, labels))
        if not outside_replicas:
            return strategy.reduce("SUM", found, axis=None)
        with strategy.scope():
            loss, *gradients = [
                strategy.reduce("SUM", value, axis=None) for value in (found[0], *found[1])
            ]
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return loss

    losses = [train(*batch) for batch in strategy.experimental_distribute_dataset(_word_batches())]
    return _results(model, optimizer, losses)


def _results(model: Any, optimizer: Any, losses: Sequence[tf.Tensor]) -> dict[str, Any]:
    slots = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    slots = [v for v in slots if tf.as_dtype(v.dtype).is_floating]
    return {
        "losses": losses,
        "weights": flat(model.get_weights()),
        "slots": flat([np.asarray(v) for v in slots]),
        "iterations": int(optimizer.iterations),
    }


def _word_model(library: Any) -> Any:
    words = library.Input([2], dtype="int32")
    rows = library.layers.Flatten()(library.layers.Embedding(WORDS, 3)(words))
    return library.Model(words, library.layers.Dense(3)(rows))


def _word_batches() -> tf.data.Dataset:
    words, _, labels = features(4)
    dataset = tf.data.Dataset.from_tensor_slices((words, labels))
    return dataset.batch(ROWS, drop_remainder=True)


def _average(library: Any) -> Any:
    """Its clipping counts the rows of a word in a batch apart; the optimizer adds them after it."""
    options = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2}
    return library.optimizers.SGD(0.5, global_clipnorm=0.3, **options)


@case
def momentum(strategy: Any, library: Any) -> dict[str, Any]:
    """Keras 3 accumulates gradients; tf_keras cannot, and takes them itself."""

    def make(library: Any) -> Any:
        rate = library.optimizers.schedules.PolynomialDecay(0.5, 3, 0.1)
        more = {"gradient_accumulation_steps": 2} if is_keras_3(library) else {}
        return library.optimizers.SGD(rate, momentum=0.5, nesterov=True, clipvalue=0.1, **more)

    return _trained(strategy, library, make, minimizes=not is_keras_3(library))


@case
def adamw(strategy: Any, library: Any) -> dict[str, Any]:
    def make(library: Any) -> Any:
        return library.optimizers.AdamW(0.05, weight_decay=0.1, epsilon=1e-3, clipnorm=0.3)

    return _trained(strategy, library, make)


@case
def average(strategy: Any, library: Any) -> dict[str, Any]:
    return _trained(strategy, library, _average)


@case
def applied_outside_replicas(strategy: Any, library: Any) -> dict[str, Any]:
    return _trained(strategy, library, _average, outside_replicas=True)


@case
def overflow(strategy: Any, library: Any) -> dict[str, Any]:
    """The last row of the second batch overflows in float16: on one replica only."""
    policies = library.mixed_precision
    set_policy = getattr(policies, "set_global_policy", None) or policies.set_dtype_policy
    set_policy("mixed_float16")
    try:
        with strategy.scope():
            model = library.Sequential([library.layers.Dense(1, use_bias=False)])
            model.build([None, 4])
            inner = library.optimizers.SGD(0.125, momentum=0.5)
            optimizer = policies.LossScaleOptimizer(inner, initial_scale=1024.0)
            model.compile(optimizer, "mse")
        model.set_weights([np.full([4, 1], 0.5, "float32")])
        found: dict[str, Any] = {}

        class Note(library.callbacks.Callback):  # type: ignore[misc, name-defined]
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                scale = getattr(optimizer, "dynamic_scale", getattr(optimizer, "loss_scale", None))
                found[f"own_weights_{batch}"] = flat(model.get_weights())
                found[f"scale_{batch}"] = np.asarray(scale)
                found[f"iterations_{batch}"] = int(inner.iterations)

        x = np.round(features()[1] * 8) / 8
        x[2 * ROWS - 1] = 60000.0  # float16 ends at 65504.
        y = np.zeros([3 * ROWS, 1], "float32")
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(ROWS)
        model.fit(dataset, verbose=0, callbacks=[Note()])
        return found
    finally:
        set_policy("float32")


# Layers.


@case
def batch_norm_of_a_replica(strategy: Any, library: Any) -> dict[str, Any]:
    with strategy.scope():
        norm = library.layers.BatchNormalization(momentum=0.5)
        model = library.Sequential([norm, library.layers.Dense(3)])
        model.compile("sgd", library.losses.SparseCategoricalCrossentropy(from_logits=True))
    _, numbers, labels = features()
    dataset = tf.data.Dataset.from_tensor_slices((numbers, labels)).batch(ROWS)
    model.fit(dataset, verbose=0)
    return {"own_weights": flat(model.get_weights())}


@case
def dropout(strategy: Any, library: Any) -> dict[str, Any]:
    """Returns which of 32 values each replica keeps in two steps, made twice."""

    def kept() -> list[Any]:
        library.utils.set_random_seed(7)
        with strategy.scope():
            layer = library.layers.Dropout(0.5)
            layer.build([1, 32])

        @tf.function
        def step() -> Any:
            return strategy.run(
                lambda: tf.cast(layer(tf.ones([1, 32]), training=True) > 0, "int32")
            )

        made = [strategy.gather(step(), axis=0) for _ in range(2)]
        return [np.asarray(rows) for rows in made]  # [replicas of all workers, 32] each

    first, again = kept(), kept()
    return {"own_kept": np.stack(first), "own_again": np.stack(again)}


# `fit`; number_programs has its inputs, losses and layers.


@case
def own_train_step(strategy: Any, library: Any) -> dict[str, Any]:
    class Subclassed(library.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.dense = library.layers.Dense(3)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(x=x, y=y, y_pred=y_pred)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"a_replica": loss}

    with strategy.scope():
        model = Subclassed()
        model.compile(
            library.optimizers.SGD(0.1),
            library.losses.SparseCategoricalCrossentropy(from_logits=True),
            steps_per_execution=2,
        )
    _, numbers, labels = features(4)
    dataset = tf.data.Dataset.from_tensor_slices((numbers, labels)).batch(ROWS)
    model.fit(dataset, verbose=0)
    return {"weights": flat(model.get_weights())}
