"""Checks of half precision before the first step: optimizers, the loss, and the processor."""

from __future__ import annotations

import re

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.placement import Placement
from tfdist.training.half_precision import HALVES, is_half, stock_on_halves
from tfdist.training.name_patterns import name_of
from tfdist.training.precision import Precision, describe_emulation, processor_features

# The update kernels of TensorFlow, which its optimizers and those of Keras use.
_UPDATE = re.compile("^(Resource)?(Sparse)?Apply(?P<optimizer>[A-Z].*)")


def check_half_weights(graph: tf.Graph) -> None:
    """Checks that no optimizer of TensorFlow or Keras updates weights in half precision.

    Raises:
      ValueError: If one does.
    """
    halves = [variable for variable in v1.trainable_variables() if is_half(variable)]
    if not halves:
        return
    definition = graph.as_graph_def()
    nodes = [definition.node, *(function.node_def for function in definition.library.function)]
    dtypes = {dtype.as_datatype_enum for dtype in HALVES}
    for node in (node for part in nodes for node in part):
        update = _UPDATE.match(node.op)
        if update is not None and node.attr["T"].type in dtypes:
            kind = update["optimizer"]
            raise ValueError(stock_on_halves(kind, name_of(halves[0]), halves[0]))


def log_half_precision(precision: Precision, placement: Placement, loss: tf.Tensor) -> None:
    """Logs what makes half precision slow or inexact here: one line each."""
    kind = tf.DeviceSpec.from_string(placement.device).device_type
    if not precision.is_float32 and kind == "CPU":
        line = describe_emulation(precision, kind, processor_features())
        if line is not None:
            v1.logging.info(line)
    if is_half(loss):
        v1.logging.warning(
            "The loss is %s, which has 2 to 3 digits. Compute it in float32: "
            'tf.cast(logits, tf.float32), or a last layer with dtype="float32".',
            loss.dtype.name,
        )
