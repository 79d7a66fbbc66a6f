"""Gradients and small sums that travel together."""

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.reductions.buckets import (
    Gradient,
    Sum,
    find_dependencies,
    group_sums,
    pack,
)


def _gradients(*sizes: int, dtype: str = "float32") -> list[Gradient]:
    return [Gradient(dtype=dtype, num_bytes=size) for size in sizes]


@pytest.mark.parametrize(
    ("sizes", "threshold", "buckets"),
    [
        ((), 11, []),
        ((1, 2, 3), 11, [[2, 1, 0]]),  # In backward order.
        ((4, 6), 11, [[1, 0]]),  # Exactly full.
        ((5, 6), 11, [[1], [0]]),
        ((4, 4, 4, 4, 4), 11, [[4, 3], [2, 1], [0]]),
        ((1, 99, 1), 11, [[2, 0], [1]]),  # A large one has a bucket of its own.
        ((9, 8, 1), 9, [[2, 1], [0]]),
        ((99,), 11, [[0]]),
        ((0, 10), 11, [[1, 0]]),  # One of no bytes fits anywhere.
    ],
)
def test_small_gradients_share_buckets_of_at_most_10_bytes(
    sizes: tuple[int, ...], threshold: int, buckets: list[list[int]]
) -> None:
    assert pack(_gradients(*sizes), bucket_size_bytes=10, threshold_bytes=threshold) == buckets


def test_dtypes_do_not_mix_and_do_not_close_each_others_buckets() -> None:
    mixed = [
        Gradient(dtype=dtype, num_bytes=4)
        for dtype in ("float32", "float16", "float32", "float16", "float32")
    ]
    assert pack(mixed, bucket_size_bytes=8, threshold_bytes=9) == [[4, 2], [3, 1], [0]]


@pytest.mark.parametrize("max_bytes", [1, 7, 50, 1000])
def test_every_gradient_is_packed_once_within_the_limit(max_bytes: int) -> None:
    sizes = [(37 * i) % 29 for i in range(60)]
    gradients = [
        Gradient(dtype=("float32", "float64", "bfloat16")[i % 3], num_bytes=size)
        for i, size in enumerate(sizes)
    ]
    buckets = pack(gradients, bucket_size_bytes=max_bytes, threshold_bytes=max_bytes)
    assert sorted(index for bucket in buckets for index in bucket) == list(range(60))
    firsts = [bucket[0] for bucket in buckets]
    assert firsts == sorted(firsts, reverse=True)
    for bucket in buckets:
        assert bucket == sorted(bucket, reverse=True)
        assert len({gradients[index].dtype for index in bucket}) == 1
        assert len(bucket) == 1 or sum(sizes[index] for index in bucket) <= max_bytes


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
