"""Functions (`tf.function`) in the code of replicas: each replica has a trace of its own.

A replica's number, its own values of a variable and its messages are part of a function's graph.
TensorFlow keeps one trace for all replicas on a device. Here each has its own:

    strategy.run(f), f a tf.function       one function around all replicas of this worker, in which
                                           f's Python code runs once for each: its replicas may
                                           combine values
    f called in the code of a replica      one trace for each replica; TensorFlow refuses to combine
                                           values in it

Outside of `strategy.run` f has other traces again.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import tensorflow as tf

from tfdist.strategies.private_tensorflow import converted, copy_of_function, divide_traces
from tfdist.strategies.values.replica_context import is_in_replica, replica_in_sync

Call = Callable[[Callable[..., Any], Sequence[Any], dict[str, Any]], Any]


# The `extended` of strategies with a trace for each replica.
_divided: WeakSet[Any] = WeakSet()


@functools.cache
def _divide_traces() -> None:
    divide_traces(_replica_of_trace)


def _replica_of_trace() -> Hashable:
    if not is_in_replica():
        return None
    strategy = tf.distribute.get_strategy()
    if strategy.num_replicas_in_sync == 1 or strategy.extended not in _divided:
        return None
    return strategy.extended, replica_in_sync()


def is_tf_function(function: Any) -> bool:
    """Returns whether this is a tf.function, and not a trace of one."""
    return isinstance(function, tf.types.experimental.PolymorphicFunction)


def without_partial(
    function: Any, args: Sequence[Any], kwargs: dict[str, Any] | None
) -> tuple[Any, Sequence[Any], dict[str, Any]]:
    """Returns the tf.function in a `functools.partial`, with all of its arguments."""
    inner: Any = function
    first, named = tuple(args), dict(kwargs or {})
    while isinstance(inner, functools.partial):
        inner, first, named = inner.func, inner.args + first, {**inner.keywords, **named}
    return (inner, first, named) if is_tf_function(inner) else (function, args, kwargs or {})


class FunctionsOfReplicas:
    """The functions around all replicas of this worker, one for each tf.function.

    Args:
      extended: The strategy's. From now on its replicas have traces of their own.
      call: Runs Python code once for each replica, with arguments of all replicas.
    """

    def __init__(self, extended: Any, call: Call) -> None:
        _divided.add(extended)
        _divide_traces()
        self._call = call
        self._made: WeakKeyDictionary[Any, dict[bool, Any]] = WeakKeyDictionary()

    def __call__(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Runs a tf.function's code for each replica, in one function with its options."""
        leaves = tf.nest.flatten((tuple(args), kwargs))
        # A signature says what a replica gets, and has no word for values of all replicas.
        keeps_signature = not any(isinstance(v, tf.distribute.DistributedValues) for v in leaves)
        made = self._made.setdefault(function, {})
        if keeps_signature not in made:
            around = self._around(function.python_function)
            made[keeps_signature] = copy_of_function(function, around, keeps_signature)
        return made[keeps_signature](*args, **kwargs)

    def _around(self, python_function: Callable[..., Any]) -> Callable[..., Any]:
        def around(*args: Any, **kwargs: Any) -> Any:
            return self._call(converted(python_function), args, kwargs)

        around.__signature__ = inspect.signature(python_function)  # type: ignore[attr-defined]
        return around
