"""Models that define a part of `fit` themselves, as Keras' guides and docstrings show it."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from number_programs.bench import (
    Bench,
    even_batches,
    labels,
    numbers,
    row_weights,
    sizes,
    weights_of,
)
from number_programs.table import KERAS_3, TF_KERAS, Found, program


def _binary() -> tuple[Any, Any]:
    return numbers(), (labels(2)[:, None] > 0).astype("float32")


def _functional(bench: Bench, kind: Any, activation: str = "sigmoid", width: int = 1) -> Any:
    """Returns a model of a class: one layer on 4 numbers."""
    inputs = bench.keras.Input([4])
    return kind(inputs, bench.layers.Dense(width, activation)(inputs))


def _train(bench: Bench, kind: Any, data: Any = None, **options: Any) -> Found:
    """Trains a model of a class on rows of two kinds, with a metric that is no mean of means."""
    options = {"loss": "mse", "evaluates": True, **options}
    options.setdefault("metrics", lambda: [bench.metrics.Precision(0.7, name="precision")])
    return bench.train(lambda: _functional(bench, kind), data or _binary(), **options)


# A loss of one's own.


@program()
def compute_loss_of_its_docstring(bench: Bench) -> Found:
    class Model(bench.keras.Model):
        def compute_loss(
            self,
            x: Any = None,
            y: Any = None,
            y_pred: Any = None,
            sample_weight: Any = None,
            training: bool = True,
        ) -> Any:
            return tf.reduce_mean(tf.square(y_pred - y))

    return _train(bench, Model)


@program()
def compute_loss_of_its_docstring_and_even_batches(bench: Bench) -> Found:
    class Model(bench.keras.Model):
        def compute_loss(
            self,
            x: Any = None,
            y: Any = None,
            y_pred: Any = None,
            sample_weight: Any = None,
            training: bool = True,
        ) -> Any:
            return tf.reduce_mean(tf.square(y_pred - y))

    return _train(bench, Model, even_batches(_binary()), metrics=None, fit={"epochs": 3})


@program()
def compute_loss_with_a_tracker(bench: Bench) -> Found:
    class Model(bench.keras.Model):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.tracker = bench.metrics.Mean(name="own_loss")

        def compute_loss(
            self,
            x: Any = None,
            y: Any = None,
            y_pred: Any = None,
            sample_weight: Any = None,
            training: bool = True,
        ) -> Any:
            loss = tf.reduce_mean(tf.square(y_pred - y))
            self.tracker.update_state(loss)
            return loss

        def reset_metrics(self) -> None:
            super().reset_metrics()
            self.tracker.reset_state()

        @property
        def metrics(self) -> Any:
            return [*super().metrics, self.tracker]

    # The tracker counts batches, each as much.
    return _train(bench, Model)


@program()
def compute_loss_of_keras_plus_a_term_of_weights(bench: Bench) -> Found:
    class Model(bench.keras.Model):
        def compute_loss(
            self,
            x: Any = None,
            y: Any = None,
            y_pred: Any = None,
            sample_weight: Any = None,
            **more: Any,
        ) -> Any:
            loss = super().compute_loss(x, y, y_pred, sample_weight, **more)
            return loss + 0.1 * tf.reduce_sum(tf.square(self.trainable_variables[0]))

    return _train(bench, Model)


@program()
def compute_loss_of_keras_plus_a_term_of_rows(bench: Bench) -> Found:
    class Model(bench.keras.Model):
        def compute_loss(
            self,
            x: Any = None,
            y: Any = None,
            y_pred: Any = None,
            sample_weight: Any = None,
            **more: Any,
        ) -> Any:
            loss = super().compute_loss(x, y, y_pred, sample_weight, **more)
            return loss + 0.1 * tf.reduce_mean(tf.square(y_pred))

    return _train(bench, Model)


@program()
def compute_loss_of_keras_times_a_number(bench: Bench) -> Found:
    class Model(bench.keras.Model):
        def compute_loss(
            self,
            x: Any = None,
            y: Any = None,
            y_pred: Any = None,
            sample_weight: Any = None,
            **more: Any,
        ) -> Any:
            return 3.0 * super().compute_loss(x, y, y_pred, sample_weight, **more)

    return _train(bench, Model)


@program(TF_KERAS)
def compute_loss_of_a_loss_of_tf_keras(bench: Bench) -> Found:
    class Model(bench.keras.Model):
        def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            return bench.losses.BinaryCrossentropy()(y, y_pred)

    return _train(bench, Model)


@program(KERAS_3)
def compute_loss_of_a_loss_of_keras(bench: Bench) -> Found:
    class Model(bench.keras.Model):
        def compute_loss(
            self,
            x: Any = None,
            y: Any = None,
            y_pred: Any = None,
            sample_weight: Any = None,
            training: bool = True,
        ) -> Any:
            return bench.losses.BinaryCrossentropy()(y, y_pred)

    return _train(bench, Model)


# Logs of one's own.


@program()
def compute_metrics_adds_a_number(bench: Bench) -> Found:
    class Model(bench.keras.Model):
        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            results = super().compute_metrics(x, y, y_pred, sample_weight)
            return {**results, "own": tf.constant(1.0)}

    return _train(bench, Model)


@program()
def compute_metrics_adds_a_mean_of_rows(bench: Bench) -> Found:
    class Model(bench.keras.Model):
        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            results = super().compute_metrics(x, y, y_pred, sample_weight)
            return {**results, "own": tf.reduce_mean(y_pred)}

    return _train(bench, Model, even_batches(_binary()))


@program(differs=("history own_auc", "evaluate own_auc"))
def compute_metrics_adds_a_metric(bench: Bench) -> Found:
    """The result under the metric's own name is the one before the step in plain Keras."""

    class Model(bench.keras.Model):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.own = bench.metrics.AUC(20, name="own_auc")

        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            results = super().compute_metrics(x, y, y_pred, sample_weight)
            self.own.update_state(y, y_pred)
            return {**results, "own": self.own.result()}

        def reset_metrics(self) -> None:
            super().reset_metrics()
            self.own.reset_state()

    return _train(bench, Model)


@program()
def compute_metrics_leaves_one_out(bench: Bench) -> Found:
    class Model(bench.keras.Model):
        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            results = super().compute_metrics(x, y, y_pred, sample_weight)
            return {name: results[name] for name in ("loss", "precision") if name in results}

    def metrics() -> list[Any]:
        return [
            bench.metrics.Precision(0.7, name="precision"),
            bench.metrics.MeanSquaredError(name="error"),
        ]

    return _train(bench, Model, metrics=metrics)


# A train_step of one's own.


def _step(model: Any, loss: Any, tape: Any) -> None:
    weights = model.trainable_variables
    gradients = tape.gradient(loss, weights)
    model.optimizer.apply_gradients(zip(gradients, weights, strict=True))


@program(KERAS_3)
def train_step_of_the_guide(bench: Bench) -> Found:
    class Model(bench.keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=y_pred)
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, y_pred)
            return {m.name: m.result() for m in self.metrics}

    # Its loss counts batches, each as much: so does plain Keras'.
    return _train(bench, Model)


@program(KERAS_3)
def train_step_of_the_guide_and_even_batches(bench: Bench) -> Found:
    class Model(bench.keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=y_pred)
            _step(self, loss, tape)
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, y_pred)
            return {m.name: m.result() for m in self.metrics}

    return _train(bench, Model, even_batches(_binary()), fit={"epochs": 3})


@program(KERAS_3)
def train_step_of_the_guide_with_weights_of_rows(bench: Bench) -> Found:
    class Model(bench.keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y, sample_weight = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=y_pred, sample_weight=sample_weight)
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, y_pred, sample_weight=sample_weight)
            return {m.name: m.result() for m in self.metrics}

    return _train(bench, Model, (*_binary(), row_weights()))


@program(TF_KERAS)
def train_step_of_the_guide_of_tf_keras(bench: Bench) -> Found:
    class Model(bench.keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=y_pred)
            _step(self, loss, tape)
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, y_pred)
            return {m.name: m.result() for m in self.metrics}

    return _train(bench, Model)


@program(TF_KERAS)
def train_step_with_compiled_loss_and_metrics(bench: Bench) -> Found:
    class Model(bench.keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y, sample_weight = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compiled_loss(
                    y, y_pred, sample_weight=sample_weight, regularization_losses=self.losses
                )
            _step(self, loss, tape)
            self.compiled_metrics.update_state(y, y_pred, sample_weight=sample_weight)
            return {m.name: m.result() for m in self.metrics}

    return _train(bench, Model, (*_binary(), row_weights()))


def _with_trackers(bench: Bench) -> Any:
    """Returns the class of the guides' "Going lower-level", which runs in both Kerases."""
    mean = bench.losses.MeanSquaredError()

    class Model(bench.keras.Model):
        def loss_fn(self, y: Any, y_pred: Any) -> Any:
            # tf_keras takes no loss that it would have to divide by the rows.
            return mean(y, y_pred) if bench.is_keras_3 else self.compiled_loss(y, y_pred)

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.loss_tracker = bench.metrics.Mean(name="loss")
            self.mae_metric = bench.metrics.MeanAbsoluteError(name="mae")

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.loss_fn(y, y_pred)
            _step(self, loss, tape)
            self.loss_tracker.update_state(loss)
            self.mae_metric.update_state(y, y_pred)
            return {"loss": self.loss_tracker.result(), "mae": self.mae_metric.result()}

        def test_step(self, data: Any) -> Any:
            x, y = data
            y_pred = self(x, training=False)
            self.loss_tracker.update_state(self.loss_fn(y, y_pred))
            self.mae_metric.update_state(y, y_pred)
            return {"loss": self.loss_tracker.result(), "mae": self.mae_metric.result()}

        @property
        def metrics(self) -> Any:
            return [self.loss_tracker, self.mae_metric]

    return Model


@program()
def train_step_with_trackers(bench: Bench) -> Found:
    return _train(bench, _with_trackers(bench), metrics=None)


@program()
def train_step_with_trackers_that_are_not_in_metrics(bench: Bench) -> Found:
    """They are not reset at the end of an epoch."""

    class Model(_with_trackers(bench)):
        metrics = bench.keras.Model.metrics

    return _train(bench, Model, metrics=None)


@program()
def train_step_that_returns_its_loss(bench: Bench) -> Found:
    class Model(bench.keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            _step(self, loss, tape)
            return {"own_loss": loss}

    return _train(bench, Model, even_batches(_binary()), metrics=None)


@program(says="divide by the")
def train_step_that_divides_its_loss_itself(bench: Bench) -> Found:
    """The loss of a loop of one's own, by the global batch, in the logs under each name."""

    class Model(bench.keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                each = tf.reduce_mean(tf.square(self(x, training=True) - y), axis=-1)
                loss = tf.nn.compute_average_loss(each, global_batch_size=12)
            _step(self, loss, tape)
            return {"loss": loss, "own_loss": loss}

    return _train(bench, Model, even_batches(_binary()), metrics=None)


@program(says="divide by the", differs=("",))
def train_step_whose_loss_nothing_divides(bench: Bench) -> Found:
    class Model(bench.keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            _step(self, loss, tape)
            return {"own_loss": loss}

    return _train(bench, Model, even_batches(_binary()), metrics=None)


@program()
def train_step_that_returns_a_number_for_each_row(bench: Bench) -> Found:
    class Model(bench.keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=y_pred)
            _step(self, loss, tape)
            return {"loss": loss, "each": y_pred[:, 0]}

    return _train(bench, Model, metrics=None)


@program()
def test_step_of_the_guide(bench: Bench) -> Found:
    class Model(bench.keras.Model):
        def test_step(self, data: Any) -> Any:
            x, y = data
            y_pred = self(x, training=False)
            loss = self.compute_loss(y=y, y_pred=y_pred)
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, y_pred)
            return {m.name: m.result() for m in self.metrics}

    return _train(bench, Model)


@program()
def predict_step_with_two_results(bench: Bench) -> Found:
    class Model(bench.keras.Model):
        def predict_step(self, data: Any) -> Any:
            x = data[0] if isinstance(data, tuple) else data
            return {"plain": self(x, training=False), "twice": 2.0 * self(x, training=False)}

    return _train(bench, Model, predicts=True)


@program()
def counter_in_a_train_step(bench: Bench) -> Found:
    """A counter by assign_add counts a step once, also where a replica has no row."""

    class Model(bench.keras.Model):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.steps = self.add_weight(
                name="steps", shape=(), initializer="zeros", trainable=False
            )

        def train_step(self, data: Any) -> Any:
            self.steps.assign_add(1.0)
            return super().train_step(data)

    return _train(bench, Model)


@program()
def counter_in_a_call(bench: Bench) -> Found:
    class Counter(bench.layers.Layer):
        def build(self, shape: Any) -> None:
            self.calls = self.add_weight(
                name="calls", shape=(), initializer="zeros", trainable=False
            )
            super().build(shape)

        def call(self, x: Any, training: bool = False) -> Any:
            if training:
                self.calls.assign_add(1.0)
            return x

    return bench.train(
        lambda: bench.sequential(numbers(), [Counter(), bench.layers.Dense(1)]),
        (numbers(), sizes()),
    )


# Random numbers in the code of a replica.


def _all_draw_others(found: list[Found]) -> str:
    """Returns what is wrong with the numbers that replicas have drawn: [steps, replicas, 3]."""
    drawn = np.asarray(found[0]["drawn"])
    rows = {tuple(row) for row in drawn.reshape(-1, drawn.shape[-1])}
    problems = []
    if len(rows) != drawn.shape[0] * drawn.shape[1]:
        problems.append(f"replicas or steps drew the same numbers: {drawn.tolist()}")
    problems += [
        f"worker {number} has another gathered result"
        for number, worker in enumerate(found)
        if not np.array_equal(worker["drawn"], drawn)
    ]
    if not np.array_equal(found[0]["again"], drawn):
        problems.append(f"drawn {drawn.tolist()}, and again {found[0]['again'].tolist()}")
    return "\n".join(problems)


@program(holds=_all_draw_others)
def random_numbers_of_replicas(bench: Bench) -> Found:
    """Each replica draws its own numbers by tf.random, as in a VAE, and the same in each run."""

    def drawn() -> Any:
        bench.keras.utils.set_random_seed(3)
        strategy = bench.strategy or tf.distribute.get_strategy()

        @tf.function
        def step() -> Any:
            return strategy.run(lambda: tf.random.normal([1, 3]))

        return np.stack([np.asarray(strategy.gather(step(), axis=0)) for _ in range(2)])

    return {"drawn": drawn(), "again": drawn()}


# Two networks.


@program(KERAS_3)
def gan_with_two_optimizers(bench: Bench) -> Found:
    """The form of the guide's GAN, with given numbers in place of random ones."""

    class Gan(bench.keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.discriminator = bench.keras.Sequential(
                [bench.keras.Input([4]), bench.layers.Dense(1)]
            )
            self.generator = bench.keras.Sequential([bench.keras.Input([2]), bench.layers.Dense(4)])
            if bench.is_keras_3:
                self.built = True  # As in the guide: it has no call.
            self.d_tracker = bench.metrics.Mean(name="d_loss")
            self.g_tracker = bench.metrics.Mean(name="g_loss")

        @property
        def metrics(self) -> Any:
            return [self.d_tracker, self.g_tracker]

        def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any, **more: Any) -> None:
            super().compile(**more)
            self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
            self.loss_fn = loss_fn

        def train_step(self, data: Any) -> Any:
            real, noise = data
            made = tf.concat([self.generator(noise), real], axis=0)
            truth = tf.concat([tf.ones_like(noise[:, :1]), tf.zeros_like(noise[:, :1])], axis=0)
            with tf.GradientTape() as tape:
                d_loss = self.loss_fn(truth, self.discriminator(made))
            weights = self.discriminator.trainable_variables
            self.d_optimizer.apply_gradients(
                zip(tape.gradient(d_loss, weights), weights, strict=True)
            )
            with tf.GradientTape() as tape:
                guess = self.discriminator(self.generator(noise))
                g_loss = self.loss_fn(tf.zeros_like(noise[:, :1]), guess)
            weights = self.generator.trainable_variables
            self.g_optimizer.apply_gradients(
                zip(tape.gradient(g_loss, weights), weights, strict=True)
            )
            self.d_tracker.update_state(d_loss)
            self.g_tracker.update_state(g_loss)
            return {"d_loss": self.d_tracker.result(), "g_loss": self.g_tracker.result()}

    return _train_gan(bench, Gan)


def _train_gan(bench: Bench, kind: Any) -> Found:
    with bench.scope():
        model = kind()
        model.compile(
            bench.optimizers.SGD(0.1),
            bench.optimizers.SGD(0.2),
            bench.losses.BinaryCrossentropy(from_logits=True),
            run_eagerly=bench.strategy is None,
        )
    data = tf.data.Dataset.from_tensor_slices((numbers(), numbers(2))).batch(7)
    history = model.fit(data, epochs=2, verbose=0).history
    parts = [model.discriminator, model.generator]
    found = {f"history {name}": value for name, value in history.items()}
    for number, part in enumerate(parts):
        found |= {f"{name} of {number}": value for name, value in weights_of(part).items()}
    return found
