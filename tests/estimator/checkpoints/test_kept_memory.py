"""Values are placed in the same memory again and again, as they are in one call."""

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.checkpoints import kept_memory
from tfdist.estimator.checkpoints.background import BackgroundSaves, SaverOps
from tfdist.estimator.checkpoints.kept_memory import KeptMemory, bytes_for
from tfdist.strategies.stop_signals import StopSignals


@pytest.fixture
def room() -> np.ndarray:
    return np.zeros(bytes_for([1001, 40_000]), np.uint8)


def test_fetched_values_are_placed_in_the_memory_each_time(
    graph: tf.Graph, room: np.ndarray
) -> None:
    odd = v1.get_variable("odd", initializer=tf.zeros([1001], tf.int8))
    large = v1.get_variable("large", initializer=tf.zeros([100, 100]))
    step = [v1.assign_add(variable, tf.ones_like(variable)) for variable in (odd, large)]
    memory = KeptMemory(room)
    places = set()
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for number in range(1, 4):
            session.run(step)
            values = memory.fetch(lambda: session.run([odd, large]))
            session.run(step)  # It changes no copy.
            for value, shape in zip(values, ([1001], [100, 100]), strict=True):
                assert np.shares_memory(value, room) and value.ctypes.data % 64 == 0
                assert np.array_equal(value, np.full(shape, 2 * number - 1))
            places.add(tuple(value.ctypes.data for value in values))
    assert len(places) == 1


def test_what_does_not_fit_and_text_get_memory_of_their_own(room: np.ndarray) -> None:
    given = [np.ones(50_000), np.array([b"one", b"1\0"], object), np.float32(1.5)]
    for value, found in zip(given, KeptMemory(room).fetch(lambda: _copies(given)), strict=True):
        assert type(found) is type(value) and np.array_equal(found, value)
        assert not np.shares_memory(found, room)


def _copies(values: list[Any]) -> list[Any]:
    return [value.copy() for value in values]


def test_an_unknown_numpy_places_values_itself(
    room: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_memory, "_NUMPY", None)
    (value,) = KeptMemory(room).fetch(lambda: [np.arange(8)])
    assert not np.shares_memory(value, room) and np.array_equal(value, np.arange(8))


def test_only_arrays_of_the_call_are_placed_there(room: np.ndarray) -> None:
    elsewhere: list[np.ndarray] = []

    def run() -> list[np.ndarray]:
        thread = threading.Thread(target=lambda: elsewhere.append(np.ones(100)))
        thread.start()
        thread.join()
        return [np.ones(100)]

    memory = KeptMemory(room)
    (inside,) = memory.fetch(run)
    with pytest.raises(ValueError, match="of the call"):
        memory.fetch(_failing)
    after = np.ones(100)
    assert np.shares_memory(inside, room)
    assert not np.shares_memory(elsewhere[0], room) and not np.shares_memory(after, room)


def _failing() -> list[np.ndarray]:
    raise ValueError("of the call")


def test_saves_share_the_memory_until_the_end_of_the_training(graph: tf.Graph) -> None:
    v1.get_variable("weights", initializer=tf.ones([1000]))
    saver = v1.train.Saver()
    ops = SaverOps(saver, graph)
    with BackgroundSaves(StopSignals()) as saves, v1.Session() as session:
        session.run(v1.global_variables_initializer())
        (first,) = saves.copy(session, ops)
        (second,) = saves.copy(session, ops)
        assert first.ctypes.data == second.ctypes.data
        room = weakref.ref(first.base)
        del first, second
        assert room() is not None
    gc.collect()
    assert room() is None
