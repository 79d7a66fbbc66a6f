"""Stochastic rounding: to one of the two neighbours in half precision, and right on average."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.training.half_precision import HALVES

_is_enabled = True

# Bits of float32's fraction that the halves do not have.
_CUT_BITS = {tf.bfloat16: 16, tf.float16: 13}

# float16 below its smallest normal number: multiples of the smallest number above 0.
_SMALLEST_NORMAL = 2.0**-14
_SMALLEST_EXPONENT = 24

# The bits of float32: those without the sign, an infinity, and a NaN.
_MAGNITUDE = 0x7FFFFFFF
_INFINITY = 0x7F800000
_QUIET_NAN = 0x7FC00000


def stochastic_round(tensor: Any, dtype: Any, seed: Any, saturate: bool = True) -> tf.Tensor:
    """Rounds to half precision, up or down by chance, so that the mean of the results is the value.

    Croci et al., "Stochastic rounding: implementation, error analysis and applications", 2022,
    section 2: a value between two neighbours a < b becomes b with probability (x - a) / (b - a).
    Random bits are added below the cut, and the sum is cut off; values that half precision has stay
    as they are, as do NaN, infinities and signed zeros.

    The bits depend only on the seed and the shape: equal seeds give equal bits on every worker.
    Each pair of values shares one draw of 32 bits.

    Args:
      tensor: float32 of any shape; float16 and bfloat16 are taken as float32.
      dtype: `tf.float16` or `tf.bfloat16`.
      seed: An integer, or an integer tensor [2] as `tf.random.stateless_uniform` takes it.
      saturate: Whether finite values beyond the largest number of `dtype` become that number; else
        they become infinite.

    Returns:
      A tensor of `dtype` with the shape of `tensor`.

    Raises:
      TypeError: If `tensor` is not float32 or half.
      ValueError: If `dtype` is not a half.
    """
    dtype = tf.as_dtype(dtype)
    if dtype not in HALVES:
        raise ValueError(
            f"stochastic_round rounds to float16 or bfloat16, got {dtype.name}. For other types "
            "use tf.cast."
        )
    tensor = tf.convert_to_tensor(tensor)
    if tensor.dtype not in (tf.float32, *HALVES):
        raise TypeError(
            f"stochastic_round takes float32, got {tensor.dtype.name}. Write "
            "tf.cast(tensor, tf.float32)."
        )
    value = tf.cast(tensor, tf.float32)  # [...]
    seed = tf.convert_to_tensor([seed, 0] if isinstance(seed, int) else seed)
    drawn = _draw(value, seed)  # uint32, as value
    # Integers, since arithmetic on the CPU takes float32's smallest numbers for 0.
    bits = tf.bitcast(value, tf.int32)
    magnitude = tf.bitwise.bitwise_and(bits, _MAGNITUDE)
    # The lower neighbour plus, by chance, one unit: carries go into the exponent, rightly.
    cut = _CUT_BITS[dtype]
    noise = tf.bitwise.right_shift(drawn, tf.constant(32 - cut, tf.uint32))
    rounded = tf.bitwise.bitwise_and(magnitude + tf.bitcast(noise, tf.int32), -1 << cut)
    if dtype == tf.float16:
        is_small = tf.abs(value) < _SMALLEST_NORMAL
        rounded = tf.where(is_small, _round_small(value, drawn), rounded)
    if saturate:
        rounded = tf.minimum(rounded, _bits_of(dtype.max))
    # A NaN keeps a bit that is not cut off.
    special = tf.where(magnitude > _INFINITY, _QUIET_NAN, _INFINITY)
    rounded = tf.where(magnitude < _INFINITY, rounded, special)
    rounded = tf.bitwise.bitwise_or(rounded, tf.bitwise.bitwise_and(bits, ~_MAGNITUDE))
    if dtype == tf.float16:
        return tf.cast(tf.bitcast(rounded, tf.float32), dtype)
    upper = tf.bitwise.right_shift(tf.bitcast(rounded, tf.uint32), tf.constant(16, tf.uint32))
    return tf.bitcast(tf.cast(upper, tf.uint16), dtype)


def enable_stochastic_rounding(enabled: bool) -> None:
    """Switches stochastic rounding for this process, for the updates built from now on."""
    global _is_enabled
    _is_enabled = enabled


@contextmanager
def stochastic_rounding(enabled: bool | None) -> Iterator[None]:
    """Switches stochastic rounding for the updates built in the block; None leaves it."""
    before = _is_enabled
    enable_stochastic_rounding(before if enabled is None else enabled)
    try:
        yield
    finally:
        enable_stochastic_rounding(before)


def is_stochastic_rounding_enabled() -> bool:
    """Returns whether optimizers may round weights stochastically."""
    return _is_enabled


def _bits_of(number: Any) -> int:
    return int(np.float32(number).view(np.int32))


def _draw(value: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns 32 random bits for each value, uint32 of its shape.

    Two values have the halves of one draw, one in this order and one in the other. Of each only
    the upper half matters, except for float16 values far below its smallest number.
    """
    number = tf.size(value)
    pairs = (number + 1) // 2
    drawn = tf.random.stateless_uniform(
        [pairs], seed, minval=None, maxval=None, dtype=tf.uint32, alg="philox"
    )
    sixteen = tf.constant(16, tf.uint32)
    other = tf.bitwise.bitwise_or(
        tf.bitwise.left_shift(drawn, sixteen), tf.bitwise.right_shift(drawn, sixteen)
    )
    both = tf.concat([drawn, other], axis=0)  # [2 pairs]
    return tf.reshape(both[:number], tf.shape(value))


def _round_small(value: tf.Tensor, drawn: tf.Tensor) -> tf.Tensor:
    """Returns magnitudes rounded to multiples of float16's smallest number, as bits, int32.

    They are below its smallest normal number.
    """
    units = tf.abs(value) * 2.0**_SMALLEST_EXPONENT  # Exact: a power of two.
    whole = tf.floor(units)
    # The fraction as 32 bits: compared with 32 random ones, it is right to 2^-32.
    threshold = tf.cast((units - whole) * 2.0**32, tf.uint32)
    whole += tf.cast(drawn < threshold, tf.float32)
    return tf.bitcast(whole * 2.0**-_SMALLEST_EXPONENT, tf.int32)
