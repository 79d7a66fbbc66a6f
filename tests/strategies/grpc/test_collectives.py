"""The messages of the collectives over gRPC, as one worker builds them."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.grpc.collectives import GrpcCollectives


def test_tensors_of_a_message_come_back_in_place_and_those_of_aligned_sizes_stand_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = [np.full(shape, i, np.float32) for i, shape in enumerate([(7,), (4, 8), (), (16, 3)])]
    sent: list[tf.Tensor] = []

    def reduce(flat: tf.Tensor, name: str) -> tf.Tensor:
        sent.append(flat)
        return flat

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        collectives = GrpcCollectives(3, 0)
        monkeypatch.setattr(collectives, "_reduce", reduce)
        # One has a shape that only the step knows.
        shapes = [value.shape or None for value in values]
        fed = [tf.compat.v1.placeholder(tf.float32, shape) for shape in shapes]
        got = collectives.sum(fed, "sum")
        feed = dict(zip(fed, values, strict=True))
        flat, *results = session.run([*sent, *got], feed)
    for value, result in zip(values, results, strict=True):
        assert np.array_equal(result, value)
    # A slice shares the sum's memory only where it begins and ends at multiples of 16 elements.
    assert flat.tolist() == [1.0] * 32 + [3.0] * 48 + [0.0] * 7 + [2.0]
