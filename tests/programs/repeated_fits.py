"""Many short trainings of ten kinds in one process, each compared with the first of its kind.

It looks for what shows once in many runs: other numbers, a training or a process that does not end.
Run it by hand, beside busy processes and with more trainings than the suite has time for:

    python tests/programs/repeated_fits.py --replicas 2 --fits 200 --busy 4
    tfdist run --num-instances 2 -- tests/programs/repeated_fits.py --fits 200 --busy 4

A training that lasts longer than `--limit` seconds ends the process with the stacks of its threads.
"""

from __future__ import annotations

import argparse
import atexit
import faulthandler
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

ROWS, COLUMNS = 22, 4  # The last batch has fewer rows.
Kind = Callable[[Any], tuple[Any, Any]]
KINDS: dict[str, Kind] = {}


def kind(function: Kind) -> Kind:
    KINDS[function.__name__] = function
    return function


def _numbers(*shape: int) -> Any:
    return np.random.RandomState(0).uniform(-1, 1, shape).astype("float32")


def _rows() -> tuple[Any, Any]:
    x = _numbers(ROWS, COLUMNS)
    return x, x.sum(axis=1, keepdims=True)


def _dataset(batch: int = 8) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(_rows()).batch(batch)


def _compiled(layers: list[Any], optimizer: Any = "sgd", **options: Any) -> Any:
    import keras

    model = keras.Sequential(layers)
    model.compile(optimizer, **{"loss": "mse", "metrics": ["mae"], **options})
    return model


def _fitted(model: Any, x: Any, y: Any = None, **options: Any) -> tuple[Any, Any]:
    """Returns the weights and the numbers of a fit."""
    options = {"epochs": 2, "verbose": 0, **options}
    if y is not None:
        options.setdefault("batch_size", 8)
    history = model.fit(x, y, **options).history
    return model.get_weights(), list(history.values())


@kind
def arrays(strategy: Any) -> tuple[Any, Any]:
    import keras

    with strategy.scope():
        model = _compiled([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)], "adam")
    return _fitted(model, *_rows(), validation_data=_rows())


@kind
def embedding_with_accumulation_and_average(strategy: Any) -> tuple[Any, Any]:
    import keras

    with strategy.scope():
        optimizer = keras.optimizers.Adam(
            0.1, gradient_accumulation_steps=2, clipnorm=0.5, use_ema=True, ema_momentum=0.9
        )
        layers = [keras.layers.Embedding(10, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
        model = _compiled(layers, optimizer)
    words = np.random.RandomState(0).randint(0, 10, (ROWS, 3))
    return _fitted(model, words, _rows()[1])


@kind
def convolution_with_norm(strategy: Any) -> tuple[Any, Any]:
    import keras

    with strategy.scope():
        model = _compiled(
            [
                keras.layers.Conv2D(4, 3),
                keras.layers.BatchNormalization(synchronized=True),
                keras.layers.GlobalAveragePooling2D(),
                keras.layers.Dense(1),
            ]
        )
    return _fitted(model, _numbers(24, 6, 6, 3), _numbers(24, 1))


@kind
def dropout(strategy: Any) -> tuple[Any, Any]:
    import keras

    with strategy.scope():
        model = _compiled([keras.layers.Dense(8), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    return _fitted(model, _dataset())


@kind
def generator(strategy: Any) -> tuple[Any, Any]:
    import keras
    import tensorflow as tf

    def rows() -> Iterator[Any]:
        yield from zip(*_rows(), strict=True)

    signature = (tf.TensorSpec([COLUMNS], tf.float32), tf.TensorSpec([1], tf.float32))
    dataset = tf.data.Dataset.from_generator(rows, output_signature=signature).batch(8)
    with strategy.scope():
        model = _compiled([keras.layers.Dense(1)])
    return _fitted(model, dataset)


@kind
def recurrence(strategy: Any) -> tuple[Any, Any]:
    import keras

    with strategy.scope():
        model = _compiled([keras.layers.GRU(4), keras.layers.Dense(1)], "rmsprop")
    return _fitted(model, _numbers(24, 5, 3), _numbers(24, 1), epochs=1)


@kind
def several_steps_at_a_time(strategy: Any) -> tuple[Any, Any]:
    import keras

    with strategy.scope():
        model = _compiled([keras.layers.Dense(1)], steps_per_execution=2)
    return _fitted(model, _dataset(4).repeat(), steps_per_epoch=4)


@kind
def two_outputs(strategy: Any) -> tuple[Any, Any]:
    import keras

    with strategy.scope():
        inputs = keras.Input([COLUMNS])
        hidden = keras.layers.Dense(8, "tanh")(inputs)
        outputs = {
            "number": keras.layers.Dense(1, name="number")(hidden),
            "kind": keras.layers.Dense(3, "softmax", name="kind")(hidden),
        }
        model = keras.Model(inputs, outputs)
        model.compile(
            keras.optimizers.SGD(0.1, global_clipnorm=1.0),
            {"number": "mse", "kind": "sparse_categorical_crossentropy"},
            metrics={"kind": ["accuracy"]},
        )
    x, number = _rows()
    y = {"number": number, "kind": np.arange(ROWS) % 3}
    weights, logs = _fitted(model, x, y)
    return [*weights, *model.predict(x, verbose=0).values()], [
        logs,
        model.evaluate(x, y, verbose=0),
    ]


@kind
def shuffled(strategy: Any) -> tuple[Any, Any]:
    import keras

    dataset = _dataset(1).unbatch().cache().shuffle(ROWS, seed=3).batch(8)
    with strategy.scope():
        model = _compiled([keras.Input([COLUMNS]), keras.layers.Dense(1)], "adam")
    return _fitted(model, dataset)


@kind
def own_loop(strategy: Any) -> tuple[Any, Any]:
    import keras
    import tensorflow as tf

    with strategy.scope():
        model = keras.Sequential([keras.Input([COLUMNS]), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.1)
        seen = keras.metrics.Mean()

    @tf.function
    def step(rows: Any) -> Any:
        x, y = rows
        with tf.GradientTape() as tape:
            errors = tf.reduce_sum((model(x, training=True) - y) ** 2, axis=1)
            loss = tf.nn.compute_average_loss(errors, global_batch_size=8)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        seen.update_state(errors)
        return loss

    losses = [
        strategy.reduce("SUM", strategy.run(step, args=(rows,)), axis=None).numpy()
        for rows in strategy.experimental_distribute_dataset(_dataset())
    ]
    return [weight.numpy() for weight in model.weights], [*losses, float(seen.result())]


def repeat(
    num_replicas: int,
    fits: int,
    limit_s: float,
    names: Sequence[str] = (),
    *,
    minutes: float = math.inf,
    reports: bool = False,
) -> dict[str, Any]:
    """Trains the kinds in turn, `fits` times, and compares.

    Args:
      num_replicas: The number of replicas of each worker.
      fits: The number of trainings.
      limit_s: The longest time of a training, after which the process ends.
      names: The kinds; empty is all.
      minutes: In one process without others: the time after which no training begins.
      reports: Whether a line is printed for each training.

    Returns:
      The number of trainings, the number and kind of those that differed from the first of their
      kind, the longest time of one in seconds, and the bits of each kind.
    """
    import keras

    from tfdist.strategies import strategy_for_run

    strategy = strategy_for_run(num_replicas=num_replicas)
    strategy.scope()  # Meets the other workers.
    if strategy.num_replicas_in_sync > num_replicas:  # All workers make as many trainings.
        minutes = math.inf
    first: dict[str, bytes] = {}
    differing: list[tuple[int, str]] = []
    seconds: list[float] = []
    begun = time.monotonic()
    while len(seconds) < fits and time.monotonic() < begun + 60 * minutes:
        number, kinds = len(seconds), names or list(KINDS)
        name = kinds[number % len(kinds)]
        keras.utils.set_random_seed(1)
        faulthandler.dump_traceback_later(limit_s, exit=True)
        start = time.monotonic()
        weights, logs = KINDS[name](strategy)
        seconds.append(time.monotonic() - start)
        faulthandler.cancel_dump_traceback_later()
        found = b"".join(np.asarray(value).tobytes() for value in weights) + repr(logs).encode()
        is_same = first.setdefault(name, found) == found
        if not is_same:
            differing.append((number, name))
        keras.backend.clear_session()
        if reports:
            print(f"{number} {name} {seconds[-1]:.1f} s{'' if is_same else ' DIFFERS'}", flush=True)
    bits = {name: found.hex() for name, found in first.items()}
    return {
        "fits": len(seconds),
        "differing": differing,
        "longest_s": max(seconds),
        "bits": bits,
    }


def _compute() -> None:
    while True:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--fits", type=int, default=200)
    parser.add_argument("--limit", type=float, default=120, help="seconds of one training")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of one process alone")
    parser.add_argument("--busy", type=int, default=0, help="the number of busy processes")
    chosen = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    busy = [context.Process(target=_compute, daemon=True) for _ in range(chosen.busy)]
    for process in busy:
        process.start()
    found = repeat(chosen.replicas, chosen.fits, chosen.limit, minutes=chosen.minutes, reports=True)
    for process in busy:
        process.kill()
    differing = found["differing"]
    print(f"{found['fits']} trainings, longest {found['longest_s']:.1f} s, differing: {differing}")
    begun = time.monotonic()
    faulthandler.dump_traceback_later(chosen.limit, exit=True)
    atexit.register(lambda: print(f"ended after {time.monotonic() - begun:.1f} s", flush=True))
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
