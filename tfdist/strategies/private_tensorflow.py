"""Every name of TensorFlow's private modules that tfdist uses, and why.

Nothing else in tfdist imports `tensorflow.python`. Each name here has no public
equivalent in TensorFlow 2.16 to 2.21; a new TensorFlow is checked against this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

# Splits a dataset of global batches over workers, as MultiWorkerMirroredStrategy does.
from tensorflow.python.distribute import input_lib

# Counted by tf.distribute for functions that make one value per replica.
from tensorflow.python.distribute.distribute_lib import ValueContext

# The same for a v1 graph.
from tensorflow.python.distribute.v1 import input_lib as input_lib_v1

# The class behind `tf.Variable` in a v1 graph, to derive the variables that reduce on read.
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

__all__ = [
    "ResourceVariable",
    "ValueContext",
    "is_loss_scaled_by_optimizer",
    "loss_scaled_by_optimizer",
    "make_distributed_dataset",
    "make_distributed_dataset_from_function",
]


@contextmanager
def loss_scaled_by_optimizer(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Lets `Optimizer.compute_gradients` divide the loss by the number of workers.

    v1 optimizers ask the strategy whether an Estimator is running; only then they scale.
    """
    with strategy._scale_loss_for_estimator_enabled():
        yield


def is_loss_scaled_by_optimizer(graph: tf.Graph) -> bool:
    """Says whether an optimizer has divided the loss by the number of workers in this graph."""
    return bool(getattr(graph, "_is_loss_scaled_by_optimizer", False))


def make_distributed_dataset(
    strategy: tf.distribute.Strategy,
    dataset: tf.data.Dataset,
    input_context: tf.distribute.InputContext,
    devices: tuple[str, str],
    options: tf.distribute.InputOptions | None,
) -> Any:
    """Re-batches a dataset of global batches for this worker and shards it.

    Args:
      strategy: The strategy that asks.
      dataset: Batches of the global batch size.
      input_context: How many workers there are and which one this is.
      devices: (host, device): where the pipeline runs and where its elements go.
      options: As in `Strategy.experimental_distribute_dataset`.
    """
    return input_lib_v1.DistributedDatasetV1(
        dataset,
        _input_workers(devices, options),
        strategy,
        num_replicas_in_sync=input_context.num_replicas_in_sync,
        input_context=input_context,
        options=options,
    )


def make_distributed_dataset_from_function(
    strategy: tf.distribute.Strategy,
    dataset_fn: Any,
    input_context: tf.distribute.InputContext,
    devices: tuple[str, str],
    options: tf.distribute.InputOptions | None,
) -> Any:
    """Calls `dataset_fn(input_context)` for this worker's own batches."""
    return input_lib_v1.DistributedDatasetsFromFunctionV1(
        _input_workers(devices, options), strategy, [input_context], dataset_fn, options
    )


def _input_workers(
    devices: tuple[str, str], options: tf.distribute.InputOptions | None
) -> input_lib.InputWorkers:
    host, device = devices
    fetch_to_device = options is None or options.experimental_fetch_to_device
    return input_lib.InputWorkers([(host, (device if fetch_to_device else host,))])
