"""Environment variables by which the launcher gives each instance its index and its replicas.

They are written and read here. One that is malformed, or contradicts another, is a ClusterError. An
instance is one training process of the run. The evaluator is not an instance and gets none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from tfdist.cluster.ranks import OF_LAUNCHERS
from tfdist.cluster.tasks import ClusterError, read_integer
from tfdist.process.text import listed, shown

NUM_INSTANCES = "TFDIST_NUM_INSTANCES"
INSTANCE_INDEX = "TFDIST_INSTANCE_INDEX"
LOCAL_INSTANCE_INDEX = "TFDIST_LOCAL_INSTANCE_INDEX"
NUM_TOTAL_REPLICAS = "TFDIST_NUM_TOTAL_REPLICAS"
NUM_LOCAL_REPLICAS = "TFDIST_NUM_LOCAL_REPLICAS"
REPLICA_INDEX_OFFSET = "TFDIST_REPLICA_INDEX_OFFSET"
DEVICES_PER_REPLICA = "TFDIST_DEVICES_PER_REPLICA"
UNIFORM = "TFDIST_UNIFORM_REPLICAS_PER_INSTANCE"
RESTART_COUNT = "TFDIST_RESTART_COUNT"
# Instances that the run was asked for; fewer may be left with --min-instances.
NUM_FULL_INSTANCES = "TFDIST_NUM_FULL_INSTANCES"
# The last step before the restart, and a name of the run that all its starts have.
RESTART_STEP = "TFDIST_RESTART_STEP"
RUN = "TFDIST_RUN"
# What the interruptions of the run have cost when its workers start again.
RESTART_LOST_S = "TFDIST_RESTART_LOST_S"
RESTART_REPEATED_STEPS = "TFDIST_RESTART_REPEATED_STEPS"
HAS_EVALUATOR = "TFDIST_HAS_EVALUATOR"

# Prefixes of the variables of one run: set for one of its processes, wrong in a process of another
# run. Slurm's are not among them: a run inside a Slurm job needs the variables of the job.
OF_ONE_RUN = (
    *("TF_CONFIG", "TFDIST_NUM_", "TFDIST_INSTANCE_", "TFDIST_LOCAL_", "TFDIST_REPLICA_"),
    *("TFDIST_DEVICES_", "TFDIST_UNIFORM_", "TFDIST_RESTART_", "TFDIST_HAS_", "TFDIST_PROGRESS_"),
    *("TFDIST_AGENT_", "TFDIST_IMPORTS_", "TFDIST_RUN", "TFDIST_SNAPSHOT_"),
    *OF_LAUNCHERS,
)

# The place of the instance among the others: all of these are set, or none.
_PLACE = (
    NUM_INSTANCES,
    INSTANCE_INDEX,
    LOCAL_INSTANCE_INDEX,
    NUM_TOTAL_REPLICAS,
    REPLICA_INDEX_OFFSET,
)
# Equal for all instances, so these may be set without the others: by a batch script or a manifest.
# The engine then gives each instance its place.
SHAPE = (NUM_LOCAL_REPLICAS, DEVICES_PER_REPLICA)

_integer = partial(read_integer, advice="Leave it to tfdist run.")


@dataclass(frozen=True, kw_only=True)
class Instance:
    """This process among the training processes of the run, and its replicas of the model.

    Attributes:
      index: Its index among all instances, from 0.
      num_instances: The number of instances in the run.
      local_index: Its index among the instances of its machine, from 0.
      num_local_instances: The number of instances on its machine. Two host names of the cluster
        count as two machines.
      num_total_replicas: Replicas in all instances together.
      num_local_replicas: Replicas in this instance.
      replica_index_offset: The index of its first replica among all.
      devices_per_replica: Devices that one replica takes.
      is_uniform: Whether all instances have as many replicas as this one.
      source: The source of these facts: "tfdist run", "mpirun", "horovodrun", "Slurm" or
        "TF_CONFIG"; "" for a process that is alone.
    """

    index: int = 0
    num_instances: int = 1
    local_index: int = 0
    num_local_instances: int = 1
    num_total_replicas: int = 1
    num_local_replicas: int = 1
    replica_index_offset: int = 0
    devices_per_replica: int = 1
    is_uniform: bool = True
    source: str = ""


def instance_environment(
    *,
    index: int,
    num_instances: int,
    local_index: int,
    num_total_replicas: int,
    devices_per_replica: int,
    restart_count: int = 0,
    num_full_instances: int | None = None,
    has_evaluator: bool = False,
) -> dict[str, str]:
    """Returns the variables that make a process this instance of the run.

    The replicas are divided evenly: each instance has num_total_replicas / num_instances. The first
    arguments are attributes of `Instance`. `restart_count` is the number of restarts of the run so
    far, `num_full_instances` the number that it was asked for, if that is another. `has_evaluator`
    says that a further process evaluates.

    Raises:
      ClusterError: If a number is out of range, or the replicas do not divide.
    """
    local_replicas, rest = divmod(num_total_replicas, max(1, num_instances))
    if rest:
        raise ClusterError(
            f"{num_total_replicas} replicas do not divide over {num_instances} instances. Nearest "
            f"numbers that do: {listed(nearest_multiples(num_total_replicas, num_instances))}."
        )
    numbers = {
        NUM_INSTANCES: num_instances,
        INSTANCE_INDEX: index,
        LOCAL_INSTANCE_INDEX: local_index,
        NUM_TOTAL_REPLICAS: num_total_replicas,
        NUM_LOCAL_REPLICAS: local_replicas,
        REPLICA_INDEX_OFFSET: index * local_replicas,
        DEVICES_PER_REPLICA: devices_per_replica,
        RESTART_COUNT: restart_count,
        **({NUM_FULL_INSTANCES: num_full_instances} if num_full_instances else {}),
    }
    variables = {name: str(number) for name, number in numbers.items()}
    read_instance(variables)
    read_restart_count(variables)
    return variables | ({HAS_EVALUATOR: "1"} if has_evaluator else {})


def read_instance(environ: Mapping[str, str]) -> Instance | None:
    """Reads the launcher's variables for this instance; None if its place is not set."""
    present = [name for name in _PLACE if name in environ]
    if not present:
        return None
    for name in (*_PLACE, *SHAPE):
        if name not in environ:
            raise _not_set(name, present[0])
    instance = Instance(
        index=_integer(environ, INSTANCE_INDEX, 0),
        num_instances=_integer(environ, NUM_INSTANCES, 1),
        local_index=_integer(environ, LOCAL_INSTANCE_INDEX, 0),
        num_total_replicas=_integer(environ, NUM_TOTAL_REPLICAS, 1),
        num_local_replicas=_integer(environ, NUM_LOCAL_REPLICAS, 1),
        replica_index_offset=_integer(environ, REPLICA_INDEX_OFFSET, 0),
        devices_per_replica=_integer(environ, DEVICES_PER_REPLICA, 1),
        is_uniform=_is_uniform(environ),
        source="tfdist run",
    )
    _check(instance)
    return instance


def read_shape(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Reads the replicas of all instances, and the devices of each; None if they are not set."""
    if NUM_LOCAL_REPLICAS not in environ:
        if DEVICES_PER_REPLICA in environ:
            raise _not_set(NUM_LOCAL_REPLICAS, DEVICES_PER_REPLICA)
        return None
    has_devices = DEVICES_PER_REPLICA in environ
    devices = _integer(environ, DEVICES_PER_REPLICA, 1) if has_devices else 1
    return _integer(environ, NUM_LOCAL_REPLICAS, 1), devices


def read_restart_count(environ: Mapping[str, str]) -> int:
    """Reads the number of restarts of this run by the launcher: 0 at first."""
    return _integer(environ, RESTART_COUNT, 0) if RESTART_COUNT in environ else 0


def read_num_full_instances(environ: Mapping[str, str]) -> int | None:
    """Reads the number of instances that the run was asked for: None if it is not set."""
    return _integer(environ, NUM_FULL_INSTANCES, 1) if NUM_FULL_INSTANCES in environ else None


def read_restart_step(environ: Mapping[str, str]) -> int:
    """Reads the last step that a worker had made before the restart: -1 if it is not known."""
    return _integer(environ, RESTART_STEP, 0, digits=15) if RESTART_STEP in environ else -1


def read_restart_cost(environ: Mapping[str, str]) -> tuple[int, int]:
    """Reads what interruptions cost before this start: seconds without a step, steps made again.

    Both are 0 without one. Steps that this start makes again are not among them.
    """
    seconds, steps = (
        _integer(environ, name, 0, digits=15) if name in environ else 0
        for name in (RESTART_LOST_S, RESTART_REPEATED_STEPS)
    )
    return seconds, steps


def is_evaluator_launched(environ: Mapping[str, str]) -> bool:
    """Returns whether the launcher has started an evaluator for this run."""
    return environ.get(HAS_EVALUATOR) == "1"


def _check(instance: Instance) -> None:
    index, count = instance.index, instance.num_instances
    local, total = instance.num_local_replicas, instance.num_total_replicas
    offset = instance.replica_index_offset
    if index >= count:
        raise _contradiction(INSTANCE_INDEX, index, f"{NUM_INSTANCES} is {count}")
    if instance.local_index > index:
        raise _contradiction(
            LOCAL_INSTANCE_INDEX, instance.local_index, f"{INSTANCE_INDEX} is {index}"
        )
    if instance.is_uniform:
        if total != count * local:
            raise _contradiction(
                NUM_TOTAL_REPLICAS, total, f"{count} instances of {local} have {count * local}"
            )
        if offset != index * local:
            raise _contradiction(
                REPLICA_INDEX_OFFSET, offset, f"instance {index} of {local} has {index * local}"
            )
        return
    # Every other instance has one replica at least.
    least, most = index, total - local - (count - 1 - index)
    if index == 0:
        most = min(most, 0)
    if index == count - 1:
        least = max(least, total - local)
    if not least <= offset <= most:
        raise _contradiction(
            REPLICA_INDEX_OFFSET,
            offset,
            f"instance {index} of {count} has {local} of {total} replicas",
        )


def _not_set(name: str, present: str) -> ClusterError:
    return ClusterError(
        f"{name} is not set, though {present} is. Start the program with tfdist run, which sets "
        "both, or unset all TFDIST variables."
    )


def _contradiction(name: str, number: int, other: str) -> ClusterError:
    return ClusterError(f"{name} is {number} but {other}. Leave these variables to tfdist run.")


def _is_uniform(environ: Mapping[str, str]) -> bool:
    text = environ.get(UNIFORM, "1")
    if text not in ("0", "1"):
        raise ClusterError(f"{UNIFORM} is {shown(text)}, expected 0 or 1. Leave it to tfdist run.")
    return text == "1"


def nearest_multiples(number: int, divisor: int) -> list[str]:
    """Returns the multiples of the divisor below and above a number, for a sentence; not 0."""
    below = number // divisor * divisor
    return [str(multiple) for multiple in (below, below + divisor) if multiple > 0]
