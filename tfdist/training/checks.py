"""Checks of numbers and patterns that optimizers and schedules are made with."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.cluster.arguments import check_flag as check_flag
from tfdist.cluster.arguments import check_number as check_number


def check_rate(value: Any, name: str = "learning_rate") -> Any:
    """Returns a learning rate after checking it; a tensor, variable or function is not read.

    Raises:
      ValueError: If it is a number that is negative or not finite.
    """
    if callable(value) or tf.is_tensor(value) or isinstance(value, tf.Variable):
        return value
    return check_number(name, value)
