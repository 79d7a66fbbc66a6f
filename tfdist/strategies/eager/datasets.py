"""Distributed datasets of TensorFlow 2."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from tfdist.process.endings import OneLineError
from tfdist.strategies.private_runtime import (
    asks_before_each_batch,
    input_lib,
    input_workers,
    is_of_an_earlier_runtime,
    renew_dataset,
    share_of_worker,
)

_PLAIN_ITERATOR = tf.distribute.InputOptions(
    experimental_fetch_to_device=False,
    experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
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
    """Divides each batch of a dataset of global batches among the replicas of all workers.

    A worker gets rows that follow each other, and divides them among its replicas. In the last
    batch a replica may have fewer rows than others, or none.

    Args:
      strategy: The strategy.
      dataset: Batches of the global batch size.
      input_context: The number of workers, and this worker's index.
      devices: (host, devices): the device that runs the input pipeline, and that of each replica.
      options: As in `Strategy.experimental_distribute_dataset`.
    """
    options = options_for(devices, options)
    dataset = _prepared(dataset, options)
    number = dataset.cardinality()
    workers, per_worker = input_context.num_input_pipelines, len(devices[1])
    if workers > 1 and per_worker > 1:
        dataset = share_of_worker(strategy, dataset, input_context, devices)
        input_context = tf.distribute.InputContext(num_replicas_in_sync=per_worker)
    made = input_lib.DistributedDataset(
        input_workers(devices, options),
        strategy,
        dataset,
        num_replicas_in_sync=input_context.num_replicas_in_sync,
        input_context=input_context,
        options=options,
    )
    if workers > 1:
        asks_before_each_batch(made, not _is_known_to_all(strategy, number))
    return made


def distribute_own(
    strategy: tf.distribute.Strategy,
    dataset: tf.data.Dataset,
    input_context: tf.distribute.InputContext,
    devices: tuple[str, tuple[str, ...]],
    options: tf.distribute.InputOptions | None,
) -> Any:
    """Gives the batches of this worker's own dataset to its replicas, one after the other.

    Nothing is divided or left out: each worker has its own examples, and a batch is a replica's. In
    the last step a replica may have no rows. All workers end after the same step.

    The arguments are those of `distribute`.
    """
    dataset = renewed(dataset)
    made = distribute_from_function(
        strategy, lambda context: dataset, input_context, devices, options
    )
    number, per_worker = dataset.cardinality(), len(devices[1])
    is_whole = number == tf.data.INFINITE_CARDINALITY or number % per_worker == 0
    asks_before_each_batch(made, not (_is_known_to_all(strategy, number) and is_whole))
    return made


class StepsDifferError(OneLineError, ValueError):
    """The workers make different numbers of steps at a time."""


def steps_of_all(strategy: Any, num_batches: int | None, steps_per_execution: int) -> int | None:
    """Returns how many steps an epoch over the workers' own datasets has.

    That is the number of the worker with most batches; None if one does not know its own. A
    collective: every worker must call it.

    Args:
      strategy: A strategy whose workers have their own datasets.
      num_batches: The number of batches of this worker's dataset; None if it is not known.
      steps_per_execution: How many steps Keras makes at a time.

    Raises:
      StepsDifferError: If workers make different numbers of steps at a time.
    """
    extended = strategy.extended
    steps = -1 if num_batches is None else -(-num_batches // extended.placement.num_replicas)
    own = tf.constant([[steps, steps_per_execution]], tf.int64)
    rows = extended.collectives.gather(own, "steps", same_rows=True).numpy().tolist()
    at_a_time = [number for _, number in rows]
    if len(set(at_a_time)) > 1:
        worker = next(i for i, number in enumerate(at_a_time) if number != at_a_time[0])
        raise StepsDifferError(
            f"steps_per_execution is {at_a_time[0]} on worker 0 and {at_a_time[worker]} on worker "
            f"{worker}: it must be equal on all. Compute it from the number of all examples, not "
            "from the length of a worker's own dataset."
        )
    known = [number for number, _ in rows]
    return None if -1 in known else max(known)


def _is_known_to_all(strategy: tf.distribute.Strategy, number: tf.Tensor) -> bool:
    """Returns whether all workers have as many batches, so that all end after the same step.

    A collective, outside of functions.
    """
    if not tf.executing_eagerly():
        return False
    own = tf.reshape(number, [1])
    numbers = strategy.extended.collectives.gather(own, "batches", same_rows=True).numpy()
    return bool((numbers == numbers[0]).all() and numbers[0] != tf.data.UNKNOWN_CARDINALITY)


def renewed(dataset: Any) -> Any:
    """Returns a dataset that was made before the workers met as one that can still be used.

    Raises:
      DatasetTooEarlyError: If it uses a table or a variable.
    """
    if not isinstance(dataset, tf.data.Dataset) or not is_of_an_earlier_runtime(dataset):
        return dataset
    try:
        return renew_dataset(dataset)
    except (tf.errors.OpError, ValueError) as error:
        raise DatasetTooEarlyError(
            "this dataset was made before the strategy's first scope, in which TensorFlow's server "
            "starts, and cannot be taken along: it uses a table or a variable. Make it in or after "
            "`with strategy.scope():`."
        ) from error


def tuned_for_cores(dataset: Any) -> Any:
    """Returns a dataset without tf.data's autotuning, if this process has a single core.

    There is nothing to divide among cores then. And with TensorFlow 2.21 the end of each epoch
    would wait for about as long as the epoch took: on a single core the thread that tunes does not
    see that its iterator is being deleted, and sleeps until its next turn. What the user set stays.
    """
    if len(os.sched_getaffinity(0)) > 1 or not isinstance(dataset, tf.data.Dataset):
        return dataset
    if dataset.options().autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def options_for(
    devices: tuple[str, tuple[str, ...]], options: tf.distribute.InputOptions | None
) -> tf.distribute.InputOptions | None:
    """Returns options with which a single replica on a CPU reads from a plain iterator.

    TensorFlow's iterator for several devices traces functions in each epoch, which then stay in
    memory. The user's own options are returned as they are.
    """
    is_on_cpu = all(tf.DeviceSpec.from_string(name).device_type == "CPU" for name in devices[1])
    if options is not None or len(devices[1]) > 1 or not is_on_cpu:
        return options
    return _PLAIN_ITERATOR


def _prepared(dataset: Any, options: tf.distribute.InputOptions | None) -> Any:
    """Returns a dataset as this process should read it.

    It reads one batch ahead, as TensorFlow's iterator for several devices does.
    """
    dataset = tuned_for_cores(renewed(dataset))
    return dataset.prefetch(1) if options is _PLAIN_ITERATOR else dataset


def distribute_from_function(
    strategy: tf.distribute.Strategy,
    dataset_fn: Any,
    input_context: tf.distribute.InputContext,
    devices: tuple[str, tuple[str, ...]],
    options: tf.distribute.InputOptions | None,
) -> Any:
    """Makes a dataset of this worker's batches, which `dataset_fn(input_context)` returns.

    Where another worker has more batches, those of this one have no row in the end: all workers end
    after the same step.
    """
    options = options_for(devices, options)
    made = input_lib.DistributedDatasetsFromFunction(
        input_workers(devices, options),
        strategy,
        input_contexts=[input_context],
        dataset_fn=lambda context: _prepared(dataset_fn(context), options),
        options=options,
    )
    if input_context.num_input_pipelines > 1:
        asks_before_each_batch(made, not _is_known_to_all(strategy, made.cardinality))
    return made
