"""Large sums in the functions of one program, one way after the other."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies import MultiWorkerStrategy
from tfdist.strategies.grpc import function_exchange

LARGE = [(2, 1 << 18), (700_001,)]  # The second cannot be divided by two or three workers.
_SUM = tf.distribute.ReduceOp.SUM


def run() -> dict[str, Any]:
    """Returns what each way gives, and which ops the functions have."""
    strategy = MultiWorkerStrategy()
    with strategy.scope():
        pass
    index = strategy.extended.collectives.worker_index
    random = np.random.RandomState(index)
    own = [random.randn(*shape).astype(np.float32) for shape in [*LARGE, (5,)]]
    held = [tf.constant(values) for values in own]

    def all_of_them(factor: tf.Tensor, dtype: tf.DType) -> Any:
        values = [tf.cast(value * factor, dtype) for value in held]
        return tf.distribute.get_replica_context().merge_call(_reduced, [values])

    @tf.function
    def step(rows: tf.Tensor, dtype: tf.DType = tf.float32) -> list[tf.Tensor]:
        return strategy.run(all_of_them, (tf.reduce_sum(rows), dtype))

    @tf.function
    def loop() -> list[tf.Tensor]:
        sums = [tf.zeros_like(values) for values in held]
        for number in tf.range(1, 4):
            new = strategy.run(all_of_them, (tf.cast(number, tf.float32), tf.float32))
            sums = [total + value for total, value in zip(sums, new, strict=True)]
        return sums

    @tf.function
    def checked(factor: tf.Tensor) -> list[tf.Tensor]:
        """Sums if the factor is positive; else it fails before it sends anything."""
        with tf.control_dependencies([tf.debugging.assert_positive(factor)]):
            return strategy.run(all_of_them, (tf.identity(factor), tf.float32))

    @tf.function
    def of_equal_names() -> list[tf.Tensor]:
        """Sums the gradients of variables that all have the name TensorFlow gives by itself."""
        gradients = [[1.0 * held[0]], [3.0 * held[0]]]
        sums: list[tf.Tensor] = strategy.extended.reducer.reduce_gradients(
            gradients, ["Variable", "Variable"], mean=False
        )
        return sums

    results: dict[str, Any] = {"own": own}
    functions = strategy.extended.collectives.functions
    results["step"] = _arrays(step(tf.ones([1])))
    results["ops"] = _ops(step.get_concrete_function(tf.ones([1])))
    # One worker's last batch has another shape: it traces once more.
    results["retraced"] = _arrays(step(tf.ones([2]) if index == 0 else 2 * tf.ones([1])))
    results["groups_of_step"] = len(functions._groups)
    results["doubles"] = _arrays(step(tf.ones([1]), tf.float64))  # Messages of the same names.
    results["loop"] = _arrays(loop())
    results["equal_names"] = _arrays(of_equal_names())
    results["refused"] = _error(checked, tf.constant(-1.0))
    results["checked"] = _arrays(checked(tf.constant(1.0)))
    del step, loop, of_equal_names, checked
    gc.collect()
    results |= _after_a_failure(strategy, held)
    return results


def _reduced(strategy: Any, values: list[tf.Tensor]) -> list[tf.Tensor]:
    """Sums values as optimizers do; TensorFlow never forgets a function with an `all_reduce`."""
    pairs = [(value, value) for value in values]
    sums: list[tf.Tensor] = strategy.extended.batch_reduce_to(_SUM, pairs)
    return sums


def _after_a_failure(strategy: Any, held: list[tf.Tensor]) -> dict[str, Any]:
    """An exchange fails on all workers: its error, a later call's, and a function made later."""
    functions = strategy.extended.collectives.functions

    def summed(function_name: str, values: tf.Tensor) -> Any:
        def of_replica() -> Any:
            return tf.distribute.get_replica_context().all_reduce(_SUM, values)

        def traced() -> Any:
            return strategy.run(of_replica)

        traced.__name__ = function_name
        return tf.function(traced)

    exchange = function_exchange._Group._exchange_each_step

    def fail(group: Any) -> None:
        raise ValueError("no exchange today")

    function_exchange._Group._exchange_each_step = fail
    failing = summed("failing", held[0])
    found = {"error": _error(failing), "groups_in_use": len(functions._groups)}
    function_exchange._Group._exchange_each_step = exchange
    found["later_call"] = _error(failing)
    later = summed("later", held[0])
    return found | {
        "later": _arrays([later()]),
        "later_ops": _ops(later.get_concrete_function()),
    }


def _error(function: Any, *arguments: Any) -> str:
    try:
        function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def _arrays(values: Any) -> list[np.ndarray]:
    return [value.numpy() for value in values]


def _ops(function: Any) -> dict[str, int]:
    return dict(Counter(op.type for op in function.graph.get_operations()))
