"""`ipu.optimizers.cross_replica_optimizer`: the mean of the gradients over all replicas."""

from __future__ import annotations

from typing import Any

from tfdist import training


class CrossReplicaOptimizer(training.DistributedOptimizer):
    """`tfdist.training.DistributedOptimizer`: the mean of the gradients over all replicas.

    As everywhere in tfdist the gradients are those of `compute_gradients`, or of a loss that was
    divided by the number of replicas: their sum is the gradient of the mean loss. `opt` is the
    optimizer, and `name` has no effect.
    """

    def __init__(self, opt: Any, name: str = "CrossReplicaOptimizer") -> None:
        super().__init__(opt)
