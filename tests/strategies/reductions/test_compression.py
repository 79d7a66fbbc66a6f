"""Gradients in half precision: who rounds what, and how far off the sums are."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy, strategy_for_run
from tfdist.strategies.reductions.collectives import all_reduce
from tfdist.strategies.reductions.compression import compressed_sum

HALVES = [tf.float16, tf.bfloat16]
ROUNDING = {tf.float16: 2.0**-11, tf.bfloat16: 2.0**-8}


class _Meeting:
    """An engine between threads, each of which is a worker."""

    bucket_size_bytes = threshold_bytes = 1 << 20

    def __init__(self, barrier: Barrier, table: list[Any], worker_index: int) -> None:
        self.num_workers = len(table)
        self.worker_index = worker_index
        self._barrier = barrier
        self._table = table
        self.sent: list[tuple[str, tf.DType]] = []

    def _meet(self, kind: str, tensor: tf.Tensor) -> list[tf.Tensor]:
        self.sent.append((kind, tensor.dtype))
        self._table[self.worker_index] = tensor
        self._barrier.wait(timeout=30)
        everyones = list(self._table)
        self._barrier.wait(timeout=30)
        return everyones

    def sum(self, tensors: list[tf.Tensor], name: str) -> list[tf.Tensor]:
        return [tf.add_n(self._meet("sum", tensor)) for tensor in tensors]

    def gather(self, tensor: tf.Tensor, name: str, *, same_rows: bool = False) -> tf.Tensor:
        return tf.concat(self._meet("gather", tensor), axis=0)


class _MeetingWithShares(_Meeting):
    def all_to_all(self, shares: tf.Tensor, name: str) -> tf.Tensor:
        return tf.stack([one[self.worker_index] for one in self._meet("all_to_all", shares)])


def _on_workers(number: int, work: Callable[[Any], Any], kind: Any = _Meeting) -> list[Any]:
    barrier, table = Barrier(number), [None] * number
    workers = [kind(barrier, table, index) for index in range(number)]
    with ThreadPoolExecutor(number) as threads:
        return list(threads.map(work, workers))


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(
    ("number", "kind", "roundings"),
    [(2, _MeetingWithShares, 1), (5, _Meeting, 1), (5, _MeetingWithShares, 2)],
)
def test_a_sum_is_off_by_no_more_than_is_stated(
    half: tf.DType, number: int, kind: Any, roundings: int
) -> None:
    random = np.random.RandomState(0)
    signs = random.choice([-1.0, 1.0], (number, 3001))
    gradients = (signs * 10.0 ** random.uniform(-3, 3, signs.shape)).astype(np.float32)

    def work(collectives: Any) -> Any:
        own = tf.constant(gradients[collectives.worker_index])
        parts = [own[:1], tf.reshape(own[1:], [50, 60])]  # 3,001 does not divide by 5.
        sums = compressed_sum(collectives, parts, half, "bucket")
        assert [part.shape for part in sums] == [[1], [50, 60]]
        return np.concatenate([np.ravel(part) for part in sums])

    first, *others = _on_workers(number, work, kind)
    for other in others:
        assert np.array_equal(first, other)
    exact, u = gradients.astype(np.float64).sum(axis=0), ROUNDING[half]
    bound = (u if roundings == 1 else 2 * u + u * u) * np.abs(gradients).sum(axis=0)
    relative = np.max(np.abs(first - exact) / bound)
    assert 0.5 < relative <= 1.0 + 1e-4  # The rest is float32's own rounding.


@pytest.mark.parametrize("kind", [_Meeting, _MeetingWithShares])
def test_nobody_adds_halves(kind: Any) -> None:
    # In fp16, 2048 + 1 is 2048, and 40,000 + 40,000 is infinite.
    values = [[2048.0, 40000.0], [1.0, 40000.0], [1.0, -40000.0], [2.0, -40000.0]]

    def work(collectives: Any) -> Any:
        own = tf.constant(values[collectives.worker_index])
        return compressed_sum(collectives, [own], tf.float16, "bucket")[0].numpy()

    for total in _on_workers(4, work, kind):
        assert total.tolist() == [2052.0, 0.0]


def test_only_float32_travels_in_halves() -> None:
    def work(collectives: Any) -> Any:
        values = [
            tf.constant([1 + 2.0**-20]),
            tf.constant([1 + 2.0**-40], tf.float64),
            tf.constant([3], tf.int32),
            tf.constant([1 + 2.0**-10], tf.float16),
            tf.IndexedSlices(tf.constant([[1 + 2.0**-20]]), tf.constant([5], tf.int64)),
        ]
        reduced, _ = all_reduce(collectives, values, mean=True, name="all_reduce", half=tf.bfloat16)
        return collectives.sent, reduced

    for sent, (single, double, integer, half, slices) in _on_workers(2, work):
        assert sorted(sent, key=str) == [
            ("gather", tf.bfloat16),
            ("gather", tf.bfloat16),
            ("gather", tf.int64),
            ("sum", tf.float32),  # What was float16 is added in float32, as always.
            ("sum", tf.float64),
            ("sum", tf.int32),
        ]
        assert single.numpy() == 1.0
        assert double.numpy() == 1 + 2.0**-40
        assert integer.numpy() == 3
        assert half.numpy() == 1 + 2.0**-10
        assert slices.values.numpy().tolist() == [[1.0]]  # The row of both workers.
        assert {value.dtype for value in (single, slices)} == {tf.float32}


@pytest.mark.parametrize("strategy", [MultiWorkerStrategy, HorovodStrategy, strategy_for_run])
@pytest.mark.parametrize("compression", ["float16", "", True, tf.float16])
def test_another_compression_is_refused_in_one_line(strategy: Any, compression: Any) -> None:
    expected = f"compression must be 'fp16', 'bf16' or None, got {compression!r}."
    with pytest.raises(ValueError, match=re.escape(expected)) as caught:
        strategy(compression=compression)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("compression", "said"), [(None, ""), ("bf16", ", float32 sent as bfloat16")]
)
def test_the_description_of_messages_names_the_half(compression: Any, said: str) -> None:
    strategy = MultiWorkerStrategy(device="/device:CPU:0", compression=compression)
    described = strategy.extended.reducer.describe_messages()
    assert described == f"bucket size 1 MB, bucketing threshold 1 MB{said}"
