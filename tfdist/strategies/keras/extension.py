"""Extensions of the classes and modules of a Keras library."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.base import is_tfdist_strategy


def extends(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator that puts a function in place of a method, or of a module's function.

    The new function gets the one before as its first argument.
    """
    original = getattr(owner, name)

    def put(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def extended(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        setattr(owner, name, extended)
        return function

    return put


def is_of_keras(function: Any) -> bool:
    """Returns whether a function or method is one of a Keras library, and no program's."""
    module = getattr(function, "__module__", None) or ""
    return module.startswith(("keras.", "tf_keras."))


def strategy_of_scope() -> Any:
    """Returns the strategy of tfdist whose code is running; None if there is none."""
    strategy = tf.distribute.get_strategy()
    return strategy if is_tfdist_strategy(strategy) else None


def strategy_of(model: Any) -> Any:
    """Returns the strategy of tfdist in whose scope a model was made; None without one."""
    strategy = getattr(model, "distribute_strategy", None)
    return strategy if is_tfdist_strategy(strategy) else None
