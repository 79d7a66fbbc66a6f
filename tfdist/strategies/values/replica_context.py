"""Questions about the code that is running: is it one replica's, or that of all together?"""

from __future__ import annotations

import tensorflow as tf


def is_in_replica() -> bool:
    """Returns whether the code of one replica of a strategy is running."""
    return bool(tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context())


def is_cross_replica() -> bool:
    """Returns whether a strategy's code for all replicas is running, as in its scope."""
    return bool(tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context())


def replica_in_worker() -> int:
    """Returns the index in this worker of the replica whose code is running; else 0."""
    if not is_in_replica():
        return 0
    return int(tf.distribute.get_strategy().extended.replica_in_worker())
