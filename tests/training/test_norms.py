"""Norms are right for every shape, and the same bits with any number of threads."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.training.norms import global_norm, norm


@pytest.mark.parametrize("shape", [(), (0,), (3,), (4096,), (4097,), (100, 100), (9000, 7)])
def test_a_norm_is_that_of_numpy(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).normal(size=shape)
    assert float(norm(tf.constant(values, tf.float32))) == pytest.approx(
        np.linalg.norm(values), rel=1e-6
    )


def test_a_global_norm_takes_slices_and_halves() -> None:
    half = tf.constant([3.0, 0.0], tf.bfloat16)
    slices = tf.IndexedSlices(tf.constant([[4.0], [12.0]]), tf.constant([7, 1]))
    total = global_norm([half, slices])
    assert total.dtype == tf.float32
    assert float(total) == pytest.approx(13.0)


def test_the_bits_do_not_depend_on_the_number_of_threads(fake_cluster: Any) -> None:
    def norms_with_threads() -> list[tuple[float, ...]]:
        import os

        import numpy as np
        import tensorflow as tf
        import tensorflow.compat.v1 as v1

        from tfdist.training.norms import norm

        # Otherwise all sessions of a process share the threads of its first one.
        os.environ["TF_OVERRIDE_GLOBAL_THREADPOOL"] = "1"
        values = np.random.default_rng(0).normal(size=3_000_001).astype(np.float32)
        results = []
        for threads in (1, 2, 3, 5):
            config = v1.ConfigProto(intra_op_parallelism_threads=threads)
            with tf.Graph().as_default(), v1.Session(config=config) as session:
                fed = v1.placeholder(tf.float32, values.shape)
                of_any_size = v1.placeholder_with_default(fed, [None])
                norms = [norm(fed), norm(of_any_size), tf.reduce_sum(tf.square(fed))]
                results.append(tuple(session.run(norms, {fed: values})))
        return results

    results = fake_cluster.run(norms_with_threads, engine="none", num_workers=1)[0]
    own, of_any_size, plain = (set(one) for one in zip(*results, strict=True))
    assert len(own) == 1
    assert of_any_size == own
    assert len(plain) > 1  # What a plain reduction does.
