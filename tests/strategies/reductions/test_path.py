"""The path of gradients: each of its functions, and updates only in steps that count."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.reductions import path
from tfdist.strategies.reductions.early_reduction import behind_gates
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


# Tied tables.

ROWS, COLUMNS, LOOKED_UP = 8, 2, [1, 6, 1]


def _gradient_of_a_tied_table(factor: float = 1.0) -> tf.Tensor:
    """Returns the gradient of a table by which values are multiplied, and whose rows are taken."""
    table = v1.Variable(np.ones([ROWS, COLUMNS], np.float32), use_resource=True)
    values = tf.matmul(tf.gather(table, LOOKED_UP), table, transpose_b=True)
    return tf.gradients(factor * tf.reduce_sum(values), table.handle)[0]


def test_a_tied_tables_gradient_is_split_and_joined_to_the_same_sum() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        replicas = [_gradient_of_a_tied_table(1.0), _gradient_of_a_tied_table(2.0)]
        other = [tf.ones([3])]
        values, names, owners = path.split(
            [other, replicas, other], ["a", "table", "b"], num_replicas=1, threshold_bytes=1
        )
        assert names == ["a", "table", "table/rows", "b"]
        assert owners == [0, 1, 1, 2]
        assert values[0] is other and values[3] is other
        assert all(isinstance(dense, tf.Tensor) for dense in values[1])
        assert all(rows.indices.shape == [3] for rows in values[2])
        for replica, whole in enumerate(replicas):
            own = [parts[min(replica, len(parts) - 1)] for parts in values]
            joined = path.join(own, owners)
            assert len(joined) == 3
            session.run(v1.global_variables_initializer())
            found, expected = session.run([joined[1], whole])
            assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("num_replicas", "threshold_bytes"),
    [(1, ROWS * COLUMNS * 4 + 1), (2, 1)],  # A small table; rows that would fill most of it.
)
def test_a_gradient_that_is_not_worth_it_is_not_split(
    num_replicas: int, threshold_bytes: int
) -> None:
    with tf.Graph().as_default():
        parts = [_gradient_of_a_tied_table()]
        values, names, owners = path.split(
            [parts], ["table"], num_replicas=num_replicas, threshold_bytes=threshold_bytes
        )
    assert (values, names, owners) == ([parts], ["table"], [0])


# Gates.


def test_a_chosen_gradient_leaves_before_its_gates_and_its_result_waits_for_them() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        passed = v1.Variable(0, use_resource=True)
        gradients = [
            behind_gates(tf.constant(value), [v1.assign_add(passed, 1).op]) for value in (2.0, 3.0)
        ]
        slices = tf.IndexedSlices(gradients[1], tf.constant(0))
        session.run(v1.global_variables_initializer())

        def run(value: Any) -> tuple[float, int]:
            """Returns a value, and how many gates it has passed."""
            before = session.run(passed)
            found = session.run(value)
            return float(found), int(session.run(passed) - before)

        sources, gates = path.ungated(
            [[gradients[0]], [gradients[1]], [slices]], lambda tensor: tensor is gradients[0]
        )
        assert run(sources[0][0]) == (2.0, 0)
        assert run(sources[1][0]) == (3.0, 1)  # It was not chosen.
        assert sources[2] == [slices]
        assert [len(own) for own in gates] == [1, 0, 0]
        reduced = [10.0 * sources[0][0], 10.0 * sources[1][0], slices]
        results = path.gated(reduced, gates)
        assert run(results[0]) == (20.0, 1)
        assert results[1:] == reduced[1:]


# Weights.


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.float16])
def test_weighted_gradients_add_up_to_the_gradient_of_the_mean_over_all_items(
    dtype: tf.DType,
) -> None:
    """Two replicas with 1 and 3 items, whose gradients have been divided by their number, 2."""
    with tf.Graph().as_default(), v1.Session() as session:
        own = [tf.constant(1.0), tf.constant(3.0)]
        weights = ReplicaWeights(own, tf.add_n(own), 2)
        dense = [tf.constant([4.0, 0.0], dtype) / 2, tf.constant([8.0, 4.0], dtype) / 2]
        rows = [
            tf.IndexedSlices(part[None], tf.constant([index])) for index, part in enumerate(dense)
        ]
        shared = [tf.constant([6.0], dtype)]
        first, second, third = weights.weigh([dense, rows, shared])
        sums = [
            tf.add_n(first),
            tf.IndexedSlices(tf.concat([part.values for part in second], 0), tf.constant([0, 1])),
            2 * third[0],  # What all replicas share counts once for each.
        ]
        found = weights.unweigh(sums, [dtype] * 3)
        assert [value.dtype for value in found] == [dtype] * 3
        assert isinstance(found[1], tf.IndexedSlices)
        values = session.run([found[0], found[1].values, found[2]])
    assert values[0].tolist() == [7.0, 3.0]  # (1 * 4 + 3 * 8) / 4, (1 * 0 + 3 * 4) / 4
    assert values[1].tolist() == [[1.0, 0.0], [6.0, 3.0]]
    assert values[2].tolist() == [12.0]
    assert weights.num_weighted == 3


def test_a_step_without_items_has_gradients_of_0() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        zero = tf.constant(0.0)
        weights = ReplicaWeights([zero], zero, 1)
        ((part,),) = weights.weigh([[tf.constant([float("nan"), 2.0])]])
        assert session.run(weights.unweigh([part], [tf.float32])[0]).tolist() == [0.0, 0.0]
