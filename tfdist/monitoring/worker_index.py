"""Which worker of the run this process is."""

from __future__ import annotations

from tfdist.cluster import find_cluster, find_mpi_rank


def own_worker_index() -> int:
    """Returns this process's index among the workers, from the environment; 0 if it is alone.

    An evaluator is alone.

    Raises:
      ClusterError: If the environment contradicts itself.
    """
    found = find_cluster()
    if found is not None:
        cluster, task = found
        return cluster.worker_index(task) if task in cluster.workers else 0
    rank = find_mpi_rank()
    return 0 if rank is None else rank.rank
