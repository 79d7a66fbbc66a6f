"""A pipelined model gives the numbers of the same model on one device: outputs, losses, weights."""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

from tfdist.pipeline import (
    Block,
    Options,
    PipelinedExecution,
    training_model,
)

MICRO_BATCH = 4
ITERATIONS = 2
CALLS = 2
DECIMALS = 6


@dataclass
class Case:
    """A model with its loss, and what trains it."""

    model: Any
    weights: Callable[[], Sequence[Any]]
    optimizer: Any = field(default_factory=lambda: tf_keras.optimizers.SGD(0.1))
    kind: str = "numbers"
    num_stages: int = 2


def samples(kind: str, count: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(7)
    labels = rng.integers(0, 3, count)
    if kind == "images":
        return rng.normal(size=(count, 8, 8, 1)).astype("float32"), labels
    if kind == "words":
        return rng.integers(0, 9, (count, 5)), rng.integers(0, 9, (count, 5))
    if kind == "several":
        left, right = rng.normal(size=(2, count, 6)).astype("float32")
        return {"left": left, "right": right}, [labels, rng.integers(0, 2, count)]
    return rng.normal(size=(count, 6)).astype("float32"), labels


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def seeded(seed: int, library: Any = tf_keras) -> Any:
    return library.initializers.GlorotUniform(seed=seed)


def dense(units: int, seed: int, library: Any = tf_keras, **more: Any) -> Any:
    return library.layers.Dense(units, kernel_initializer=seeded(seed, library), **more)


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.cast(logits, tf.float32))
    return tf.reduce_mean(losses)


def weights_of(layers: Iterable[Any]) -> list[Any]:
    return [weight for layer in layers for weight in getattr(layer, "weights", [])]


def layered(
    *stages: Sequence[Callable[..., Any]],
    with_training: bool = False,
    variables: Sequence[tf.Variable] = (),
    **more: Any,
) -> Case:
    """A model of stages, each a list of what is called one after the other; then the loss.

    The variables are those that no layer has.
    """
    more_given = {"training": True} if with_training else {}

    def model(x: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        for number, layers in enumerate(stages):
            with Block(f"B{number + 1}"):
                for layer in layers:
                    x = layer(x, **(more_given if hasattr(layer, "weights") else {}))
        with Block(f"B{len(stages)}"):
            return x, cross_entropy(labels, x)

    def weights() -> list[Any]:
        return [*variables, *weights_of(layer for layers in stages for layer in layers)]

    return Case(model, weights, num_stages=len(stages), **more)


def mlp() -> Case:
    return layered(
        [dense(8, 1, activation="relu")], [dense(7, 2, activation="tanh")], [dense(3, 3)]
    )


def perceptron(optimizer: Any) -> Case:
    return layered([dense(8, 1, activation="relu")], [dense(3, 2)], optimizer=optimizer)


def cnn() -> Case:
    conv = tf_keras.layers.Conv2D(4, 3, activation="relu", kernel_initializer=seeded(1))
    return layered(
        [conv, tf_keras.layers.MaxPool2D()],
        [tf_keras.layers.Flatten(), dense(3, 2)],
        kind="images",
        optimizer=tf_keras.optimizers.Adam(0.01),
    )


def tied_embedding() -> Case:
    """The embedding of the first stage is the last one's decoder: a sparse and a dense gradient."""
    table, inner = tf.Variable(normal(1, 9, 6)), tf.Variable(normal(2, 6, 6))

    def model(words: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with Block("B1"):
            x = tf.nn.embedding_lookup(table, words)
        with Block("B2"):
            x = tf.tanh(tf.einsum("bsi,ij->bsj", x, inner))
        with Block("B3"):
            logits = tf.einsum("bsi,vi->bsv", x, table)
            return logits, cross_entropy(targets, logits)

    optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
    return Case(model, lambda: [table, inner], optimizer, kind="words", num_stages=3)


def embedding() -> Case:
    """An embedding alone: rows that no micro-batch has keep their momentum's decay out."""
    table, out = tf.Variable(normal(1, 9, 3)), tf.Variable(normal(2, 3, 9))

    def model(words: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with Block("B1"):
            x = tf.nn.embedding_lookup(table, words)
        with Block("B2"):
            logits = tf.einsum("bsi,iv->bsv", x, out)
            return logits, cross_entropy(targets, logits)

    # It treats rows without a gradient otherwise than rows whose gradient is zero.
    optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
    return Case(model, lambda: [table, out], optimizer, kind="words")


def dropout(library: Any) -> Case:
    drop = [library.layers.Dropout(0.4, seed=seed) for seed in (1, 2)]
    return layered(
        [dense(8, 1, library), drop[0]],
        [dense(8, 2, library), drop[1], dense(3, 3, library)],
        with_training=True,
        optimizer=library.optimizers.Adam(0.01),
    )


def functional_dropout() -> Case:
    return layered(
        [dense(8, 1), lambda x: tf.nn.dropout(x, 0.4, seed=3)],
        [dense(8, 2), lambda x: tf.nn.dropout(x, 0.4, seed=4), dense(3, 3)],
    )


def batch_norm(library: Any) -> Case:
    norm = [library.layers.BatchNormalization(momentum=0.7) for _ in range(2)]
    return layered(
        [dense(8, 1, library), norm[0]],
        [dense(8, 2, library), norm[1], dense(3, 3, library)],
        with_training=True,
        optimizer=library.optimizers.SGD(0.1, momentum=0.9),
    )


def skipping() -> Case:
    """The third stage uses the first one's output as well, and the second one does not."""
    layers = [dense(8, 1), dense(8, 2), dense(3, 3)]

    def model(x: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with Block("B1"):
            first = layers[0](x)
        with Block("B2"):
            second = layers[1](tf.nn.relu(first))
        with Block("B3"):
            logits = layers[2](second + first)
            return logits, cross_entropy(labels, logits) + 0.1 * tf.reduce_mean(x * x)

    return Case(model, lambda: weights_of(layers), num_stages=3)


def several() -> Case:
    """Inputs in a dict and a list, outputs in a dict, one of them of the first stage."""
    layers = [dense(8, 1), dense(3, 2), dense(2, 3)]

    def model(inputs: Any, labels: Any) -> Any:
        with Block("B1"):
            x = layers[0](inputs["left"] - inputs["right"])
            picked = tf.argmax(x, 1)
        with Block("B2"):
            rows = tf.gather(tf.one_hot(tf.range(8), 8), picked)  # Integers between two stages.
            three, two = layers[1](x * rows), layers[2](x)
            loss = cross_entropy(labels[0], three) + cross_entropy(labels[1], two)
        return {"picked": picked, "logits": (three, two)}, loss

    return Case(model, lambda: weights_of(layers), kind="several")


def unused() -> Case:
    """A weight that the loss does not depend on, and one that is not trained."""
    used, other = tf.Variable(normal(1, 6, 3)), tf.Variable(normal(2, 6, 3))
    frozen = tf.Variable(normal(3, 3, 3), trainable=False)

    def model(x: tf.Tensor, labels: tf.Tensor) -> Any:
        with Block("B1"):
            returned = x @ other
            logits = x @ used
        with Block("B2"):
            logits = logits @ frozen
            return returned, logits, cross_entropy(labels, logits)

    optimizer = tf_keras.optimizers.AdamW(0.01, weight_decay=0.1)
    return Case(model, lambda: [used, other, frozen], optimizer)


@tf.custom_gradient
def clipped_backwards(x: tf.Tensor) -> Any:
    return x * x, lambda gradient: tf.clip_by_value(gradient, -0.01, 0.01)


def custom_gradients() -> Case:
    return layered(
        [dense(8, 1), tf.nn.swish, clipped_backwards],
        [dense(8, 2), clipped_backwards, tf.nn.silu, dense(3, 3)],
    )


def looped(weight: tf.Variable) -> Callable[[tf.Tensor], tf.Tensor]:
    def run(x: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, value: tf.Tensor) -> Any:
            return i + 1, tf.tanh(value @ weight)

        return tf.while_loop(lambda i, _: i < 3, body, (tf.constant(0), x))[1]

    return run


def branched(weight: tf.Variable) -> Callable[[tf.Tensor], tf.Tensor]:
    def run(x: tf.Tensor) -> tf.Tensor:
        return tf.cond(tf.reduce_sum(x) > 0, lambda: x @ weight, lambda: -x)

    return run


def control_flow() -> Case:
    loop, branch = tf.Variable(normal(1, 6, 6)), tf.Variable(normal(2, 6, 6))
    return layered(
        [looped(loop), branched(branch)],
        [branched(branch), looped(loop), dense(3, 1)],
        variables=[loop, branch],
    )


def recurrent() -> Case:
    def lstm(seed: int, **more: Any) -> Any:
        return tf_keras.layers.LSTM(
            5, kernel_initializer=seeded(seed), recurrent_initializer=seeded(seed + 1), **more
        )

    return layered(
        [lambda x: x[:, :3, None], lstm(1, return_sequences=True)],
        [lambda x: x[:, -1], dense(3, 5)],
    )


def nested_function() -> Case:
    weight, table = tf.Variable(normal(1, 6, 6)), tf.Variable(normal(2, 6), trainable=False)

    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(x @ weight) + table

    return layered([inner], [inner, dense(3, 1)], variables=[weight, table])


def mixed(policy: str) -> Case:
    return layered(
        [dense(8, 1, dtype=policy), tf_keras.layers.Activation("relu", dtype=policy)],
        [dense(3, 2, dtype=policy)],
    )


def captured_constant() -> Case:
    large = tf.constant(normal(1, 6, 6))
    return layered([lambda x: x @ large, dense(8, 1)], [lambda x: x @ tf.eye(8), dense(3, 2)])


MODELS: dict[str, Callable[[], Case]] = {
    "mlp": mlp,
    "cnn": cnn,
    "tied embedding": tied_embedding,
    "embedding": embedding,
    "dropout, tf_keras": functools.partial(dropout, tf_keras),
    "dropout, Keras 3": functools.partial(dropout, keras),
    "dropout, tf.nn": functional_dropout,
    "batch norm, tf_keras": functools.partial(batch_norm, tf_keras),
    "batch norm, Keras 3": functools.partial(batch_norm, keras),
    "skip connection": skipping,
    "several inputs": several,
    "unused weight": unused,
    "custom gradient": custom_gradients,
    "loop and branch": control_flow,
    "LSTM": recurrent,
    "nested function": nested_function,
    "captured constant": captured_constant,
    "float16": lambda: mixed("mixed_float16"),
    "bfloat16": lambda: mixed("mixed_bfloat16"),
}
# The schedules of those in which they have most to do with the numbers. With recomputation they all
# have the interleaved one.
OTHER_SCHEDULES = {
    "mlp": ("interleaved", "sequential"),
    "tied embedding": ("grouped",),
    "dropout, tf_keras": ("sequential",),
    "batch norm, tf_keras": ("sequential",),
    "skip connection": ("interleaved", "grouped"),
}
# Those in which something is not computed again, or is made of operations of another kind.
RECOMPUTED = (
    "tied embedding",
    "dropout, tf_keras",
    "dropout, Keras 3",
    "batch norm, tf_keras",
    "skip connection",
    "custom gradient",
    "loop and branch",
    "nested function",
    "float16",
)


def train_plainly(
    case: Case, arguments: tuple[Any, ...], accumulation: int, reduction: str = "mean"
) -> list[Any]:
    """Trains on one device, micro-batch after micro-batch; returns what each forward pass gave."""
    watched: list[tf.Variable] = []

    @tf.function
    def forward_and_back(*args: Any) -> Any:
        with tf.GradientTape() as tape:
            returned = case.model(*args)
        watched[:] = tape.watched_variables()
        return returned, tape.gradient(returned[-1], watched)

    given: list[Any] = []
    arrived: list[Any] = []  # The gradients of each micro-batch since the last update.
    count = len(tf.nest.flatten(arguments)[0]) // MICRO_BATCH
    for number in range(count):
        part = slice(number * MICRO_BATCH, (number + 1) * MICRO_BATCH)
        cut = tf.nest.map_structure(lambda one, part=part: tf.constant(one[part]), arguments)
        returned, gradients = forward_and_back(*cut)
        given.append(tf.nest.map_structure(lambda one: one.numpy(), returned))
        arrived.append(gradients)
        if (number + 1) % accumulation == 0:
            scale = 1 / accumulation if reduction == "mean" else 1.0
            of_variables = zip(*arrived, strict=True)
            pairs = [
                (total(parts, scale), variable)
                for parts, variable in zip(of_variables, watched, strict=True)
                if parts[0] is not None
            ]
            apply(case, pairs)
            arrived.clear()
    return given


def apply(case: Case, pairs: list[Any]) -> None:
    if isinstance(case.optimizer, keras.optimizers.Optimizer):  # It knows Keras's variables only.
        known = {id(one.value): one for one in case.weights() if hasattr(one, "value")}
        pairs = [(gradient, known[id(variable)]) for gradient, variable in pairs]
    case.optimizer.apply_gradients(pairs)


def total(parts: Sequence[Any], scale: float) -> Any:
    """Adds gradients up and scales the sum; slices stay slices if all are."""
    if all(isinstance(one, tf.IndexedSlices) for one in parts):
        values, indices = zip(*((one.values, one.indices) for one in parts), strict=True)
        return tf.IndexedSlices(
            tf.concat(values, 0) * scale, tf.concat(indices, 0), parts[0].dense_shape
        )
    return tf.add_n([tf.convert_to_tensor(one) for one in parts]) * scale


def train_in_pipeline(
    case: Case, arguments: tuple[Any, ...], options: Options, schedule: Any
) -> list[Any]:
    names = [f"B{stage + 1}" for stage in range(case.num_stages)]
    strategy = PipelinedExecution(*names, schedule=schedule)
    options = options.output_mode("all").show_progress_bar(False).execution_strategy(strategy)
    train = training_model(case.model, options, case.optimizer)
    size = len(tf.nest.flatten(arguments)[0]) // CALLS
    given: list[Any] = []
    for call in range(CALLS):
        part = slice(call * size, (call + 1) * size)
        returned = train(*tf.nest.map_structure(lambda one, part=part: one[part], arguments))
        flat = [
            one.numpy().reshape(
                [-1, MICRO_BATCH, *one.shape[1:]]
                if one.shape.rank > 1 or one.dtype.is_integer
                else [-1]
            )
            for one in tf.nest.flatten(returned)
        ]
        for values in zip(*flat, strict=True):
            given.append(tf.nest.pack_sequence_as(returned, values))
    return given


@functools.cache
def numbers_of_one_device(
    make: Callable[[], Case], of_update: int, reduction: str
) -> tuple[list[Any], list[np.ndarray]]:
    """Returns what each forward pass gives on one device, and the weights at the end."""
    case = make()
    arguments = samples(case.kind, MICRO_BATCH * of_update * ITERATIONS * CALLS)
    given = train_plainly(case, arguments, of_update, reduction)
    return given, [weight.numpy() for weight in case.weights()]


def assert_same(
    make: Callable[[], Case],
    schedule: str = "interleaved",
    *,
    options: Callable[[Options], Options] = lambda options: options,
    reduction: str = "mean",
    replicas: int = 1,
    decimals: int = DECIMALS,
) -> None:
    piped = make()
    accumulation = 2 * piped.num_stages - 1
    of_update = accumulation * replicas
    arguments = samples(piped.kind, MICRO_BATCH * of_update * ITERATIONS * CALLS)
    expected, weights = numbers_of_one_device(make, of_update, reduction)
    chosen = options(
        Options()
        .device_iterations(ITERATIONS)
        .gradient_accumulation(accumulation)
        .replication_factor(replicas)
    )
    found = train_in_pipeline(piped, arguments, chosen, schedule)
    assert len(found) == len(expected) == of_update * ITERATIONS * CALLS
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        tf.nest.map_structure(
            lambda a, b, number=number: np.testing.assert_allclose(
                a.astype("float64"), b.astype("float64"), 0, 10**-decimals, err_msg=f"{number}"
            ),
            one,
            other,
        )
    for one, value in zip(piped.weights(), weights, strict=True):
        np.testing.assert_allclose(one.numpy(), value, 0, 10**-decimals, err_msg=one.name)


@pytest.mark.parametrize(
    ("name", "schedule"),
    [(name, schedule) for name, schedules in OTHER_SCHEDULES.items() for schedule in schedules],
)
def test_numbers_are_those_of_one_device_in_every_schedule(name: str, schedule: str) -> None:
    assert_same(MODELS[name], schedule)


# The layers of Keras 3 are in the tests of recomputation and of two replicas.
@pytest.mark.parametrize(
    "name", [name for name in MODELS if name not in OTHER_SCHEDULES and "Keras 3" not in name]
)
def test_numbers_are_those_of_one_device(name: str) -> None:
    # float16 has 3 decimals, and sums come in another order.
    decimals = {"float16": 3, "bfloat16": 2}.get(name, DECIMALS)
    assert_same(MODELS[name], decimals=decimals)


@pytest.mark.parametrize("name", RECOMPUTED)
def test_recomputed_activations_give_the_same_numbers(name: str) -> None:
    decimals = {"float16": 3, "bfloat16": 2}.get(name, DECIMALS)
    assert_same(MODELS[name], options=lambda o: o.recomputation(True), decimals=decimals)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "tf_keras Adam, clipped": lambda: tf_keras.optimizers.Adam(0.01, global_clipnorm=0.1),
    "tf_keras AdamW, scheduled": lambda: tf_keras.optimizers.AdamW(
        tf_keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5), weight_decay=0.1
    ),
    "tf_keras legacy Adam": lambda: tf_keras.optimizers.legacy.Adam(0.01),
    "v1 Adam": lambda: v1.train.AdamOptimizer(0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_with_state_gives_the_same_numbers(name: str) -> None:
    assert_same(lambda: perceptron(OPTIMIZERS[name]()))


def test_an_optimizer_with_state_on_the_host_gives_the_same_numbers() -> None:
    name = "tf_keras AdamW, scheduled"
    assert_same(lambda: perceptron(OPTIMIZERS[name]()), options=lambda o: o.optimizer_state("host"))


def keras3_mlp() -> Case:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    return layered(
        [dense(8, 1, keras), tf.nn.relu],
        [dense(3, 2, keras)],
        optimizer=keras.optimizers.AdamW(schedule, weight_decay=0.1, global_clipnorm=0.1),
    )


@pytest.mark.parametrize("state", ["device", "host"])
def test_an_optimizer_of_keras_3_gives_the_same_numbers(state: str) -> None:
    assert_same(keras3_mlp, options=lambda options: options.optimizer_state(state))


def test_gradients_may_be_added_up_in_place_of_averaged() -> None:
    assert_same(mlp, options=lambda o: o.accumulation_reduction("sum"), reduction="sum")


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("tied embedding", "interleaved"),
        ("batch norm, tf_keras", "sequential"),
        ("batch norm, Keras 3", "grouped"),
    ],
)
def test_two_replicas_give_the_numbers_of_one_with_twice_as_many_micro_batches(
    name: str, schedule: str
) -> None:
    assert_same(MODELS[name], schedule, replicas=2)
