"""`ipu.optimizers.sharded_optimizer`: an optimizer with ops where its variables are."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def ShardedOptimizer(optimizer: Any) -> Any:
    """Returns the `optimizer`: its ops are where its variables are already, which is logged."""
    tf.compat.v1.logging.info(
        "ShardedOptimizer has no effect: updates run where their variables are."
    )
    return optimizer
