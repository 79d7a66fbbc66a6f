"""What the environment says about this run: TF_CONFIG, a Slurm step, or Open MPI's variables.

No other module reads these variables.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tfdist.cluster.slurm import find_slurm_step
from tfdist.cluster.tasks import Cluster, ClusterError, Task
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
                f'{name} is "{environ[name]}", expected an integer from 0. Leave it to mpirun.'
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
