"""Questions about the code that is running: is it one replica's, or all replicas' together?"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf


def is_in_replica() -> bool:
    """Returns whether the code of one replica of a strategy is running."""
    return bool(tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context())


def is_cross_replica() -> bool:
    """Returns whether a strategy's code for all replicas is running, as in its scope."""
    return bool(tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context())


def replica_in_worker() -> int:
    """Returns the index in this worker of the running replica; else 0."""
    if not is_in_replica():
        return 0
    return int(tf.distribute.get_strategy().extended.replica_in_worker())


def replica_in_sync() -> int:
    """Returns the index over all workers of the running replica; else 0."""
    if not is_in_replica():
        return 0
    extended = tf.distribute.get_strategy().extended
    return int(extended.first_replica_in_sync + extended.replica_in_worker())


_thread = threading.local()  # Each replica of a worker has a thread.


@contextmanager
def equal_updates() -> Iterator[None]:
    """Marks code of a replica with equal updates on all replicas, as an optimizer's are.

    Nothing is combined then, and one replica of each worker assigns.
    """
    before = are_updates_equal()
    _thread.are_updates_equal = True
    try:
        yield
    finally:
        _thread.are_updates_equal = before


def are_updates_equal() -> bool:
    """Returns whether this is code in `equal_updates`."""
    return bool(getattr(_thread, "are_updates_equal", False))


@contextmanager
def reduced_gradients() -> Iterator[None]:
    """Marks code of this thread that gives an optimizer gradients which are reduced already."""
    before = are_gradients_reduced()
    _thread.are_gradients_reduced = True
    try:
        yield
    finally:
        _thread.are_gradients_reduced = before


def are_gradients_reduced() -> bool:
    """Returns whether this is code in `reduced_gradients`."""
    return bool(getattr(_thread, "are_gradients_reduced", False))
