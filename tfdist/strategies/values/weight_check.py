"""The check that all workers still have the same weights, before each checkpoint and at the end.

Gradients are reduced, and every worker applies the same update. A hook, an op that runs on one
worker only, or faulty memory can still change one worker's weights. Then each worker trains a model
of its own, and no loss shows it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.environment import WEIGHT_CHECK, read_weight_check
from tfdist.process.endings import OneLineError
from tfdist.process.progress_file import in_phase
from tfdist.strategies.placement import HOST
from tfdist.strategies.reductions.division import division_of
from tfdist.strategies.reductions.engine import Collectives

_BYTES = 8  # of a sum


class WeightsDifferError(OneLineError, RuntimeError):
    """The workers have trained different weights. No worker saves them."""

    exit_code: ClassVar[int] = 1  # A new start goes back to the last checkpoint.


class WeightCheck:
    """Compares a sum over the bits of each trainable variable between the workers.

    Every worker makes it in cross-replica context, with the same variables.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._names: list[str] = []
        variables = v1.trainable_variables() if read_weight_check(os.environ) else []
        variables = [v for v in variables if division_of(v) is None]
        if variables:
            self._names = [variable.op.name for variable in variables]
            with tf.name_scope("weight_check"):
                sums = [sum_of_bits(variable) for variable in variables]  # each []
                with tf.device(HOST):
                    self._sums = strategy.extended.collectives.gather(
                        tf.stack(sums)[tf.newaxis], "weight_sums", same_rows=True
                    )  # int64 [workers, variables]

    def __call__(self, session: v1.Session, step: int) -> None:
        """Compares the weights after `step`. A collective.

        Raises:
          WeightsDifferError: On every worker, if those of a worker differ from the others'.
        """
        if self._names:
            with in_phase("waiting"):
                sums = session.run(self._sums)
            refuse_differences(sums, self._names, f"After step {step}")


def check_eager_weights(variables: Sequence[tf.Variable], collectives: Collectives) -> None:
    """Compares variables of TensorFlow 2 between the workers. A collective.

    Raises:
      WeightsDifferError: On every worker, if those of a worker differ from the others'.
    """
    if not variables or not read_weight_check(os.environ):
        return
    with tf.device(HOST):
        own = tf.stack([sum_of_bits(v) for v in variables])[tf.newaxis]  # [1, variables]
        sums = collectives.gather(own, "weight_sums", same_rows=True).numpy()
    refuse_differences(sums, [v.name for v in variables], "At the end of an epoch")


def refuse_differences(sums: np.ndarray, names: Sequence[str], when: str) -> None:
    """Refuses sums, int64 [workers, variables], that are not equal, by the first that differs."""
    for name, of_workers in zip(names, sums.T.tolist(), strict=True):
        usual, count = Counter(of_workers).most_common(1)[0]
        if count < len(of_workers):
            others = [str(i) for i, one in enumerate(of_workers) if one != usual]
            raise WeightsDifferError(
                f"{when} the weights of worker {' and '.join(others)} are not those of "
                f"worker {of_workers.index(usual)}, first in {name}. They are not saved. Look for "
                "a hook or an op that changes a variable on some workers only. Processors of "
                f"different makers may round differently: then set {WEIGHT_CHECK}=0."
            )


def sum_of_bits(variable: Any) -> tf.Tensor:
    """Returns the sum of a variable's bits, int64 scalar, taken as integers of 64 bits.

    It may overflow. It is computed where the variable is, and needs half a variable's memory at the
    most.
    """
    with tf.device(variable.device):
        value = variable.read_value()
        if value.dtype == tf.bool:
            value = tf.cast(value, tf.uint8)
        per_word = max(1, _BYTES // value.dtype.size)
        # Numbers rather than tensors where the shape is known: fewer ops.
        size = value.shape.num_elements()
        size = tf.size(value) if size is None else size
        rest = size % per_word
        if isinstance(rest, int) and not rest:
            return _sum_of_words(value, per_word)
        flat = tf.reshape(value, [-1])  # [size]
        last = tf.pad(flat[size - rest :], [[0, per_word - rest]])  # [per_word]
        return _sum_of_words(flat[: size - rest], per_word) + _sum_of_words(last, per_word)


def _sum_of_words(value: tf.Tensor, per_word: int) -> tf.Tensor:
    """Returns the sum of a tensor's bits, int64 scalar; so many elements have 64 bits."""
    if per_word > 1:
        value = tf.reshape(value, [-1, per_word])
    return tf.reduce_sum(tf.bitcast(value, tf.int64))
