"""The strategies in a training loop of one's own, with a plain session."""

from typing import Any

import numpy as np
import pytest

ENGINES = ["grpc", "horovod"]


@pytest.fixture
def in_session() -> Any:
    """A function that builds a graph in the strategy's scope and runs it."""

    def in_session(engine: str, build: Any, runs: int = 1, **options: Any) -> Any:
        import tensorflow as tf
        import tensorflow.compat.v1 as v1

        from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy

        strategy = {"grpc": MultiWorkerStrategy, "horovod": HorovodStrategy}[engine](**options)
        with tf.Graph().as_default(), strategy.scope():
            fetches = build(strategy)
            config = strategy.update_config_proto(v1.ConfigProto())
            with v1.Session(strategy.master, config=config) as session:
                session.run(v1.global_variables_initializer())
                for operation in v1.get_collection("initializers"):
                    session.run(operation)
                for _ in range(runs):
                    values = session.run(fetches)
        return values

    return in_session


@pytest.mark.parametrize("engine", ENGINES)
def test_every_worker_starts_with_worker_0s_values(
    fake_cluster: Any, in_session: Any, engine: str
) -> None:
    def build(strategy: Any) -> Any:
        import os

        import tensorflow as tf
        import tensorflow.compat.v1 as v1

        own = float(os.getpid())
        index = strategy.extended.collectives.worker_index
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

    first, second, third = fake_cluster.run(in_session, engine, build, engine=engine, num_workers=3)
    assert first[:2] == [10.0, 20.0]  # Also where worker 1 makes them in another order.
    for values in (second, third):
        for one, other in zip(first, values, strict=True):
            assert np.array_equal(one, other)


@pytest.mark.parametrize("engine", ENGINES)
def test_reduce_gives_every_worker_the_sum_or_the_mean(
    fake_cluster: Any, in_session: Any, engine: str
) -> None:
    def build(strategy: Any) -> Any:
        import tensorflow as tf

        def own() -> Any:
            return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)

        value = strategy.run(own)
        half = strategy.run(lambda: tf.cast(own() + 60000.0, tf.float16))
        return {
            "sum": strategy.reduce("SUM", value, axis=None),
            "mean": strategy.reduce(tf.distribute.ReduceOp.MEAN, value, axis=None),
            # Two values of 60,000 overflow float16's 65,504 in their sum, not in their mean.
            "half": strategy.reduce("MEAN", half, axis=None),
            "replicas": tf.constant(strategy.num_replicas_in_sync),
        }

    for values in fake_cluster.run(in_session, engine, build, engine=engine, num_workers=3):
        assert values["sum"] == 3.0
        assert values["mean"] == 1.0
        assert values["half"] == np.float16(60000.0)
        assert values["replicas"] == 3


@pytest.mark.parametrize("engine", ENGINES)
def test_a_training_step_divides_by_the_global_batch_itself(
    fake_cluster: Any, in_session: Any, engine: str
) -> None:
    def build(strategy: Any) -> Any:
        import tensorflow as tf
        import tensorflow.compat.v1 as v1

        weight = v1.get_variable("weight", [], initializer=v1.ones_initializer())

        def step() -> Any:
            index = tf.distribute.get_replica_context().replica_id_in_sync_group
            example = tf.cast(index, tf.float32) + 1.0
            loss = weight * example / 2  # Mean over a global batch of two.
            optimizer = v1.train.GradientDescentOptimizer(1.0)
            return optimizer.minimize(loss)

        train_op = strategy.run(step)
        with tf.control_dependencies([train_op]):
            return weight.read_value()

    # Gradients 1/2 and 2/2 are summed, three times.
    values = fake_cluster.run(in_session, engine, build, engine=engine, runs=3)
    assert values == [1 - 3 * 1.5, 1 - 3 * 1.5]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_sync_on_read_variable_is_updated_alone_and_combined_when_read(
    fake_cluster: Any, in_session: Any, engine: str
) -> None:
    def build(strategy: Any) -> Any:
        import tensorflow as tf

        def variable(aggregation: Any) -> Any:
            return tf.Variable(
                0.0,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=aggregation,
            )

        mean = variable(tf.VariableAggregation.MEAN)
        total = variable(tf.VariableAggregation.SUM)

        def update() -> Any:
            index = tf.distribute.get_replica_context().replica_id_in_sync_group
            own = 10.0 * (tf.cast(index, tf.float32) + 1.0)
            return [v.assign(own, read_value=False) for v in (mean, total)]

        with tf.control_dependencies(strategy.run(update)):
            return {
                "mean": mean.read_value(),
                "sum": total.read_value(),
                "own": mean.read_each()[0],
                "device": tf.constant(mean.device),
            }

    values = fake_cluster.run(in_session, engine, build, engine=engine)
    assert [v["mean"] for v in values] == [15.0, 15.0]
    assert [v["sum"] for v in values] == [30.0, 30.0]
    assert [v["own"] for v in values] == [10.0, 20.0]
    assert all(v["device"].endswith(b"CPU:1") for v in values)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_dataset_of_global_batches_is_split_over_the_workers(
    fake_cluster: Any, in_session: Any, engine: str
) -> None:
    def build(strategy: Any) -> Any:
        import tensorflow as tf
        import tensorflow.compat.v1 as v1

        dataset = tf.data.Dataset.range(12).batch(6)
        iterator = v1.data.make_initializable_iterator(
            strategy.experimental_distribute_dataset(dataset)
        )
        for initializer in tf.nest.flatten(iterator.initializer):
            v1.add_to_collection("initializers", initializer)
        return strategy.run(lambda batch: batch + 0, args=(iterator.get_next(),))

    first, second = fake_cluster.run(in_session, engine, build, engine=engine)
    assert len(first) == len(second) == 3
    assert set(first) | set(second) == set(range(6))


@pytest.mark.parametrize("engine", ENGINES)
def test_values_reduced_in_another_order_are_paired_by_their_name_scopes(
    fake_cluster: Any, in_session: Any, engine: str
) -> None:
    def build(strategy: Any) -> Any:
        import tensorflow as tf

        index = strategy.extended.collectives.worker_index
        sums = {}
        for name, value in [("a", 1.0), ("b", 100.0)][:: 1 - 2 * index]:
            with tf.name_scope(name):
                sums[name] = strategy.reduce("SUM", tf.constant([value]), axis=None)
        return sums

    for sums in fake_cluster.run(in_session, engine, build, engine=engine):
        assert sums == {"a": [2.0], "b": [200.0]}


@pytest.mark.parametrize("engine", ENGINES)
def test_session_run_gives_a_sync_on_read_variables_combined_value(
    fake_cluster: Any, in_session: Any, engine: str
) -> None:
    def build(strategy: Any) -> Any:
        import tensorflow as tf
        import tensorflow.compat.v1 as v1

        index = strategy.extended.collectives.worker_index
        variables = {
            name: tf.Variable(
                0.0,
                name=name,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=aggregation,
            )
            for name, aggregation in {
                "sum": tf.VariableAggregation.SUM,
                "mean": tf.VariableAggregation.MEAN,
                "first": tf.VariableAggregation.ONLY_FIRST_REPLICA,
            }.items()
        }
        for variable in variables.values():
            own = strategy.run(lambda v=variable: v.assign_add(index + 1.0))
            v1.add_to_collection("initializers", own)
        return variables

    for values in fake_cluster.run(in_session, engine, build, engine=engine):
        assert values == {"sum": 3.0, "mean": 1.5, "first": 1.0}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_worker_that_fetches_more_waits_for_no_reduction_of_a_constant(
    fake_cluster: Any, engine: str
) -> None:
    def reduce_sizes(engine: str) -> Any:
        import tensorflow as tf
        import tensorflow.compat.v1 as v1

        from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy

        strategy = {"grpc": MultiWorkerStrategy, "horovod": HorovodStrategy}[engine]()
        with tf.Graph().as_default(), strategy.scope():
            size = tf.cast(tf.shape(tf.zeros([8, 3]))[0], tf.float32)  # []
            sums = [
                strategy.reduce("SUM", strategy.run(lambda value=value: value), axis=None)
                for value in (size, tf.ones([5000]))  # Both are known before the graph runs.
            ]
            sums += strategy.run(
                lambda: tf.distribute.get_replica_context().all_reduce(
                    "SUM", [size, tf.zeros([5000])]
                )
            )  # One group.
            more = [sums[0] + 1.0] if strategy.extended.first_replica_in_sync == 0 else []
            config = strategy.update_config_proto(v1.ConfigProto())
            with v1.Session(strategy.master, config=config) as session:
                session.run(sums)
                return session.run([*sums, *more])[:4]

    for size, ones, grouped_size, zeros in fake_cluster.run(
        reduce_sizes, engine, engine=engine, num_workers=2
    ):
        assert size == grouped_size == 16.0
        assert (ones == 2.0).all()
        assert (zeros == 0.0).all()
