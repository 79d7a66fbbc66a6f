"""Sums that share a message, and the origins of a graph's tensor."""

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.reductions.buckets import Sum, find_dependencies, group_sums

KB = 1 << 10


def small(*depends_on: int, dtype: str = "float32", num_bytes: int = 40) -> Sum:
    return Sum(dtype=dtype, num_bytes=num_bytes, depends_on=frozenset(depends_on))


@pytest.mark.parametrize(
    ("sums", "groups"),
    [
        ({}, []),
        ({3: small()}, []),
        ({1: small(num_bytes=73 * KB), 4: small()}, [[1, 4]]),
        ({0: small(num_bytes=257 * KB), 1: small(num_bytes=KB), 2: small()}, [[1, 2]]),
        # Together they would be too large: the later ones share.
        ({0: small(num_bytes=150 * KB), 1: small(num_bytes=150 * KB), 2: small()}, [[1, 2]]),
        ({0: small(), 1: small(dtype="int32"), 2: small(), 5: small(dtype="int32")},
         [[0, 2], [1, 5]]),
        ({0: small(), 1: small(0)}, []),
        # The loss needs a sum of the forward pass, as the gradients do.
        ({0: small(), 1: small(0), 2: small(0)}, [[1, 2]]),
        # The loss is read after the update.
        ({0: small(), 1: small(), 2: small(0, 1)}, []),
    ],
)  # fmt: skip
def test_small_sums_share_a_message_unless_one_is_made_of_another(
    sums: dict[int, Sum], groups: list[list[int]]
) -> None:
    assert group_sums(sums) == groups


def test_what_a_tensor_is_made_of_is_found_through_inputs_control_and_loops() -> None:
    with tf.Graph().as_default() as graph:
        results = [tf.constant(float(i), name=f"result_{i}") for i in range(4)]
        with tf.control_dependencies([results[1]]):
            controlled = tf.identity(results[0])
        v1.disable_control_flow_v2()
        try:
            looped = tf.while_loop(
                lambda i, x: i < 3, lambda i, x: (i + 1, x + results[2]), (0, tf.constant(0.0))
            )[1]
        finally:
            v1.enable_control_flow_v2()
        function = tf.while_loop(
            lambda i, x: i < 3, lambda i, x: (i + 1, x + results[3]), (0, tf.constant(0.0))
        )[1]
        assert {op.type for op in graph.get_operations()} >= {"NextIteration", "StatelessWhile"}
        wanted = [controlled, looped, function, tf.group(looped, controlled), results[3]]
        found = find_dependencies(graph, results, wanted)
    assert [sorted(one) for one in found] == [[0, 1], [2], [3], [0, 1, 2], [3]]
