"""`popdist`: this instance of the run, and its replicas."""

from tfdist.cluster.instances import check_num_devices_per_replica as checkNumIpusPerReplica
from tfdist.cluster.instances import first_device_index as getDeviceId
from tfdist.cluster.instances import instance_index as getInstanceIndex
from tfdist.cluster.instances import is_launched as isPopdistEnvSet
from tfdist.cluster.instances import local_instance_index as getLocalInstanceIndex
from tfdist.cluster.instances import num_devices_per_replica as getNumIpusPerReplica
from tfdist.cluster.instances import num_instances as getNumInstances
from tfdist.cluster.instances import num_local_replicas as getNumLocalReplicas
from tfdist.cluster.instances import num_total_replicas as getNumTotalReplicas
from tfdist.cluster.instances import replica_index_offset as getReplicaIndexOffset
from tfdist.ipu.popdist import tensorflow
from tfdist.strategies import execute_on_instances, synchronize
from tfdist.strategies import join_run as init

__all__ = [
    "checkNumIpusPerReplica",
    "execute_on_instances",
    "getDeviceId",
    "getInstanceIndex",
    "getLocalInstanceIndex",
    "getNumInstances",
    "getNumIpusPerReplica",
    "getNumLocalReplicas",
    "getNumTotalReplicas",
    "getReplicaIndexOffset",
    "init",
    "isPopdistEnvSet",
    "synchronize",
    "tensorflow",
]


def __dir__() -> list[str]:
    return [*__all__]
