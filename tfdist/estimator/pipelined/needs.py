"""What a pipeline needs of its input and its session; known without building one."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

# Graph collection of the number of devices that a pipeline in the graph needs.
_NUM_DEVICES = "tfdist_pipeline_devices"


def in_steps(result: Any, micro_batches: int) -> Any:
    """Groups the micro-batches of an input into those of a step.

    Args:
      result: What an input_fn returned: a dataset of micro-batches.
      micro_batches: How many a step takes.

    Returns:
      A dataset of elements [micro_batches, batch, ...].

    Raises:
      ValueError: If it is no dataset, or the size of its batches is not fixed.
    """
    if not isinstance(result, (tf.data.Dataset, v1.data.Dataset)):
        raise ValueError(
            f"input_fn must return a tf.data.Dataset to train a pipeline, got "
            f"{type(result).__name__}. Wrap tensors with tf.data.Dataset.from_tensors(...)."
        )
    for spec in tf.nest.flatten(result.element_spec):
        if not isinstance(spec, tf.TensorSpec) or not spec.shape.is_fully_defined():
            raise ValueError(
                f"the micro-batches of a pipeline all have one shape, and the input has {spec}. "
                "Write dataset.batch(size, drop_remainder=True)."
            )
    return result.batch(micro_batches, drop_remainder=True)


def need_devices(number: int) -> None:
    """Says that a pipeline in the current graph needs so many devices."""
    v1.add_to_collection(_NUM_DEVICES, number)


def num_devices_in(graph: tf.Graph) -> int:
    """Returns how many devices the pipeline in a graph needs; 1 without one."""
    return max(graph.get_collection(_NUM_DEVICES), default=1)
