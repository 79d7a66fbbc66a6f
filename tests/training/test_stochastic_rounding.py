"""Stochastic rounding gives neighbours only, and is right on average; special values stay."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.training import stochastic_round

HALVES = [tf.float16, tf.bfloat16]
DRAWS = 1_000_000


def _neighbours(value: float, dtype: tf.DType) -> tuple[float, float]:
    """Returns the values of a half on both sides of one that it does not have."""
    near = np.asarray(value, dtype.as_numpy_dtype)
    other = int(near.view(np.uint16)) + (1 if abs(float(near)) < abs(value) else -1)
    other = np.asarray(other, np.uint16).view(near.dtype)
    low, high = sorted([float(near), float(other)])
    return low, high


@pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    "value", [1.0022, 3.3333, 1e-3, 2e-5, 1.3e-7, 2e-9, 1e-39, 777.77, 65503.0]
)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_mean_of_a_million_draws_is_the_value(dtype: tf.DType, value: float, sign: int) -> None:
    value = float(np.float32(sign * value))
    rounded = stochastic_round(tf.fill([DRAWS], value), dtype, seed=1)
    assert rounded.dtype == dtype
    low, high = _neighbours(value, dtype)
    values = np.asarray(rounded).astype(np.float64)
    assert set(np.unique(values)) <= {low, high}
    share = (value - low) / (high - low)
    error = np.sqrt(share * (1 - share) / DRAWS)
    assert abs(np.mean(values == high) - share) <= max(4 * error, 2 / DRAWS)


@pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.name)
def test_values_that_the_half_has_stay_as_they_are(dtype: tf.DType) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)  # All of them, of both signs.
    values = bits.view(dtype.as_numpy_dtype)
    rounded = np.asarray(stochastic_round(values.astype(np.float32), dtype, seed=3))
    is_nan = np.isnan(values.astype(np.float32))
    np.testing.assert_array_equal(rounded.view(np.uint16)[~is_nan], bits[~is_nan])
    assert np.isnan(rounded[is_nan].astype(np.float32)).all()
    assert np.array_equal(rounded.view(np.uint16)[is_nan] >> 15, bits[is_nan] >> 15)


def test_a_nan_whose_upper_bits_are_those_of_infinity_stays_one() -> None:
    value = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    for dtype in HALVES:
        assert np.isnan(np.asarray(stochastic_round(value, dtype, 0)).astype(np.float32)).all()


@pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: dtype.name)
def test_values_beyond_the_largest_saturate_or_become_infinite(dtype: tf.DType) -> None:
    largest = np.float32(dtype.max)
    beyond = largest * np.float32(1 + 2.0 ** (-12 if dtype == tf.float16 else -9))
    values = np.tile([beyond, -beyond, np.finfo(np.float32).max], 10_000)
    saturated = np.asarray(stochastic_round(values, dtype, seed=5)).astype(np.float32)
    np.testing.assert_array_equal(saturated, np.tile([largest, -largest, largest], 10_000))
    infinite = np.asarray(stochastic_round(values, dtype, 5, saturate=False)).astype(np.float32)
    assert set(infinite[0::3]) == {largest, np.inf}
    assert set(infinite[1::3]) == {-largest, -np.inf}


def test_bits_depend_on_the_seed_alone() -> None:
    values = tf.constant(np.random.default_rng(0).normal(size=(7, 11)), tf.float32)

    def bits(seed: Any) -> Any:
        return np.asarray(tf.bitcast(stochastic_round(values, tf.bfloat16, seed), tf.uint16))

    np.testing.assert_array_equal(bits(1), bits(tf.constant([1, 0])))
    assert (bits(1) != bits(2)).any()
    assert (bits(tf.constant([1, 0])) != bits(tf.constant([1, 1]))).any()


def test_the_two_values_of_a_draw_are_rounded_independently() -> None:
    for dtype in HALVES:
        rounded = stochastic_round(tf.fill([DRAWS], 1.0 + 2.0**-12), dtype, seed=2)
        is_up = np.asarray(rounded).astype(np.float32) > 1
        first, second = is_up[: DRAWS // 2], is_up[DRAWS // 2 :]
        assert abs(np.corrcoef(first, second)[0, 1]) < 4 / np.sqrt(DRAWS / 2)


def test_an_odd_number_of_values_and_none_are_rounded() -> None:
    for shape in ([], [0], [3], [2, 0, 3]):
        assert stochastic_round(tf.ones(shape), tf.bfloat16, 1).shape == shape


def test_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match=r"to float16 or bfloat16, got float32\. .* use tf\.cast"):
        stochastic_round(tf.ones([2]), tf.float32, 1)
    with pytest.raises(TypeError, match=r"takes float32, got float64\. Write tf\.cast"):
        stochastic_round(tf.ones([2], tf.float64), tf.float16, 1)
