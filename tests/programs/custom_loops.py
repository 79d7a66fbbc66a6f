"""Graphs and plain sessions of three workers in a strategy's scope, run in turn by one process."""

import os
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies import strategy_for_run


def run_all() -> dict[str, Any]:
    """Builds each graph and runs it; returns what is fetched, by the function's name."""
    strategy = strategy_for_run()
    found = {}
    for build in (
        initial_values,
        reduced,
        trained,
        assigned_alone,
        global_batches,
        in_another_order,
        combined_when_fetched,
        known_before,
    ):
        with tf.Graph().as_default(), strategy.scope():
            fetches = build(strategy)
            config = strategy.update_config_proto(v1.ConfigProto())
            with v1.Session(strategy.master, config=config) as session:
                session.run(v1.global_variables_initializer())
                for operation in v1.get_collection("initializers"):
                    session.run(operation)
                for _ in range(3 if build is trained else 1):
                    values = session.run(fetches)
        found[build.__name__] = values
    return found


def index_of(strategy: Any) -> int:
    return int(strategy.extended.collectives.worker_index)


def replica() -> tf.Tensor:
    return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)


def sync_on_read(aggregation: tf.VariableAggregation, name: str = "variable") -> tf.Variable:
    synchronization = tf.VariableSynchronization.ON_READ
    return tf.Variable(0.0, name=name, synchronization=synchronization, aggregation=aggregation)


def initial_values(strategy: Any) -> Any:
    """Each worker has values of its own; worker 1 makes the first two in another order."""
    own, index = float(os.getpid()), index_of(strategy)
    named = {
        name: v1.get_variable(name, [], initializer=v1.constant_initializer(value + index))
        for name, value in [("f", 10.0), ("g", 20.0)][:: -1 if index == 1 else 1]
    }
    return [
        named["f"],
        named["g"],
        v1.get_variable("a", [3], initializer=v1.random_uniform_initializer(seed=os.getpid())),
        tf.Variable(own, name="b"),
        tf.Variable(lambda: tf.constant(os.getpid(), tf.int64), name="c"),
        tf.Variable(own, name="d", dtype=tf.float16),
        tf.Variable(os.getpid() % 2 == 0, name="e"),
    ]


def reduced(strategy: Any) -> Any:
    value = strategy.run(replica)
    half = strategy.run(lambda: tf.cast(replica() + 60000.0, tf.float16))
    return {
        "sum": strategy.reduce("SUM", value, axis=None),
        "mean": strategy.reduce(tf.distribute.ReduceOp.MEAN, value, axis=None),
        # Two values of 60,000 overflow float16's 65,504 in their sum, not in their mean.
        "half": strategy.reduce("MEAN", half, axis=None),
        "replicas": tf.constant(strategy.num_replicas_in_sync),
    }


def trained(strategy: Any) -> Any:
    weight = v1.get_variable("weight", [], initializer=v1.ones_initializer())

    def step() -> Any:
        loss = weight * (replica() + 1.0) / 3  # Mean over a global batch of three.
        return v1.train.GradientDescentOptimizer(1.0).minimize(loss)

    with tf.control_dependencies([strategy.run(step)]):
        return weight.read_value()


def assigned_alone(strategy: Any) -> Any:
    mean = sync_on_read(tf.VariableAggregation.MEAN)
    total = sync_on_read(tf.VariableAggregation.SUM)

    def update() -> Any:
        return [v.assign(10.0 * (replica() + 1.0), read_value=False) for v in (mean, total)]

    with tf.control_dependencies(strategy.run(update)):
        values = {"mean": mean.read_value(), "sum": total.read_value(), "own": mean.read_each()[0]}
    return {**values, "device": tf.constant(mean.device)}


def global_batches(strategy: Any) -> Any:
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(12).batch(6))
    iterator = v1.data.make_initializable_iterator(dataset)
    for initializer in tf.nest.flatten(iterator.initializer):
        v1.add_to_collection("initializers", initializer)
    return strategy.run(lambda batch: batch + 0, args=(iterator.get_next(),))


def in_another_order(strategy: Any) -> Any:
    sums = {}
    for name, value in [("a", 1.0), ("b", 100.0)][:: -1 if index_of(strategy) == 1 else 1]:
        with tf.name_scope(name):
            sums[name] = strategy.reduce("SUM", tf.constant([value]), axis=None)
    return sums


def combined_when_fetched(strategy: Any) -> Any:
    """Fetches sync-on-read variables themselves."""
    variables = {
        "sum": sync_on_read(tf.VariableAggregation.SUM, "sum"),
        "mean": sync_on_read(tf.VariableAggregation.MEAN, "mean"),
        "first": sync_on_read(tf.VariableAggregation.ONLY_FIRST_REPLICA, "first"),
    }
    for variable in variables.values():
        own = strategy.run(lambda v=variable: v.assign_add(index_of(strategy) + 1.0))
        v1.add_to_collection("initializers", own)
    return variables


def known_before(strategy: Any) -> Any:
    """Reduces values that are known before the graph runs; worker 0 then fetches more."""
    size = tf.cast(tf.shape(tf.zeros([8, 3]))[0], tf.float32)  # []
    sums = [
        strategy.reduce("SUM", strategy.run(lambda value=value: value), axis=None)
        for value in (size, tf.ones([5000]))
    ]
    sums += strategy.run(
        lambda: tf.distribute.get_replica_context().all_reduce("SUM", [size, tf.zeros([5000])])
    )  # One group.
    v1.add_to_collection("initializers", sums)  # All fetch these first.
    return sums if index_of(strategy) > 0 else [*sums, sums[0] + 1.0]
