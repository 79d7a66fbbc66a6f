"""Assignments that replicas make to a shared variable follow its aggregation."""

from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies import LocalStrategy

Aggregation = tf.VariableAggregation

# The replicas assign 2 and 6.
EXPECTED = {
    Aggregation.ONLY_FIRST_REPLICA: {"assign": 2.0, "assign_add": 12.0, "assign_sub": 8.0},
    Aggregation.MEAN: {"assign": 4.0, "assign_add": 14.0, "assign_sub": 6.0},
    Aggregation.SUM: {"assign": 8.0, "assign_add": 18.0, "assign_sub": 2.0},
}


@pytest.mark.parametrize("use_resource", [True, False])
@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
@pytest.mark.parametrize("aggregation", EXPECTED, ids=lambda one: one.name)
def test_an_assignment_of_each_replica_is_aggregated(
    aggregation: Any, method: str, use_resource: bool
) -> None:
    strategy = LocalStrategy(num_replicas=2)
    with tf.Graph().as_default(), strategy.scope():
        variable = v1.get_variable(
            "v",
            initializer=10.0,
            trainable=False,
            aggregation=aggregation,
            use_resource=use_resource,
        )

        def replica() -> Any:
            own = 2.0 + 4.0 * strategy.extended.replica_in_worker()
            with tf.control_dependencies([getattr(v1, method)(variable, own)]):
                return tf.no_op()

        update = strategy.experimental_local_results(strategy.run(replica))
        with v1.Session(config=strategy.update_config_proto(v1.ConfigProto())) as session:
            session.run(v1.global_variables_initializer())
            session.run(update)
            assert session.run(variable) == EXPECTED[aggregation][method]


@pytest.mark.parametrize("aggregation", EXPECTED, ids=lambda one: one.name)
def test_in_cross_replica_context_an_assignment_is_made_once(aggregation: Any) -> None:
    strategy = LocalStrategy(num_replicas=2)
    with tf.Graph().as_default(), strategy.scope():
        variable = v1.get_variable("v", initializer=10.0, aggregation=aggregation)
        update = variable.assign_add(1.0, read_value=False)
        with v1.Session(config=strategy.update_config_proto(v1.ConfigProto())) as session:
            session.run(v1.global_variables_initializer())
            session.run(update)
            assert session.run(variable) == 11.0


@pytest.mark.parametrize("aggregation", EXPECTED, ids=lambda one: one.name)
def test_a_function_of_tensorflow_2_aggregates_as_well(aggregation: Any) -> None:
    strategy = LocalStrategy(num_replicas=2)
    with strategy.scope():
        variable = tf.Variable(10.0, trainable=False, aggregation=aggregation)

    @tf.function
    def step() -> None:
        def replica() -> None:
            own = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
            variable.assign_add(2.0 + 4.0 * own)

        strategy.run(replica)

    step()
    assert float(variable) == EXPECTED[aggregation]["assign_add"]
