"""`tfdist` alone, on input of several kinds: samples of the CNN's, 64 in a batch.

python input_loop.py KIND CORES

KIND is "one-batch" (the same one, again and again), "memory" (arrays, shuffled and batched again in
each epoch), "generator" (a Python generator of one sample at a time, shuffled, kept and batched as
in the multi-worker MNIST example) or "endless-generator" (the generator does not end: every step
waits for its 64 samples). CORES is "one" or "all" of the benchmark's.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import turns
import work as works

NUM_SAMPLES = 2560  # an epoch of 40 steps


def main() -> None:
    kind, cores = sys.argv[1:]
    if cores == "all":
        os.sched_setaffinity(0, set(map(int, os.environ[turns.CORES_VARIABLE].split(","))))
    else:
        turns.pin_to_own_core(0)
    import estimators
    import tensorflow as tf

    import tfdist.estimator as tfe

    random = np.random.default_rng(0)
    shape = works.WORKS[works.CNN].feature_shape
    images = random.random((NUM_SAMPLES, *shape), np.float32)
    labels = random.integers(0, works.NUM_CLASSES, NUM_SAMPLES)

    def generator() -> Iterator[tuple[Any, Any]]:
        return zip(images, labels, strict=True)

    def endless_generator() -> Iterator[tuple[Any, Any]]:
        return itertools.cycle(zip(images, labels, strict=True))

    def generated(samples: Callable[[], Iterator[tuple[Any, Any]]]) -> tf.data.Dataset:
        signature = tuple(tf.TensorSpec(array.shape[1:], array.dtype) for array in (images, labels))
        return tf.data.Dataset.from_generator(samples, output_signature=signature)

    def batched(dataset: tf.data.Dataset) -> tf.data.Dataset:
        return dataset.batch(works.BATCH_SIZE, drop_remainder=True).repeat()

    def in_memory() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((images, labels))

    inputs = {
        "one-batch": lambda: estimators.make_dataset(works.CNN),
        "memory": lambda: batched(in_memory().shuffle(NUM_SAMPLES)),
        "generator": lambda: batched(generated(generator).shuffle(NUM_SAMPLES).cache()),
        "endless-generator": lambda: batched(generated(endless_generator)),
    }
    with tempfile.TemporaryDirectory() as folder:
        estimator = tfe.Estimator(estimators.make_model_fn(works.CNN), folder)
        estimator.train(inputs[kind], hooks=[estimators.TakeTurns()])


if __name__ == "__main__":
    main()
