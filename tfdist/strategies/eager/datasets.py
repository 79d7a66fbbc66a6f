"""Distributed datasets of TensorFlow 2."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.process.endings import OneLineError
from tfdist.strategies.private_tensorflow import (
    input_lib,
    input_workers,
    is_of_an_earlier_runtime,
    renew_dataset,
)


class DatasetTooEarlyError(OneLineError, RuntimeError):
    """A dataset was made before the workers met, and cannot be used any more."""


def distribute(
    strategy: tf.distribute.Strategy,
    dataset: tf.data.Dataset,
    input_context: tf.distribute.InputContext,
    devices: tuple[str, tuple[str, ...]],
    options: tf.distribute.InputOptions | None,
) -> Any:
    """Re-batches a dataset of global batches for this worker and shards it.

    The arguments are those of `private_tensorflow.make_distributed_dataset`.
    """
    if is_of_an_earlier_runtime(dataset):
        dataset = _renewed(dataset)
    return input_lib.DistributedDataset(
        input_workers(devices, options),
        strategy,
        dataset,
        num_replicas_in_sync=input_context.num_replicas_in_sync,
        input_context=input_context,
        options=options,
    )


def _renewed(dataset: tf.data.Dataset) -> tf.data.Dataset:
    try:
        return renew_dataset(dataset)
    except (tf.errors.OpError, ValueError) as error:
        raise DatasetTooEarlyError(
            "this dataset was made before the strategy's first scope, in which TensorFlow's server "
            "starts, and cannot be taken along: it uses a table or a variable. Make it in or after "
            "`with strategy.scope():`."
        ) from error


def distribute_from_function(
    strategy: tf.distribute.Strategy,
    dataset_fn: Any,
    input_context: tf.distribute.InputContext,
    devices: tuple[str, tuple[str, ...]],
    options: tf.distribute.InputOptions | None,
) -> Any:
    """Makes a dataset of this worker's batches, which `dataset_fn(input_context)` returns."""
    return input_lib.DistributedDatasetsFromFunction(
        input_workers(devices, options),
        strategy,
        input_contexts=[input_context],
        dataset_fn=dataset_fn,
        options=options,
    )
