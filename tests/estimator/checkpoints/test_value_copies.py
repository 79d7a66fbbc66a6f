"""Values are copied over the copies before, a piece at a time."""

import gc
import tracemalloc
import weakref
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.checkpoints import value_copies
from tfdist.estimator.checkpoints.background import BackgroundSaves, SaverOps
from tfdist.estimator.checkpoints.value_copies import ValueCopies, pieces
from tfdist.strategies.stop_signals import StopSignals


def test_values_are_copied_over_the_copies_before(graph: tf.Graph) -> None:
    odd = v1.get_variable("odd", initializer=tf.zeros([1001], tf.int8))
    large = v1.get_variable("large", initializer=tf.zeros([100, 100]))
    step = [v1.assign_add(variable, tf.ones_like(variable)) for variable in (odd, large)]
    copies = ValueCopies([1001, 40_000])
    places = set()
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for number in range(1, 4):
            session.run(step)
            values = copies.update(session.run, [odd, large])
            session.run(step)  # It changes no copy.
            for value, shape in zip(values, ([1001], [100, 100]), strict=True):
                assert value.ctypes.data % 64 == 0
                assert np.array_equal(value, np.full(shape, 2 * number - 1))
            places.add(tuple(value.ctypes.data for value in values))
    assert len(places) == 1


def test_a_value_of_another_shape_or_of_text_gets_memory_of_its_own() -> None:
    copies = ValueCopies([0, 0, 0])
    for given in (
        [np.ones(5), np.array([b"one", b"1\0"], object), np.float32(1.5)],
        [np.ones([2, 3], np.float32), np.array([b"two"], object), np.float32(2.5)],
    ):
        found = copies.update(lambda indices, given=given: [given[i] for i in indices], range(3))
        for value, expected in zip(found, given, strict=True):
            assert type(value) is type(expected) and np.array_equal(value, expected)
        assert not np.shares_memory(found[0], given[0])


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [
        ([], []),
        ([0, 0], [[0, 1]]),
        ([4, 6, 1, 9, 1], [[0, 1], [2, 3], [4]]),
        ([1, 30, 1], [[0], [1], [2]]),  # A large value is a piece of its own.
    ],
)
def test_values_are_fetched_in_pieces_of_bounded_size(
    num_bytes: list[int], expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(value_copies, "PIECE_BYTES", 10)
    assert list(pieces(num_bytes)) == expected


def test_beside_the_copies_there_is_memory_for_one_piece_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(value_copies, "PIECE_BYTES", 1 << 20)
    copies = ValueCopies([1 << 20] * 8)

    def fetch(indices: list[int]) -> list[Any]:
        return [np.ones(1 << 20, np.uint8) for _ in indices]

    tracemalloc.start()
    try:
        copies.update(fetch, range(8))
        tracemalloc.reset_peak()
        copies.update(fetch, range(8))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 9.5 * (1 << 20)


def test_saves_share_the_memory_until_the_end_of_the_training(graph: tf.Graph) -> None:
    v1.get_variable("weights", initializer=tf.ones([1000]))
    saver = v1.train.Saver()
    ops = SaverOps(saver, graph)
    with BackgroundSaves(StopSignals()) as saves, v1.Session() as session:
        session.run(v1.global_variables_initializer())
        (first,) = saves.copy(session, ops)
        (second,) = saves.copy(session, ops)
        assert first.ctypes.data == second.ctypes.data
        room = weakref.ref(first)
        del first, second
        assert room() is not None
    gc.collect()
    assert room() is None
