"""`ipu.distributed.host_collective_ops`: collectives between the instances, on the host.

Every instance must call them, in the same order; if one does not, the others wait. They work
eagerly and in a tf.function. In a run over gRPC make the strategy first in the program.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import tensorflow as tf

from tfdist.ipu.distributed.popdist_strategy import PopDistStrategy
from tfdist.strategies.placement import HOST
from tfdist.strategies.reductions.collectives import all_reduce, is_mean, sent_as
from tfdist.strategies.reductions.engine import Collectives


def allgather(value: Any, tensor_name: str | None = None) -> tf.Tensor:
    """Returns the values of all instances: [instances, ...], in the order of the instances.

    Args:
      value: A tensor of numbers; shape and dtype are equal on all instances.
      tensor_name: The name of the message; equal on all instances.
    """
    with tf.init_scope():
        collectives = _collectives()
    with tf.device(HOST):
        value = tf.convert_to_tensor(value)
        own = tf.cast(value[tf.newaxis], sent_as(value.dtype, None))  # [1, ...]
        gathered = collectives.gather(own, tensor_name or "allgather", same_rows=True)
        return tf.cast(gathered, value.dtype)


def allreduce(value: Any, reduce_op: Any, tensor_name: str | None = None) -> tf.Tensor:
    """Returns the sum or the mean over all instances; other arguments are as in `allgather`.

    Raises:
      ValueError: If `reduce_op` is not `tf.distribute.ReduceOp.SUM` or `MEAN`.
    """
    mean = is_mean(reduce_op)
    with tf.init_scope():
        collectives = _collectives()
    values = [tf.convert_to_tensor(value)]
    if collectives.num_workers == 1:
        return values[0]
    (total,), _ = all_reduce(collectives, values, mean=mean, name=tensor_name or "allreduce")
    return total


def broadcast(value: Any, root_rank: int = 0, tensor_name: str | None = None) -> tf.Tensor:
    """Returns one instance's value on every instance; other arguments are as in `allgather`.

    Raises:
      ValueError: If there is no instance of the index `root_rank`.
    """
    with tf.init_scope():
        number = _collectives().num_workers
    if root_rank not in range(number):
        raise ValueError(
            f"broadcast got root_rank={root_rank}, and this run has the instances 0 to "
            f"{number - 1}. Name one of these."
        )
    return allgather(value, tensor_name or "broadcast")[root_rank]


@cache
def _of_run() -> Any:
    """Returns a strategy with an engine that reaches the other instances."""
    strategy = PopDistStrategy()
    with strategy.scope():  # Joins the others.
        return strategy


def _collectives() -> Collectives:
    collectives: Collectives = _of_run().extended.collectives
    return collectives
