"""Gradients and weights in half precision: float32 before anything is added, and who may update."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdist.strategies.placement import HOST
from tfdist.strategies.reductions.slices import on_values
from tfdist.training.name_patterns import name_of

HALVES = (tf.float16, tf.bfloat16)

_STOCK = ("keras", "tensorflow", "tf_keras")


def is_half(value: Any) -> bool:
    """Returns whether a tensor, variable or `tf.IndexedSlices` is in half precision."""
    return value.dtype.base_dtype in HALVES


def computed_in(variable: Any) -> tf.DType:
    """Returns the dtype of a variable's slots and arithmetic."""
    return tf.float64 if variable.dtype.base_dtype == tf.float64 else tf.float32


def in_float32(gradient: Any) -> Any:
    """Returns a gradient, tensor or slices or None, in float32 if it is in half precision.

    The cast is on the host, so that half the bytes are copied to it.
    """

    def cast(value: Any) -> tf.Tensor:
        tensor = tf.convert_to_tensor(value)
        if not is_half(tensor):
            return tensor
        with tf.device(HOST):
            return tf.cast(tensor, tf.float32)

    return None if gradient is None else on_values(cast, gradient)


def cast_from_host(value: tf.Tensor, dtype: tf.DType, device: str) -> tf.Tensor:
    """Casts a weight's float32 value to a half on its device, so that half the bytes are copied.

    The gradient arrives on the host in half precision and becomes float32 there.
    """

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def cast(value: tf.Tensor) -> Any:
        return tf.cast(value, dtype), in_float32

    with tf.device(device):
        return cast(value)


def before_cast(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the tensor in half precision that a float32 tensor was made from, if it was."""
    is_cast = tensor.op.type == "Cast" and tensor.dtype == tf.float32
    return tensor.op.inputs[0] if is_cast and is_half(tensor.op.inputs[0]) else tensor


def refuse_stock_on_halves(optimizer: Any, variables: Iterable[Any]) -> None:
    """Raises a ValueError if an optimizer of TensorFlow or Keras would update half weights."""
    if type(optimizer).__module__.partition(".")[0] not in _STOCK:
        return
    for variable in variables:
        if is_half(variable):
            raise ValueError(stock_on_halves(type(optimizer).__name__, name_of(variable), variable))


def stock_on_halves(optimizer: str, variable: str, half: Any) -> str:
    """Returns the message about an optimizer that computes in the dtype of half weights."""
    dtype = half.dtype.base_dtype.name
    return (
        f"{optimizer} would update {variable} in {dtype}, where its slots and small updates are "
        "lost. Use LAMB, LARS, AdamW or SGD of tfdist.training, which compute in float32, or make "
        f"the variable in float32 and cast its value to {dtype}."
    )
