"""Reductions of TensorFlow 2 over the replicas of one process."""

import tensorflow as tf

from tfdist.strategies import LocalStrategy


def test_every_value_of_a_structure_is_reduced() -> None:
    strategy = LocalStrategy(num_replicas=2)

    def step() -> tuple[tf.Tensor, list[tf.Tensor]]:
        context = tf.distribute.get_replica_context()
        number = tf.cast(context.replica_id_in_sync_group, tf.float32) + 1.0
        return number, [10.0 * number]

    with strategy.scope():
        one, (other,) = strategy.reduce("SUM", strategy.run(step), axis=None)
    assert (float(one), float(other)) == (3.0, 30.0)
