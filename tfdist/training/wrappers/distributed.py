"""DistributedOptimizer: a reduction in front of an optimizer that has none."""

from __future__ import annotations

from typing import Any

from tfdist.training.wrappers.optimizer_wrapper import OptimizerWrapper, Pairs


class DistributedOptimizer(OptimizerWrapper):
    """An optimizer that gets reduced gradients, for one that never reduces.

    Optimizers of `tf.compat.v1.train` and tf_keras reduce by themselves. One whose own
    `apply_gradients` assigns to the variables, as the AdamWeightDecayOptimizer of several BERT
    programs, trains a different model on each worker; with this wrapper it trains one.

    Gradients are summed over replicas and workers, as other optimizers sum them: take them from
    `compute_gradients`, which divides the loss by the number of replicas, or divide it yourself.

    Examples:
      >>> class PlainDescent:
      ...     def apply_gradients(self, pairs):
      ...         return tf.group(*(weight.assign_sub(gradient) for gradient, weight in pairs))
      >>> weight = tf.Variable([3.0, 4.0])
      >>> optimizer = training.DistributedOptimizer(PlainDescent())
      >>> optimizer.apply_gradients([(tf.constant([1.0, 0.0]), weight)])
      >>> weight.numpy()
      array([2., 4.], dtype=float32)

    Args:
      optimizer: An object with `apply_gradients(grads_and_vars)`.

    Raises:
      TypeError: If `optimizer` has no `apply_gradients`.
      ValueError: If wrappers are in a wrong order.
    """

    def _update(self, reduced: Pairs) -> Any:
        return self.apply_reduced(reduced)
