"""Gradients that travel together."""

from collections.abc import Sequence

import pytest

from tfdist.strategies.reductions.buckets import Gradient, pack


def _gradients(*sizes: int, dtype: str = "float32") -> list[Gradient]:
    return [Gradient(dtype=dtype, num_bytes=size) for size in sizes]


def test_nothing_gives_no_buckets() -> None:
    assert pack([], bucket_size_bytes=10, threshold_bytes=11) == []


def test_small_gradients_share_a_bucket_in_backward_order() -> None:
    assert pack(_gradients(1, 2, 3), bucket_size_bytes=10, threshold_bytes=11) == [[2, 1, 0]]


def test_a_bucket_may_be_exactly_full() -> None:
    assert pack(_gradients(4, 6), bucket_size_bytes=10, threshold_bytes=11) == [[1, 0]]
    assert pack(_gradients(5, 6), bucket_size_bytes=10, threshold_bytes=11) == [[1], [0]]


def test_a_bucket_is_closed_before_it_grows_too_large() -> None:
    assert pack(_gradients(4, 4, 4, 4, 4), bucket_size_bytes=10, threshold_bytes=11) == [
        [4, 3],
        [2, 1],
        [0],
    ]


def test_a_large_gradient_gets_a_bucket_of_its_own() -> None:
    assert pack(_gradients(1, 99, 1), bucket_size_bytes=10, threshold_bytes=11) == [[2, 0], [1]]
    assert pack(_gradients(9, 8, 1), bucket_size_bytes=10, threshold_bytes=9) == [[2, 1], [0]]
    assert pack(_gradients(99), bucket_size_bytes=10, threshold_bytes=11) == [[0]]


def test_a_gradient_of_no_bytes_fits_anywhere() -> None:
    assert pack(_gradients(0, 10), bucket_size_bytes=10, threshold_bytes=11) == [[1, 0]]


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
    assert _starts_are_in_backward_order(buckets)
    for bucket in buckets:
        assert bucket == sorted(bucket, reverse=True)
        assert len({gradients[index].dtype for index in bucket}) == 1
        assert len(bucket) == 1 or sum(sizes[index] for index in bucket) <= max_bytes


def _starts_are_in_backward_order(buckets: Sequence[Sequence[int]]) -> bool:
    firsts = [bucket[0] for bucket in buckets]
    return firsts == sorted(firsts, reverse=True)
