"""Small programs of TensorFlow 2 with loops of their own, of which one process runs all in turn.

Each takes the strategy and returns a dict of arrays. Names that begin with "own_" are of this
worker or for one number of replicas; everything else is equal for one process with the global batch
and for all workers.
"""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.eager.own_loop import LOOP

Case = Callable[[Any], dict[str, Any]]
CASES: dict[str, Case] = {}

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN
ROWS = 8  # Of a global batch.
_SYNCHRONIZATIONS = tf.VariableSynchronization
_AGGREGATIONS = tf.VariableAggregation


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def run_all(num_replicas: int = 1, names: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Runs the programs in turn; one that fails returns its error as "error"."""
    from tfdist.strategies import strategy_for_run

    strategy = strategy_for_run(num_replicas=num_replicas)
    strategy.scope()  # Meets the other workers.
    results: dict[str, dict[str, Any]] = {}
    for name in names or CASES:
        try:
            found = CASES[name](strategy)
        except Exception:  # A test shows it.
            found = {"error": traceback.format_exc()}
        results[name] = {key: _plain(value) for key, value in found.items()}
    return results


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else np.asarray(value).tolist()


def numbers(*shape: int) -> Any:
    return np.random.RandomState(0).uniform(-1, 1, shape).astype("float32")


def replica_number() -> tf.Tensor:
    context = tf.distribute.get_replica_context()
    return tf.cast(context.replica_id_in_sync_group, tf.float32)


def local(strategy: Any, value: Any) -> list[Any]:
    return [v.numpy() for v in strategy.experimental_local_results(value)]


def batches(number: int = 3, columns: int = 2) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(numbers(number * ROWS, columns)).batch(ROWS)


# Values of replicas.


@case
def reduce(strategy: Any) -> dict[str, Any]:
    count = strategy.num_replicas_in_sync

    @tf.function
    def each() -> Any:
        return strategy.run(lambda: [replica_number() + 1.0, tf.fill([3], replica_number())])

    found: dict[str, Any] = {}
    for name, (scalar, vector) in {"function": each(), "eager": each.python_function()}.items():
        found[f"own_{name}_sum"] = strategy.reduce("SUM", scalar, axis=None)
        found[f"own_{name}_mean"] = strategy.reduce(MEAN, scalar, axis=None)
        found[f"own_{name}_axis"] = strategy.reduce("MEAN", vector, axis=0)
        found[f"own_{name}_local"] = local(strategy, scalar)
        found[f"own_{name}_vector"] = strategy.reduce(SUM, vector, axis=None)
    found["own_count"] = count
    return found


@case
def reduce_in_a_loop(strategy: Any) -> dict[str, Any]:
    """Nothing in an iteration waits for its sum, and the last worker is late each time."""
    collectives = strategy.extended.collectives
    is_late = collectives.worker_index == collectives.num_workers - 1 > 0

    def arrive_late(value: Any) -> Any:
        time.sleep(0.1)
        return value

    @tf.function
    def train() -> tuple[tf.Tensor, tf.Tensor]:
        total, last = tf.zeros([]), tf.zeros([])
        for step in tf.range(4):
            value = tf.cast(step, tf.float32)
            if is_late:
                value = tf.ensure_shape(tf.numpy_function(arrive_late, [value], tf.float32), [])
            last = strategy.reduce("MEAN", value, axis=None)
            total += last
        return total, last

    total, last = train()
    return {"total": total, "last": last}


@case
def reduce_an_uneven_axis(strategy: Any) -> dict[str, Any]:
    """The mean of a last batch of 5 rows, of which a replica may have none."""
    rows = tf.data.Dataset.from_tensor_slices(numbers(ROWS + 5)).batch(ROWS)
    means = [
        strategy.reduce("MEAN", batch, axis=0)
        for batch in strategy.experimental_distribute_dataset(rows)
    ]
    sums = [
        strategy.reduce("SUM", batch, axis=0)
        for batch in strategy.experimental_distribute_dataset(rows)
    ]
    return {"means": means, "sums": sums}


@case
def gather(strategy: Any) -> dict[str, Any]:
    def rows() -> tf.Tensor:  # [replica + 1, 2]
        number = replica_number()
        return tf.fill([tf.cast(number, tf.int32) + 1, 2], number)

    rows_of_all = strategy.run(rows)
    columns = strategy.run(lambda: tf.fill([2, 1], replica_number()))
    in_function = tf.function(lambda: strategy.gather(strategy.run(rows), axis=0))
    return {
        "own_rows": strategy.gather(rows_of_all, axis=0),
        "own_columns": strategy.gather(columns, axis=-1),
        "own_in_function": in_function(),
    }


@case
def distributed_values(strategy: Any) -> dict[str, Any]:
    def value(context: Any) -> tf.Tensor:
        assert context.num_replicas_in_sync == strategy.num_replicas_in_sync
        return tf.constant(10.0 + context.replica_id_in_sync_group)

    values = strategy.experimental_distribute_values_from_function(value)
    doubled = strategy.run(lambda x: 2.0 * x, args=(values,))
    return {
        "own_local": local(strategy, values),
        "own_sum": strategy.reduce(SUM, doubled, axis=None),
    }


@case
def replica_context(strategy: Any) -> dict[str, Any]:
    def step() -> dict[str, Any]:
        context = tf.distribute.get_replica_context()
        number = replica_number()

        def merge(given: Any, x: Any, y: Any) -> Any:
            assert tf.distribute.in_cross_replica_context()
            return given.reduce(SUM, x, axis=None) + given.reduce(MEAN, y, axis=None)

        nested = context.all_reduce("SUM", {"a": number, "b": [number + 1.0]})
        rows = tf.fill([tf.cast(number, tf.int32) + 1], number)
        return {
            "sum": context.all_reduce(SUM, number),
            "mean": context.all_reduce(MEAN, number),
            "nested": nested["a"] + nested["b"][0],
            "gathered": context.all_gather(tf.fill([1, 2], number), axis=0),
            "uneven": context.all_gather(rows, axis=0),
            "merged": context.merge_call(merge, args=(number,), kwargs={"y": number}),
        }

    found = {}
    for way, function in {"function": tf.function(strategy.run), "eager": strategy.run}.items():
        for name, value in function(step).items():
            found[f"own_{way}_{name}"] = local(strategy, value)
    return found


@case
def functions_given_to_run(strategy: Any) -> dict[str, Any]:
    """A tf.function that each replica runs: it combines values, and calls another function."""

    @tf.function
    def inner() -> tf.Tensor:
        return replica_number()

    @tf.function
    def step(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.distribute.get_replica_context().all_reduce(SUM, tf.reduce_sum(rows)), inner()

    sums, replicas = [], []
    for batch in strategy.experimental_distribute_dataset(batches()):
        total, replica = strategy.run(step, args=(batch,))
        sums.append(local(strategy, total)[0])
        replicas.append(local(strategy, replica))
    return {"sums": sums, "own_replicas": replicas}


@case
def random_numbers(strategy: Any) -> dict[str, Any]:
    """Draws numbers in replicas, and outside of them, in a program with a seed."""

    @tf.function
    def draw() -> Any:
        return strategy.run(lambda: tf.random.normal([3])), tf.random.normal([2])

    tf.random.set_seed(5)
    each, outside = draw()
    return {"own_numbers": local(strategy, each), "outside": outside}


@case
def cluster_resolver(strategy: Any) -> dict[str, Any]:
    """The chief, as the guides of TensorFlow find it."""
    resolver = strategy.cluster_resolver
    if resolver is None:
        return {"own_chief": True, "own_task": "", "own_workers": 1}
    task_type, task_id = resolver.task_type, resolver.task_id
    jobs = resolver.cluster_spec().as_dict()
    is_first = task_type == "worker" and task_id == 0 and "chief" not in jobs
    return {
        "own_chief": task_type is None or task_type == "chief" or is_first,
        "own_task": f"{task_type} {task_id}",
        "own_workers": resolver.cluster_spec().num_tasks("worker"),
    }


# Gradients.


def _through_sums(strategy: Any, *, second: bool) -> Any:
    """Differentiates the cube of the sum of x * w over all replicas; w is one for all."""
    w = tf.constant(0.5)

    def step(x: tf.Tensor) -> Any:
        context = tf.distribute.get_replica_context()
        with tf.GradientTape() as outer:
            outer.watch(w)
            with tf.GradientTape() as inner:
                inner.watch(w)
                total = context.all_reduce(SUM, tf.reduce_sum(x) * w)
                loss = total**3 / strategy.num_replicas_in_sync
            # The gradient of a replica's own use of w; the sum over replicas is that of w.
            first = context.all_reduce(SUM, inner.gradient(loss, w))
            mean = first / strategy.num_replicas_in_sync
        return outer.gradient(mean, w) if second else first

    dataset = strategy.experimental_distribute_dataset(batches(1, 1))
    gradient = strategy.run(step, args=(next(iter(dataset)),))
    if second:
        return strategy.reduce(SUM, gradient, axis=None)
    return strategy.experimental_local_results(gradient)[0]


@case
def gradients_through_all_reduce(strategy: Any) -> dict[str, Any]:
    return {"first": _through_sums(strategy, second=False)}


@case
def gradients_through_nested_tapes(strategy: Any) -> dict[str, Any]:
    first = tf.function(lambda: _through_sums(strategy, second=True))
    return {"eager": _through_sums(strategy, second=True), "function": first()}


# Input.


def _trained(strategy: Any, loop: Callable[[Any, Any, tf.Variable], Any], dataset: Any) -> Any:
    """Trains w to fit the rows of a dataset with a loop; returns (w, steps)."""
    with strategy.scope():
        w = tf.Variable([1.0, -1.0], aggregation=tf.VariableAggregation.MEAN)

    def step(batch: tf.Tensor) -> tf.Tensor:  # [rows, 2]
        with tf.GradientTape() as tape:
            errors = tf.reduce_sum((batch - w) ** 2, axis=1)  # [rows]
            loss = tf.nn.compute_average_loss(errors, global_batch_size=ROWS)
        context = tf.distribute.get_replica_context()
        gradient = context.all_reduce(SUM, tape.gradient(loss, w))
        w.assign_sub(0.1 * gradient)
        return loss

    before = max(0, LOOP.steps), LOOP.rows
    number = loop(strategy, step, dataset)
    counted = {"counted_steps": LOOP.steps - before[0], "own_counted_rows": LOOP.rows - before[1]}
    return {"w": w, "steps": number, **counted}


def _in_python(strategy: Any, step: Any, dataset: Any) -> int:
    run = tf.function(lambda batch: strategy.run(step, args=(batch,)))
    number = 0
    for batch in dataset:
        run(batch)
        number += 1
    return number


def _eagerly(strategy: Any, step: Any, dataset: Any) -> int:
    number = 0
    for batch in dataset:
        strategy.run(step, args=(batch,))
        number += 1
    return number


def _in_function(strategy: Any, step: Any, dataset: Any) -> Any:
    @tf.function
    def train(data: Any) -> tf.Tensor:
        number = 0
        for batch in data:
            strategy.run(step, args=(batch,))
            number += 1
        return tf.convert_to_tensor(number)

    return train(dataset)


def _as_orbit_does(strategy: Any, step: Any, dataset: Any) -> int:
    """Calls a function of a given number of steps over one iterator."""

    @tf.function
    def train(iterator: Any, number: tf.Tensor) -> None:
        for _ in tf.range(number):
            strategy.run(step, args=(next(iterator),))

    iterator = iter(dataset)
    for number in (2, 1):
        train(iterator, tf.constant(number))
    return 3


def _of_unknown_length(strategy: Any) -> Any:
    rows = tf.data.Dataset.from_tensor_slices(numbers(3 * ROWS - 3, 2)).filter(lambda _: True)
    return strategy.experimental_distribute_dataset(rows.batch(ROWS))


def _of_known_length(strategy: Any) -> Any:
    return strategy.experimental_distribute_dataset(batches())


def _add_loop(name: str, loop: Any, make_dataset: Any) -> None:
    CASES[name] = lambda strategy: _trained(strategy, loop, make_dataset(strategy))


_add_loop("loop_in_python", _in_python, _of_known_length)
_add_loop("loop_in_function", _in_function, _of_known_length)
_add_loop("loop_like_orbit", _as_orbit_does, _of_known_length)
_add_loop("unknown_length_in_python", _in_python, _of_unknown_length)
_add_loop("unknown_length_in_function", _in_function, _of_unknown_length)
_add_loop("unknown_length_in_eager", _eagerly, _of_unknown_length)


@case
def datasets_from_function(strategy: Any) -> dict[str, Any]:
    """Each worker makes its own dataset, of which TensorFlow gives a batch to each replica."""
    count = strategy.num_replicas_in_sync

    def make(context: Any) -> tf.data.Dataset:
        assert context.num_replicas_in_sync == count
        rows = tf.data.Dataset.from_tensor_slices(numbers(3 * ROWS, 2))
        local_batch = context.get_per_replica_batch_size(ROWS)
        # Batch b of replica r has the rows that a global batch gives it.
        return rows.batch(local_batch).shard(context.num_input_pipelines, context.input_pipeline_id)

    dataset = strategy.distribute_datasets_from_function(make)
    if strategy.extended.placement.num_replicas > 1:  # Other rows: only the number is compared.
        trained = _trained(strategy, _in_python, dataset)
        return {name: trained[name] for name in ("steps", "counted_steps")}
    return _trained(strategy, _in_python, dataset)


@case
def datasets_of_other_lengths(strategy: Any) -> dict[str, Any]:
    """Worker 1 has a batch less: all end after the same step."""
    found: dict[str, Any] = {}
    for name, loop in {"python": _in_python, "function": _in_function}.items():

        def make(context: Any) -> tf.data.Dataset:
            number = 4 - 2 * context.input_pipeline_id
            return tf.data.Dataset.from_tensor_slices(numbers(number * 2, 2)).batch(2)

        trained = _trained(strategy, loop, strategy.distribute_datasets_from_function(make))
        found[f"own_{name}_steps"] = trained["steps"]
        found[f"own_{name}_w"] = trained["w"]
    return found


# Variables.


@case
def checkpoint(strategy: Any) -> dict[str, Any]:
    """Saves the values of a trained state, changes them, and restores them."""
    with strategy.scope():
        weight = tf.Variable([1.0, 2.0])
        counter = tf.Variable(
            0, dtype=tf.int64, trainable=False, aggregation=_AGGREGATIONS.ONLY_FIRST_REPLICA
        )
        total = tf.Variable(
            0.0,
            trainable=False,
            synchronization=_SYNCHRONIZATIONS.ON_READ,
            aggregation=_AGGREGATIONS.SUM,
        )
    state = tf.train.Checkpoint(weight=weight, counter=counter, total=total)

    def step(rows: tf.Tensor) -> None:
        counter.assign_add(1)
        total.assign_add(tf.reduce_sum(rows))

    for batch in strategy.experimental_distribute_dataset(batches()):
        strategy.run(step, args=(batch,))
    with tempfile.TemporaryDirectory() as folder:  # Each worker its own, as the chief's is here.
        manager = tf.train.CheckpointManager(state, folder, max_to_keep=1)
        manager.save()
        saved = {name: v.numpy() for name, v in vars(state).items() if hasattr(v, "numpy")}
        for variable in (weight, counter, total):
            variable.assign(tf.zeros_like(variable))
        cleared = total.numpy()
        state.restore(manager.latest_checkpoint).assert_consumed()
        stored = tf.train.load_variable(folder, "total/.ATTRIBUTES/VARIABLE_VALUE")
    restored = {
        f"restored_{name}": getattr(state, name).numpy() for name in ("weight", "counter", "total")
    }
    return {"cleared": cleared, "stored": stored, **restored, "saved": saved["total"]}


VARIABLES = {
    f"{synchronization.name}_{aggregation.name}": (synchronization, aggregation)
    for synchronization in _SYNCHRONIZATIONS
    for aggregation in _AGGREGATIONS
}


@case
def variables(strategy: Any) -> dict[str, Any]:
    """Assigns variables of all kinds, in a function and eagerly, in and outside of replicas."""
    with strategy.scope():
        made = {
            name: tf.Variable(
                1.0, trainable=False, synchronization=synchronization, aggregation=aggregation
            )
            for name, (synchronization, aggregation) in VARIABLES.items()
        }
    found: dict[str, Any] = {f"own_{name}_before": v.numpy() for name, v in made.items()}

    def assign() -> Any:
        for v in made.values():
            v.assign(replica_number() + 2.0)
        return {name: v.read_value() for name, v in made.items()}

    def add() -> Any:
        for v in made.values():
            v.assign_add(replica_number() + 1.0)
            v.assign_sub(0.5)
        return {name: tf.identity(v) for name, v in made.items()}

    steps = {"assign": (tf.function(strategy.run), assign), "add": (strategy.run, add)}
    for step, (call, function) in steps.items():
        read = call(function)
        for name, v in made.items():
            found[f"own_{name}_{step}"] = local(strategy, read[name])
            found[f"own_{name}_{step}_outside"] = v.numpy()
            with strategy.scope():
                found[f"own_{name}_{step}_cross"] = v.read_value()
    for name, v in made.items():
        with strategy.scope():
            v.assign(5.0)
            found[f"{name}_assigned_in_scope"] = v.numpy()
        v.assign(6.0)
        v.assign_add(1.0)
        found[f"{name}_assigned_outside"] = v.numpy()
        found[f"own_{name}_after"] = local(strategy, strategy.run(v.read_value))
    return found


@case
def variable_without_aggregation(strategy: Any) -> dict[str, Any]:
    """A weight that a replica assigns would differ between replicas: it is refused."""
    with strategy.scope():
        v = tf.Variable(1.0, name="own_weight")
    try:
        strategy.run(lambda: v.assign_add(replica_number()))
    except ValueError as error:
        return {"own_refused": str(error)}
    return {"own_refused": ""}
