"""TensorFlow's own strategies: which of them a RunConfig takes, and what stands for the others."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

_LOCAL = (
    tf.distribute.MirroredStrategy,
    tf.distribute.OneDeviceStrategy,
    v1.distribute.MirroredStrategy,
    v1.distribute.OneDeviceStrategy,
)


def is_own(strategy: Any) -> bool:
    """Says whether it is one of `tfdist.strategies`."""
    return hasattr(getattr(strategy, "extended", None), "collectives")


def is_usable(strategy: Any) -> bool:
    """Says whether a RunConfig takes it: our own, and TensorFlow's for one machine."""
    return is_own(strategy) or isinstance(strategy, _LOCAL) or is_default(strategy)


def is_default(strategy: Any) -> bool:
    """Says whether it is what `tf.distribute.get_strategy()` gives where there is none."""
    return not tf.distribute.has_strategy() and strategy is tf.distribute.get_strategy()
