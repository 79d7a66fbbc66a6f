"""What the environment says about this run: TF_CONFIG, a Slurm step, Open MPI, or our launcher.

No other module reads these variables.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tfdist.cluster.instance_variables import (
    INSTANCE_INDEX,
    LOCAL_INSTANCE_INDEX,
    NUM_INSTANCES,
    Instance,
    read_instance,
    read_shape,
)
from tfdist.cluster.slurm import find_slurm_step
from tfdist.cluster.tasks import Cluster, ClusterError, Task, shown
from tfdist.cluster.tf_config import parse_tf_config


@dataclass(frozen=True, kw_only=True)
class MpiRank:
    """This process's place in a run that `mpirun` started.

    Attributes:
      rank: Position in the whole run, from 0.
      size: Number of processes in the run.
      local_rank: Position among the processes of this machine, from 0.
      local_size: Number of processes on this machine.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int


def find_cluster(environ: Mapping[str, str] = os.environ) -> tuple[Cluster, Task] | None:
    """Finds the cluster that this process was started in.

    TF_CONFIG wins. Without it (or with a blank one) the tasks of a Slurm step are the workers,
    unless `mpirun` started this process: its daemon may hand on the variables of its own task.

    Args:
      environ: The environment variables.

    Returns:
      The cluster and this process's task, or None if the environment describes no cluster.

    Raises:
      ClusterError: If what is set is malformed or contradicts itself.
    """
    tf_config = environ.get("TF_CONFIG", "")
    if tf_config.strip():
        return parse_tf_config(tf_config)
    if "OMPI_COMM_WORLD_RANK" in environ:
        return None
    return find_slurm_step(environ)


def find_mpi_rank(environ: Mapping[str, str] = os.environ) -> MpiRank | None:
    """Finds this process's rank among those that Open MPI's `mpirun` started.

    Args:
      environ: The environment variables.

    Returns:
      The rank, or None if `mpirun` did not start this process.

    Raises:
      ClusterError: If some of the four variables are missing or contradict each other.
    """
    names = [f"OMPI_COMM_WORLD_{what}" for what in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
    present = [name for name in names if name in environ]
    if not present:
        return None
    for name in names:
        if name not in environ:
            raise ClusterError(
                f"{name} is not set, though {present[0]} is. Start the program with mpirun, "
                "which sets both, or unset all OMPI_COMM_WORLD variables."
            )
        if not re.fullmatch(r"[0-9]{1,9}", environ[name]):
            raise ClusterError(
                f"{name} is {shown(environ[name])}, expected an integer from 0. Leave it to mpirun."
            )
    rank, size, local_rank, local_size = (int(environ[name]) for name in names)
    for name, number, limit_name, limit in (
        (names[0], rank, names[1], size),
        (names[2], local_rank, names[3], local_size),
        (names[3], local_size, names[1], size + 1),
    ):
        if number >= limit:
            raise ClusterError(
                f"{name} is {number} but {limit_name} is {environ[limit_name]}. "
                "Leave these variables to mpirun."
            )
    return MpiRank(rank=rank, size=size, local_rank=local_rank, local_size=local_size)


def find_engine(environ: Mapping[str, str] = os.environ) -> str | None:
    """Decides how the workers of this run talk to each other.

    Returns:
      "grpc" if TF_CONFIG or a Slurm step lists them; "horovod" if `mpirun` started several
      processes, and no TF_CONFIG says who they are; None for a process on its own.

    Raises:
      ClusterError: If what is set is malformed or contradicts itself.
    """
    if find_cluster(environ) is not None:
        return "grpc"
    rank = find_mpi_rank(environ)
    return "horovod" if rank is not None and rank.size > 1 else None


def find_instance(environ: Mapping[str, str] = os.environ) -> Instance:
    """Finds this process among the training processes of the run.

    What `tfdist run` said is believed if the engine (TF_CONFIG, `mpirun`, a Slurm step) agrees;
    without it the engine alone says who this is, and each instance has one replica. Nobody's
    process is on its own, and so is an evaluator: it is none of the instances.

    Args:
      environ: The environment variables.

    Returns:
      The instance; its `source` is "" for a process on its own.

    Raises:
      ClusterError: If what is set is malformed or contradicts itself.
    """
    told = read_instance(environ)
    place, is_trained_by_it = _place_by_engine(environ)
    if not is_trained_by_it:
        if told is not None:
            raise ClusterError(
                f"{NUM_INSTANCES} is {told.num_instances}, but this process's task in TF_CONFIG "
                "does not train, so it is no instance. Unset the TFDIST variables for it."
            )
        return Instance()
    if told is None:
        return _with_shape(place or Instance(), environ)
    if place is not None:
        _check_agreement(told, place)
    return told


def find_launched_replicas(environ: Mapping[str, str] = os.environ) -> Instance | None:
    """Returns this instance if the launcher said how many replicas it has, else None.

    Raises:
      ClusterError: As `find_instance`.
    """
    if read_instance(environ) is None and read_shape(environ) is None:
        return None
    instance = find_instance(environ)
    return instance if instance.source else None


def _place_by_engine(environ: Mapping[str, str]) -> tuple[Instance | None, bool]:
    """Returns the place that the engine gives this process, and whether the process trains."""
    found = find_cluster(environ)
    if found is not None:
        cluster, task = found
        if task not in cluster.workers:
            return None, False
        source = "TF_CONFIG" if environ.get("TF_CONFIG", "").strip() else "Slurm"
        return _place_in_cluster(cluster, task, source), True
    rank = find_mpi_rank(environ)
    if rank is None:
        return None, True
    return (
        Instance(
            index=rank.rank,
            num_instances=rank.size,
            local_index=rank.local_rank,
            num_total_replicas=rank.size,
            replica_index_offset=rank.rank,
            source="mpirun",
        ),
        True,
    )


def _place_in_cluster(cluster: Cluster, task: Task, source: str) -> Instance:
    index = cluster.worker_index(task)
    return Instance(
        index=index,
        num_instances=cluster.num_workers,
        local_index=cluster.local_index(task),
        num_total_replicas=cluster.num_workers,
        replica_index_offset=index,
        source=source,
    )


def _with_shape(place: Instance, environ: Mapping[str, str]) -> Instance:
    """Adds what a batch script or a manifest says about every instance to an engine's place."""
    shape = read_shape(environ)
    if shape is None:
        return place
    replicas, devices = shape
    return replace(
        place,
        num_local_replicas=replicas,
        num_total_replicas=replicas * place.num_instances,
        replica_index_offset=replicas * place.index,
        devices_per_replica=devices,
        source=place.source or "tfdist run",
    )


def _check_agreement(told: Instance, place: Instance) -> None:
    checked = [
        (NUM_INSTANCES, told.num_instances, place.num_instances, "instances"),
        (INSTANCE_INDEX, told.index, place.index, "as this one's index"),
    ]
    if place.source == "mpirun":  # The others' hosts may be several names of one machine.
        index = (LOCAL_INSTANCE_INDEX, told.local_index, place.local_index, "as its local index")
        checked.append(index)
    for name, ours, theirs, what in checked:
        if ours != theirs:
            raise ClusterError(
                f"{name} is {ours}, but {place.source} says {theirs} {what}. Start the program "
                "with one of the two, and unset the other's variables."
            )
