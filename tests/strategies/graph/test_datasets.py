"""Distributed datasets of graphs with sessions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies import LocalStrategy

Distribute = Callable[[Any, tf.data.Dataset], Any]
WAYS: dict[str, Distribute] = {
    "dataset": lambda strategy, dataset: strategy.experimental_distribute_dataset(dataset),
    "function": lambda strategy, dataset: strategy.distribute_datasets_from_function(
        lambda context: dataset
    ),
}


def _aligned(values: np.ndarray) -> np.ndarray:
    """Returns a copy at an address whose memory TensorFlow takes for a tensor."""
    memory = np.zeros(values.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[:] = values
    return copy


@pytest.mark.parametrize("way", WAYS)
def test_the_arrays_of_a_generator_stay_as_they_are_where_the_dataset_divides_them(
    way: str,
) -> None:
    # Whether TensorFlow computes in place differs from one to the next.
    arrays = [_aligned(np.full([4, 16], number, np.float32)) for number in range(20)]
    with tf.Graph().as_default():
        dataset = tf.data.Dataset.from_generator(
            lambda: arrays, output_signature=tf.TensorSpec([None, 16], tf.float32)
        )
        strategy = LocalStrategy()
        with strategy.scope():
            iterator = v1.data.make_initializable_iterator(WAYS[way](strategy, dataset.rebatch(2)))
            is_read = strategy.run(lambda x: tf.reduce_sum(1.0 - x), args=(iterator.get_next(),))
            devices = v1.ConfigProto(device_count={"CPU": 2})  # Host and device.
            with v1.Session(config=devices) as session:
                session.run(iterator.initializer)
                for _ in range(2 * len(arrays)):
                    session.run(is_read)
    assert [array.max() for array in arrays] == [array.min() for array in arrays] == [*range(20)]
