"""The tasks of a run and this process's task, read and checked without TensorFlow."""

from tfdist.cluster.environment import find_cluster
from tfdist.cluster.ranks import MpiRank, find_mpi_rank
from tfdist.cluster.rendezvous.meeting import check_port, meet, wait_for_servers
from tfdist.cluster.rendezvous.peer_watch import PeerWatch, WorkerLostError
from tfdist.cluster.rendezvous.protocol import RendezvousError
from tfdist.cluster.tasks import Cluster, ClusterError, Task
from tfdist.cluster.tf_config import format_tf_config, parse_tf_config

__all__ = [
    "Cluster",
    "ClusterError",
    "MpiRank",
    "PeerWatch",
    "RendezvousError",
    "Task",
    "WorkerLostError",
    "check_port",
    "find_cluster",
    "find_mpi_rank",
    "format_tf_config",
    "meet",
    "parse_tf_config",
    "wait_for_servers",
]


def __dir__() -> list[str]:
    return [*__all__]
