"""A table that is looked up and multiplied: which parts of its gradient are reduced."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.extended import WorkerExtended
from tfdist.strategies.grpc.collectives import GrpcCollectives
from tfdist.strategies.placement import Placement
from tfdist.strategies.reductions import path
from tfdist.strategies.reductions.collectives import add_replicas

WORDS = np.arange(3 * 5).reshape(3, 5) % 7


def gradient_of_table(words: tf.Tensor, num_words: int = 4000) -> tuple[tf.Tensor, Any]:
    """Returns the gradient of a table [num_words, 40], and the table."""
    table = v1.get_variable("table", [num_words, 40], use_resource=True)
    hidden = tf.tanh(tf.reduce_mean(tf.nn.embedding_lookup(table, words), axis=1))  # [batch, 40]
    loss = tf.reduce_sum(tf.square(tf.matmul(hidden, table, transpose_b=True)))
    ((gradient, _),) = v1.train.GradientDescentOptimizer(0.1).compute_gradients(loss, [table])
    return gradient, table


def described(gradient: tf.Tensor, table: Any) -> list[str]:
    """Returns what two workers reduce."""
    extended = WorkerExtended(
        tf.distribute.get_strategy(),
        Placement(device="/device:CPU:1"),
        GrpcCollectives(num_workers=2, worker_index=0),
    )
    extended._batch_reduce_to(tf.distribute.ReduceOp.SUM, [(gradient, table)])
    return extended.reducer.built.described


def test_the_dense_part_is_reduced_and_the_rows_are_gathered() -> None:
    with tf.Graph().as_default() as graph:
        found = described(*gradient_of_table(tf.constant(WORDS)))
        assert [one.split(" ")[0] for one in found] == ["table", "table/rows"]
        sums = [op for op in graph.get_operations() if op.type == "CollectiveReduce"]
        assert sums[0].inputs[0].op.inputs[0].op.type == "MatMul"  # Not the sum with the rows.


@pytest.mark.parametrize(
    ("words", "num_words"),
    [
        (np.zeros([3, 500], np.int64), 4000),  # 3,000 rows of two workers
        (WORDS, 3000),  # 0.48 MB
        (None, 4000),  # as many rows as the batch has
    ],
)
def test_many_rows_unknown_rows_and_small_tables_are_reduced_as_one(
    words: Any, num_words: int
) -> None:
    with tf.Graph().as_default():
        fed = v1.placeholder(tf.int64, [None, 5]) if words is None else tf.constant(words)
        assert len(described(*gradient_of_table(fed, num_words))) == 1


def test_the_parts_add_up_to_the_gradient() -> None:
    """Each of two replicas has a gradient; the sum of both parts over the replicas is theirs."""
    with tf.Graph().as_default(), v1.Session() as session:
        whole, _ = gradient_of_table(tf.constant(WORDS))
        parts, names, owners = path.split(
            [[whole, whole]], ["table"], num_replicas=2, threshold_bytes=1 << 19
        )
        assert (names, owners) == (["table", "table/rows"], [0, 0])
        (total,) = path.join([add_replicas(part, mean=False) for part in parts], owners)
        session.run(v1.global_variables_initializer())
        one, both = session.run([whole, total])
    np.testing.assert_allclose(both, 2 * one, rtol=1e-5, atol=1e-7)
