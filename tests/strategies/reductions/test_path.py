"""Updates run in the steps whose weights are not all 0, without a function for each variable."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.reductions.path import ReplicaWeights

Update = Callable[[], Any]


def _plain(weights: ReplicaWeights, update: Update) -> Any:
    return weights.if_any(update)


def _nested(weights: ReplicaWeights, update: Update) -> Any:
    """As where a wrapper's update calls an optimizer that updates through the strategy."""

    def outer() -> Any:
        # What runs behind the inner update is part of the outer one.
        with tf.control_dependencies([weights.if_any(lambda: tf.no_op())]):
            return update()

    return weights.if_any(outer)


def _in_a_branch(weights: ReplicaWeights, update: Update) -> Any:
    return tf.cond(tf.constant(True), lambda: tf.group(weights.if_any(update)), tf.no_op)


@pytest.mark.parametrize("place", [_plain, _nested, _in_a_branch])
def test_an_update_runs_unless_all_weights_are_0_and_what_waits_for_it_always(place: Any) -> None:
    with tf.Graph().as_default() as graph:
        total = v1.placeholder(tf.float32, [])
        weights = ReplicaWeights([total], total, 1)
        counts = [v1.Variable(0.0, use_resource=True) for _ in range(3)]
        # The second update has no input that depends on the weights.
        updates = [
            place(weights, lambda: v1.assign_add(counts[0], total).op),
            place(weights, lambda: v1.assign_add(counts[1], 1.0).op),
        ]
        with tf.control_dependencies(updates):
            step = v1.assign_add(counts[2], 1.0)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            seen = []
            for value in (2.0, 0.0, float("nan"), 3.0):
                session.run(step, {total: value})
                seen.append(session.run(counts))
    assert seen == [[2, 1, 1], [2, 1, 2], [2, 1, 3], [5, 2, 4]]
    kinds = [op.type for op in graph.get_operations()]
    assert kinds.count("If") == (2 if place is _in_a_branch else 0)
