"""The instances and replicas of the run, for a program that divides its data or its batch.

An instance is a training process of the run; each has one or more replicas of the model. Every call
reads the variables of `tfdist run`, TF_CONFIG, `mpirun` or `srun`. Without them this process is the
only instance and has one replica. The same holds for an evaluator, which is not an instance.

    dataset = dataset.shard(num_instances(), instance_index())
"""

from __future__ import annotations

import os

from tfdist.cluster.environment import find_cluster, find_instance, find_launched_replicas
from tfdist.cluster.instance_variables import (
    Instance,
    instance_environment,
    is_evaluator_launched,
    nearest_multiples,
    read_num_full_instances,
    read_restart_count,
)
from tfdist.cluster.tasks import ClusterError, checked_count
from tfdist.process.text import listed

__all__ = [
    "Instance",
    "check_num_devices_per_replica",
    "find_instance",
    "find_launched_replicas",
    "first_device_index",
    "global_batch_size",
    "has_evaluator",
    "instance_environment",
    "instance_index",
    "is_launched",
    "local_instance_index",
    "micro_batch_size",
    "num_devices_per_replica",
    "num_instances",
    "num_local_instances",
    "num_local_replicas",
    "num_total_replicas",
    "replica_index_offset",
    "restart_count",
    "shard",
    "shuffle_buffer_size",
    "size_factor",
]


def is_launched() -> bool:
    """Returns whether a launcher or an engine has made this process an instance of a run."""
    return bool(find_instance().source)


def num_instances() -> int:
    """Returns the number of instances in the run; a ClusterError if replicas are not uniform.

    Equal shares would be wrong where instances have different numbers of replicas.
    """
    return _uniform("num_instances").num_instances


def instance_index() -> int:
    """Returns this instance's index among all, from 0; a ClusterError as `num_instances`."""
    return _uniform("instance_index").index


def local_instance_index() -> int:
    """Returns this instance's index on its machine, from 0."""
    return find_instance().local_index


def num_local_instances() -> int:
    """Returns the number of instances on this machine: they share its memory and its cores."""
    return find_instance().num_local_instances


def num_total_replicas() -> int:
    """Returns the number of replicas of all instances together."""
    return find_instance().num_total_replicas


def num_local_replicas() -> int:
    """Returns the number of replicas of this instance."""
    return find_instance().num_local_replicas


def replica_index_offset() -> int:
    """Returns the index, among all replicas, of this instance's first one."""
    return find_instance().replica_index_offset


def num_devices_per_replica() -> int:
    """Returns the number of devices of one replica."""
    return find_instance().devices_per_replica


def check_num_devices_per_replica(number: int) -> bool:
    """Returns whether the launcher has given each replica this `number` of devices.

    True in a run without a launcher, which has no such plan.
    """
    planned = find_launched_replicas()
    return planned is None or planned.devices_per_replica == number


def first_device_index(devices_per_replica: int = 0) -> int:
    """Returns the index, among the machine's devices, of this instance's first one.

    `devices_per_replica` 0 takes the launcher's number.
    """
    instance = find_instance()
    each = devices_per_replica or instance.devices_per_replica
    return instance.local_index * instance.num_local_replicas * each


def restart_count() -> int:
    """Returns the number of restarts of this run by the launcher; 0 at first."""
    return read_restart_count(os.environ)


def size_factor() -> float:
    """Returns the size of the run, divided by the size that it was asked for.

    1.0, or less while a run with --min-instances goes on without some instances. A global batch of
    fixed local batches is smaller by this factor, and so may be the learning rate.
    """
    full = read_num_full_instances(os.environ)
    return 1.0 if full is None else find_instance().num_instances / full


def has_evaluator() -> bool:
    """Returns whether a process beside the instances evaluates their checkpoints.

    True if a launcher has started one, if TF_CONFIG lists one, and in the evaluator itself.
    """
    found = find_cluster()
    is_listed = found is not None and (found[0].has_evaluator or found[1].type == "evaluator")
    return is_listed or is_evaluator_launched(os.environ)


def shard() -> tuple[int, int]:
    """Returns `Dataset.shard`'s arguments, (count, index); a ClusterError as `num_instances`."""
    instance = _uniform("shard")
    return instance.num_instances, instance.index


def global_batch_size(micro_batch_size: int, accumulation_steps: int = 1) -> int:
    """Returns the number of examples that all replicas see for one update of the weights.

    Args:
      micro_batch_size: Examples that one replica sees at a time.
      accumulation_steps: Micro-batches over which a replica adds its gradients up.

    Raises:
      ValueError: If a number is not an integer of at least 1.
    """
    checked_count("micro_batch_size", micro_batch_size)
    checked_count("accumulation_steps", accumulation_steps)
    return micro_batch_size * accumulation_steps * num_total_replicas()


def micro_batch_size(global_batch_size: int, accumulation_steps: int = 1) -> int:
    """Returns the number of examples that one replica sees at a time, for a global batch.

    Args:
      global_batch_size: Examples that all replicas see for one update of the weights.
      accumulation_steps: Micro-batches over which a replica adds its gradients up.

    Raises:
      ValueError: If the global batch does not split evenly; the message has the nearest sizes.
    """
    checked_count("global_batch_size", global_batch_size)
    checked_count("accumulation_steps", accumulation_steps)
    instance = find_instance()
    shares = instance.num_total_replicas * accumulation_steps
    size, rest = divmod(global_batch_size, shares)
    if rest:
        nearest = nearest_multiples(global_batch_size, shares)
        each = f"{instance.num_instances} instances x {instance.num_local_replicas}"
        replicas = each if instance.is_uniform else instance.num_total_replicas
        raise ValueError(
            f"global batch {global_batch_size} does not split over {replicas} replicas x "
            f"{accumulation_steps} accumulation steps ({shares} shares). Nearest "
            f"{'sizes that do' if len(nearest) > 1 else 'size that does'}: {listed(nearest)}."
        )
    return size


def shuffle_buffer_size(num_examples: int, most: int | None = None) -> int:
    """Returns the size of the shuffle buffer that this instance needs for its part of the data.

    A buffer that holds all of the data shuffles evenly; a smaller one mixes neighbours only. The
    size is the instance's share, num_examples / num_instances rounded up: right for a dataset that
    is sharded first and shuffled then. (One that is shuffled first, with one seed for all, needs
    num_examples.)

    Args:
      num_examples: Examples in the whole dataset.
      most: A limit, for examples that are large.

    Raises:
      ValueError: If a number is not an integer of at least 1.
      ClusterError: If the instances have different numbers of replicas.
    """
    checked_count("num_examples", num_examples)
    share = -(-num_examples // num_instances())
    if most is None:
        return share
    checked_count("most", most)
    return min(share, most)


def _uniform(function: str) -> Instance:
    instance = find_instance()
    if not instance.is_uniform:
        raise ClusterError(
            f"{function}() is for instances with equal numbers of replicas, and this one has "
            f"{instance.num_local_replicas} of {instance.num_total_replicas} in a run where they "
            "differ. Use num_total_replicas(), num_local_replicas() and replica_index_offset()."
        )
    return instance
