"""The sums over the bits of weights, and the line about the first that differ."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster import ClusterError
from tfdist.cluster.environment import read_weight_check
from tfdist.strategies.values.weight_check import (
    WeightsDifferError,
    refuse_differences,
    sum_of_bits,
)


def _sum(values: Any, dtype: tf.DType) -> int:
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("variable", initializer=tf.cast(values, dtype))
        total = sum_of_bits(variable)
        session.run(v1.global_variables_initializer())
        return int(session.run(total))


@pytest.mark.parametrize(
    "dtype",
    [tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int32, tf.int64, tf.uint8, tf.bool],
)
@pytest.mark.parametrize("size", [0, 1, 7, 16])
def test_the_sum_is_that_of_the_bits(dtype: tf.DType, size: int) -> None:
    values = np.arange(size) % 3
    data = values.astype(np.uint8 if dtype == tf.bool else dtype.as_numpy_dtype)
    if dtype == tf.bool:
        data = data.astype(bool)
    content = data.tobytes()
    words = np.frombuffer(content + bytes(-len(content) % 8), np.int64)
    assert _sum(values, dtype) == int(np.sum(words))


def test_one_flipped_bit_changes_the_sum() -> None:
    values = np.linspace(0, 1, 1001, dtype=np.float32)
    before = _sum(values, tf.float32)
    values.view(np.int32)[500] ^= 1
    assert _sum(values, tf.float32) != before


@pytest.mark.parametrize(
    ("sums", "said"),
    [
        ([[1, 2], [1, 3]], "worker 1 are not those of worker 0, first in b. "),
        ([[1, 2], [4, 2], [1, 3]], "worker 1 are not those of worker 0, first in a. "),
        ([[9, 2], [1, 2], [1, 2]], "worker 0 are not those of worker 1, first in a. "),
        (
            [[1, 2], [5, 2], [1, 2], [6, 2]],
            "worker 1 and 3 are not those of worker 0, first in a. ",
        ),
    ],
)
def test_the_workers_that_differ_from_most_are_named(sums: Any, said: str) -> None:
    refuse_differences(np.array([sums[0]] * len(sums)), ["a", "b"], "After step 30")
    line = f"^After step 30 the weights of {said}They are not saved\\."
    with pytest.raises(WeightsDifferError, match=line):
        refuse_differences(np.array(sums), ["a", "b"], "After step 30")


def test_only_0_and_1_switch_the_check() -> None:
    assert read_weight_check({})
    assert not read_weight_check({"TFDIST_WEIGHT_CHECK": "0"})
    with pytest.raises(ClusterError, match='TFDIST_WEIGHT_CHECK is "off": 0 and 1 are allowed'):
        read_weight_check({"TFDIST_WEIGHT_CHECK": "off"})


def test_a_sum_has_few_ops_and_also_needs_no_known_shape() -> None:
    # The check was a fourth of ResNet-20's graph over gRPC, which has several copies in memory.
    with tf.Graph().as_default() as graph:
        variable = v1.get_variable("variable", [3, 4])
        before = len(graph.get_operations())
        sum_of_bits(variable)
        assert len(graph.get_operations()) - before < 10
    with tf.Graph().as_default(), v1.Session() as session:
        value = v1.placeholder_with_default(tf.constant([1.0, 0.0, 1.0]), [None])
        unknown = v1.get_variable("unknown", initializer=value, validate_shape=False)
        total = sum_of_bits(unknown)
        session.run(v1.global_variables_initializer())
        assert session.run(total) == 2 * int(np.float32(1).view(np.int32))
