"""How many batches a training has taken in: counted in the graph, readable while a step hangs."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.estimator.batches import Batch
from tfdist.strategies.placement import HOST


class InputCounter:
    """Counts batches, and the examples in them, on the host.

    Its ops come after the model's: the graph's random seeds depend on how many ops came before. It
    is no `tf.Variable`: strategies, savers and initialisers take no notice of it. It costs some
    microseconds a step.

    Args:
      in_micro_batches: Whether a batch is [micro-batches, batch, ...], a pipeline's.

    Attributes:
      examples_per_batch: Their number where the input's shape says so; None if it does not.
      counts: int64, [batches, examples].
      reset: Sets both to 0; to be run first.
    """

    def __init__(self, *, in_micro_batches: bool = False) -> None:
        self._in_micro_batches = in_micro_batches
        self.examples_per_batch: int | None = None
        self._resource: tf.Tensor | None = None

    def count(self, batches: Sequence[Batch]) -> tf.Operation:
        """Returns the op that counts each batch when it has come, whatever the step waits for."""
        if self._resource is None:
            self._make_resource()
        with tf.device(HOST), tf.name_scope("count_input"):
            return tf.group(*(self._count(batch) for batch in batches))

    def _make_resource(self) -> None:
        # Of a loop of steps, this is the graph around it.
        with tf.init_scope(), tf.device(HOST), tf.name_scope("input_counter"):
            self._resource = tf.raw_ops.VarHandleOp(
                dtype=tf.int64, shape=[2], shared_name=f"tfdist_input_counter_{uuid.uuid4().hex}"
            )
            zeros = tf.zeros([2], tf.int64)
            self.reset = tf.raw_ops.AssignVariableOp(resource=self._resource, value=zeros)
            self.counts = tf.raw_ops.ReadVariableOp(resource=self._resource, dtype=tf.int64)

    def _count(self, batch: Batch) -> tf.Operation:
        features = tf.nest.flatten(batch[0])
        examples = _num_examples(features[0]) if features else 0
        if self._in_micro_batches and features:
            examples = math.prod(features[0].shape[:2])  # These are known.
        self.examples_per_batch = examples if isinstance(examples, int) else None
        has_come = tf.nest.flatten(features[:1], expand_composites=True)
        with tf.control_dependencies(has_come):
            added = tf.stack([tf.constant(1, tf.int64), tf.cast(examples, tf.int64)])
            return tf.raw_ops.AssignAddVariableOp(resource=self._resource, value=added)


def _num_examples(feature: Any) -> Any:
    """Returns the size of the first dimension: an int where it is known, 0 where there is none."""
    if isinstance(feature, tf.SparseTensor):
        return feature.dense_shape[0]
    if isinstance(feature, tf.RaggedTensor):
        return feature.nrows()
    tensor = tf.convert_to_tensor(feature)
    if not tensor.shape.rank:
        return 0
    size = tensor.shape[0]
    return tf.shape(tensor, tf.int64)[0] if size is None else int(size)
