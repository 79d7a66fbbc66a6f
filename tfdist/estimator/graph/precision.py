"""The precision in which a model_fn computes: layers, weights, and their casts.

With weights in float32 and half precision for the rest:

    host                                            device

    weight (float32) --> half, once a step  ----->  each read of model_fn
                                                    forward, backward
    float32  <------------------------------------  gradient (half)
    accumulated replicas, reduction, update

Micro-batches are added up in float32 on the device, by `gradient_accumulation` and by a pipeline:
then the sum crosses once a step, in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.private_keras import (
    is_in_layer,
    layers_compute_in,
    policy_of_keras_3,
    read_in_half,
)
from tfdist.strategies.placement import must_wait
from tfdist.strategies.private_tensorflow import (
    is_in_loop_or_branch,
    is_recorded_by_tape,
    read_on_tape,
)
from tfdist.training.half_precision import HALVES, cast_from_host, in_float32, is_half
from tfdist.training.layers.graph_slices import keep_for_backward
from tfdist.training.precision import Precision


class WeightCasts:
    """The casts of float32 weights to half precision: one for each weight in a step.

    Made in the graph in which a model_fn is called, which is the body of a loop of steps. The
    weights are cast on their device; None casts on the current one.

    Attributes:
      dtype: The half.
      are_on: Whether the model is being built.
      are_in_stages: Whether the stages of a pipeline read.
      has_cast: Whether a weight has been read in half precision.
    """

    def __init__(self, dtype: tf.DType, device: str | None) -> None:
        self.dtype = dtype
        self.are_on = self.are_in_stages = False
        self._device = device
        self._graph = v1.get_default_graph()
        self._casts: dict[Any, tf.Tensor] = {}
        self._widened: dict[Any, tf.Tensor | None] = {}
        self.has_cast = False

    def dense(self, variable: tf.Variable, dtype: tf.DType) -> tf.Tensor:
        """Returns a weight in half precision, on the current device.

        The gradients of several reads are added in float32 on the device, and cross in half.
        """
        self.has_cast = True
        if self.are_in_stages:
            return self._in_stage(variable, dtype)
        if must_wait() or is_in_loop_or_branch(self._graph):
            # Behind the ops that the read waits for, or inside the loop: a cast of its own.
            return self._cast(variable.read_value(), dtype)
        is_in_step = v1.get_default_graph() is self._graph
        is_recorded = is_recorded_by_tape()
        if is_recorded and not is_in_step:
            return tf.cast(variable.read_value(), dtype)
        half = self._once(variable, dtype)
        with self._graph.as_default():
            read = tf.identity(half)  # On the device of this replica.
            if is_recorded:
                return read_on_tape(variable, half, read.device, in_float32)
            key = (variable.ref(), dtype, read.device)
            if key not in self._widened and is_in_step:
                self._widened[key] = None
                return read
            if self._widened.get(key) is None:
                self._widened[key] = tf.cast(half, tf.float32)
        return tf.cast(self._widened[key], dtype)

    def rows(self, rows: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Returns rows of a weight, which are on the host, in half precision."""
        self.has_cast = True
        return tf.cast(rows, dtype) if self.are_in_stages else self._cast(rows, dtype)

    def _in_stage(self, variable: tf.Variable, dtype: tf.DType) -> tf.Tensor:
        """Returns a cast for this read alone. All of them become one when the stages are cut."""
        if v1.get_default_graph() is self._graph or is_recorded_by_tape():
            return keep_for_backward(tf.cast(variable.value(), dtype))
        with self._graph.as_default():  # Around a loop of the stage, which adds in float32.
            widened = tf.cast(self._in_stage(variable, dtype), tf.float32)
        return tf.cast(widened, dtype)

    def _cast(self, value: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        if self._device is None:
            return tf.cast(value, dtype)
        return cast_from_host(value, dtype, self._device)

    def _once(self, variable: tf.Variable, dtype: tf.DType) -> tf.Tensor:
        key = (variable.ref(), dtype)
        if key not in self._casts:
            with (
                self._graph.as_default(),
                self._graph.colocate_with(None, ignore_existing=True),
                nullcontext() if self._device is None else tf.device(self._device),
            ):
                half = self._cast(variable.read_value(), dtype)
                # A function of recompute does not fetch it again.
                self._casts[key] = keep_for_backward(half)
        return self._casts[key]


class ModelPrecision:
    """The precision of one model, around the calls of its model_fn.

    Its weights are cast on their device; None for a model that is not trained, whose weights are
    cast on its own device.
    """

    def __init__(self, precision: Precision, device: str | None) -> None:
        self._precision = precision
        self._casts = WeightCasts(precision.compute, device)

    @contextmanager
    def around_model(self) -> Iterator[None]:
        """Sets the policy of tf_keras' layers in the `with` block, for all replicas.

        With float32 the policy is the program's own.
        """
        if self._precision.is_float32:
            yield
            return
        self._casts.are_on = True
        try:
            with layers_compute_in(self._precision.name, self._casts):
                yield
        finally:
            self._casts.are_on = False

    def call(self, model_fn: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a model_fn with a `get_variable` that follows the precision."""
        if self._precision.is_float32:
            return model_fn(*arguments)
        getter = self._half_weight if self._precision.has_half_weights else self._read_in_half
        scope = v1.get_variable_scope()
        with v1.variable_scope(scope, custom_getter=getter, auxiliary_name_scope=False):
            return model_fn(*arguments)

    def call_pipeline(self, pipeline_fn: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function that builds a pipeline for training, as `call` calls a model_fn.

        The pipeline casts each weight, once a step for all micro-batches and replicas.
        """
        self._casts.are_in_stages = True
        return self.call(pipeline_fn, *arguments)

    def check(self) -> None:
        """Raises a ValueError if the weights of a model to train know nothing of the precision."""
        precision, weights = self._precision, v1.trainable_variables()
        if precision.is_float32 or not weights or self._casts.has_cast:
            return
        if any(is_half(weight) for weight in weights):
            return
        if policy_of_keras_3() == precision.name:
            return
        raise ValueError(
            f"precision is {precision.name}, and no weight of model_fn follows it. Use layers "
            "of tf_keras without dtype, or cast the features in front of tf.compat.v1.layers and "
            f"get_variable: tf.cast(features, tf.{precision.compute.name}). For layers of Keras 3 "
            f'call keras.mixed_precision.set_global_policy("{precision.name}") before.'
        )

    def _read_in_half(self, getter: Callable[..., tf.Variable], name: str, **given: object) -> Any:
        """Gets a variable; a weight is kept in float32, and read in half precision."""
        dtype = tf.as_dtype(given.get("dtype") or tf.float32)
        if not _is_weight(dtype, given) or (is_in_layer() and dtype not in HALVES):
            return getter(name, **given)
        initializer = given.get("initializer")
        if tf.is_tensor(initializer) and is_half(initializer):
            given["initializer"] = tf.cast(initializer, tf.float32)
        given.update(dtype=tf.float32, use_resource=True)
        weight = getter(name, **given)
        return read_in_half(weight, self._casts) if isinstance(weight, tf.Variable) else weight

    def _half_weight(self, getter: Callable[..., tf.Variable], name: str, **given: object) -> Any:
        dtype = tf.as_dtype(given.get("dtype") or tf.float32)
        if not _is_weight(dtype, given) or is_in_layer():
            return getter(name, **given)
        initializer = given.get("initializer")
        if tf.is_tensor(initializer):
            given["initializer"] = tf.cast(initializer, self._precision.weights)
        return getter(name, **{**given, "dtype": self._precision.weights})


def _is_weight(dtype: tf.DType, given: dict[str, Any]) -> bool:
    on_read = given.get("synchronization") == tf.VariableSynchronization.ON_READ
    is_trained = given.get("trainable") is not False and not on_read
    return is_trained and dtype in (tf.float32, *HALVES)
