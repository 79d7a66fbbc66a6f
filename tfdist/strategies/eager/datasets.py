"""Distributed datasets of TensorFlow 2."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.process.endings import OneLineError, name_errors
from tfdist.strategies.dataset_memory import mapped, with_own_memory
from tfdist.strategies.eager.run import needs_all_workers
from tfdist.strategies.private_runtime import (
    InputPlan,
    asks_before_each_batch,
    is_of_an_earlier_runtime,
    make_distributed_dataset,
    make_distributed_dataset_from_function,
    renew_dataset,
    share_of_worker,
)

_CALL = "the making of a distributed dataset"
_PLAIN_ITERATOR = tf.distribute.InputOptions(
    experimental_fetch_to_device=False,
    experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
)


class DatasetTooEarlyError(OneLineError, RuntimeError):
    """A dataset was made before the workers met, and cannot be used any more."""


class ReplicationModeError(OneLineError, NotImplementedError):
    """Each replica is to have a dataset of its own where that is not possible."""


class TooFewFilesError(OneLineError, ValueError):
    """The workers share an input by its files, and it has fewer files than workers."""


_TOO_FEW_FILES = re.compile(
    r"FILE based sharding: the dataset only has (\d+) file\(s\), .* required (\d+) shards"
)


def too_few_files(error: BaseException) -> TooFewFilesError | None:
    """Returns TensorFlow's error about too few files in one line; None for other errors."""
    found = _TOO_FEW_FILES.search(str(error)) if isinstance(error, tf.errors.OpError) else None
    return found and TooFewFilesError(
        f"the input has {found[1]} file(s) for {found[2]} workers, which share files. Set "
        "AutoShardPolicy.DATA (tf.data.Options().experimental_distribute.auto_shard_policy), so "
        f"that each keeps its rows of all files, or write {found[2]} files or more."
    )


def distribute(dataset: Any, plan: InputPlan) -> Any:
    """Divides each batch of a dataset of global batches among the replicas of all workers.

    A worker gets rows that follow each other, and divides them among its replicas. In the last
    batch a replica may have fewer rows than others, or none.

    Raises:
      ReplicationModeError: If each replica is to have a dataset of its own.
    """
    if plan.is_for_each_replica:
        raise ReplicationModeError(
            "experimental_distribute_dataset got InputReplicationMode.PER_REPLICA, and has one "
            "dataset for all replicas. Call distribute_datasets_from_function, or leave the mode "
            "out."
        )
    plan = _with_plain_iterator(plan)
    dataset = _prepared(dataset, plan)
    number = dataset.cardinality()
    workers, per_worker = plan.context.num_input_pipelines, len(plan.devices)
    name_errors(too_few_files)
    if workers > 1 and per_worker > 1:
        dataset = share_of_worker(dataset, plan)
        plan = replace(plan, context=tf.distribute.InputContext(num_replicas_in_sync=per_worker))
    made = make_distributed_dataset(dataset, plan)
    if workers > 1:
        asks_before_each_batch(made, not _is_known_to_all(plan, number))
    return made


def distribute_from_function(dataset_fn: Any, plan: InputPlan) -> Any:
    """Makes a dataset of this worker's batches, which `dataset_fn(input_context)` returns.

    Where another worker has more batches, those of this one have no row in the end: all workers end
    after the same step. With InputReplicationMode.PER_REPLICA it is called for each replica, whose
    index is the context's `input_pipeline_id`.

    Raises:
      ReplicationModeError: If each replica of several workers is to have a dataset of its own.
    """
    if plan.is_for_each_replica and plan.context.num_input_pipelines > 1:
        raise ReplicationModeError(
            "distribute_datasets_from_function got InputReplicationMode.PER_REPLICA, which is for "
            f"one worker, and this run has {plan.context.num_input_pipelines}. Leave it out: each "
            "worker's dataset gives a batch to each of its replicas in turn."
        )
    plan = _with_plain_iterator(plan)

    def make(context: tf.distribute.InputContext) -> Any:
        return _with_shapes_of_all(_prepared(dataset_fn(context), plan), plan)

    made = make_distributed_dataset_from_function(make, plan)
    if plan.context.num_input_pipelines > 1:
        asks_before_each_batch(made, not _is_known_to_all(plan, made.cardinality))
    return made


def distribute_own(dataset: Any, plan: InputPlan) -> Any:
    """Gives the batches of this worker's own dataset to its replicas, one after the other.

    Nothing is divided or left out: each worker has its own examples, and a batch is a replica's. In
    the last step a replica may have no rows. All workers end after the same step.
    """
    made = distribute_from_function(lambda context: dataset, plan)
    number, per_worker = made.cardinality, len(plan.devices)
    is_whole = number == tf.data.INFINITE_CARDINALITY or number % per_worker == 0
    asks_before_each_batch(made, not (_is_known_to_all(plan, number) and is_whole))
    return made


class StepsDifferError(OneLineError, ValueError):
    """The workers make different numbers of steps at a time."""


def steps_of_all(strategy: Any, num_batches: int | None, steps_per_execution: int) -> int | None:
    """Returns how many steps an epoch over the workers' own datasets has.

    That is the number of the worker with most batches; None if one does not know its own. A
    collective: every worker must call it.

    Args:
      strategy: A strategy with a dataset for each worker.
      num_batches: The number of batches of this worker's dataset; None if it is not known.
      steps_per_execution: How many steps Keras makes at a time; StepsDifferError if they differ.
    """
    extended = strategy.extended
    steps = -1 if num_batches is None else -(-num_batches // extended.placement.num_replicas)
    own = tf.constant([[steps, steps_per_execution]], tf.int64)
    with needs_all_workers(_CALL):
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


def _is_known_to_all(plan: InputPlan, number: tf.Tensor) -> bool:
    """Returns whether all workers have as many batches, so that all end after the same step.

    A collective, outside of functions.
    """
    if not tf.executing_eagerly():
        return False
    own = tf.reshape(number, [1])
    collectives = plan.strategy.extended.collectives
    with needs_all_workers(_CALL):
        numbers = collectives.gather(own, "batches", same_rows=True).numpy()
    return bool((numbers == numbers[0]).all() and numbers[0] != tf.data.UNKNOWN_CARDINALITY)


def _with_shapes_of_all(dataset: Any, plan: InputPlan) -> Any:
    """Returns a dataset with a known number of rows only if all workers have as many.

    A step counts rows whose number is not known. A collective, outside of functions.
    """
    if plan.context.num_input_pipelines == 1 or not tf.executing_eagerly():
        return dataset
    shapes = [
        leaf.shape for leaf in tf.nest.flatten(dataset.element_spec) if hasattr(leaf, "shape")
    ]
    known = next((shape[0] for shape in shapes if shape.rank), None)
    own = tf.constant([-1 if known is None else known], tf.int64)
    collectives = plan.strategy.extended.collectives
    with needs_all_workers(_CALL):
        numbers = collectives.gather(own, "rows_of_batches", same_rows=True).numpy()
    if known is None or (numbers == numbers[0]).all():
        return dataset

    def forget(tensor: Any) -> Any:
        if not isinstance(tensor, tf.Tensor) or not tensor.shape.rank:
            return tensor
        return v1.placeholder_with_default(tensor, [None, *tensor.shape[1:]])

    return mapped(dataset, forget)


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


def _with_plain_iterator(plan: InputPlan) -> InputPlan:
    """Returns a plan in which a single replica on a CPU reads from a plain iterator.

    TensorFlow's iterator for several devices traces functions in each epoch, which then stay in
    memory. A plan with the user's own options is returned as it is.
    """
    is_on_cpu = all(tf.DeviceSpec.from_string(name).device_type == "CPU" for name in plan.devices)
    if plan.options is not None or len(plan.devices) > 1 or not is_on_cpu:
        return plan
    return replace(plan, options=_PLAIN_ITERATOR)


def _prepared(dataset: Any, plan: InputPlan) -> Any:
    """Returns a dataset that reads a batch ahead, as TensorFlow's iterator for several devices."""
    dataset = tuned_for_cores(with_own_memory(renewed(dataset), dataset))
    return dataset.prefetch(1) if plan.options is _PLAIN_ITERATOR else dataset
