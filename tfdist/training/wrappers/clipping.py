"""ClippedOptimizer: the norm of the whole batch's gradient is limited."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.cluster.arguments import check_number
from tfdist.strategies.reductions.slices import add_equal_rows, scaled
from tfdist.training.norms import global_norm
from tfdist.training.wrappers.optimizer_wrapper import OptimizerWrapper, Pairs


class ClippedOptimizer(OptimizerWrapper):
    """An optimizer that gets the reduced gradient clipped by its global norm.

    Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks", 2013,
    algorithm 1, over all gradients g_i (of any shapes) as one vector:

        g_i' = g_i min(1, global_norm / sqrt(sum_i |g_i|^2))

    Clipping inside the model, before the reduction, clips each worker's own gradient: the result
    then depends on the number of workers. Here it does not, and the factor is bit-equal on all
    workers. A norm that is not finite makes the gradient NaN, as `tf.clip_by_global_norm` does.

    Examples:
      >>> weight = tf.Variable([3.0, 4.0])
      >>> optimizer = training.ClippedOptimizer(training.SGD(1.0), global_norm=1.0)
      >>> optimizer.apply_gradients([(tf.constant([0.0, 70.0]), weight)])
      >>> weight.numpy()
      array([3., 3.], dtype=float32)

    Args:
      optimizer: A v1 optimizer or one of tf_keras.
      global_norm: The largest norm of the gradient.

    Raises:
      TypeError: If `optimizer` has no `apply_gradients`.
      ValueError: If the norm is not a finite number above 0, or wrappers are in a wrong order.
    """

    def __init__(self, optimizer: Any, global_norm: float = 1.0) -> None:
        super().__init__(optimizer)
        self._limit = check_number("global_norm", global_norm, above=0)

    def _update(self, reduced: Pairs) -> Any:
        gradients = [  # Each row stands once, since a norm counts rows.
            add_equal_rows(g) if isinstance(g, tf.IndexedSlices) else tf.convert_to_tensor(g)
            for g, _ in reduced
        ]
        total = global_norm(gradients)  # []
        factor = self._limit / tf.maximum(total, self._limit)
        factor = tf.where(tf.math.is_finite(total), factor, float("nan"))
        clipped = [scaled(gradient, factor) for gradient in gradients]
        return self.apply_reduced(list(zip(clipped, (v for _, v in reduced), strict=True)))
