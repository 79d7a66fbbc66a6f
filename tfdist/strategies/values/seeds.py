"""Random numbers of replicas: other ones on each, equal from run to run.

An op without a seed, in a program with one, draws the same numbers in equal graphs. Two workers
would drop out the same units.
"""

from __future__ import annotations

from functools import cache

import tensorflow as tf

from tfdist.strategies.private_tensorflow import vary_seeds
from tfdist.strategies.values.replica_context import is_in_replica

# A prime, so that seeds that a program counts up do not meet those of other replicas.
SEED_STEP = 15_485_863


@cache
def vary_seeds_of_replicas() -> None:
    """Gives each replica of this process' strategies of tfdist seeds of its own."""
    vary_seeds(_replica, SEED_STEP)


def _replica() -> tuple[int, int]:
    if not is_in_replica():
        return 0, 0
    extended = tf.distribute.get_strategy().extended
    if not hasattr(extended, "first_replica_in_sync"):  # A strategy of TensorFlow.
        return 0, 0
    in_worker = extended.replica_in_worker()
    return extended.first_replica_in_sync + in_worker, in_worker
