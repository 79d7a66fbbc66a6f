"""`ipu.horovod`: Horovod's functions, initialised for TensorFlow over MPI.

Importing this module loads Horovod, as the original loads MPI. If Horovod is not installed, the
import fails with one line.
"""

from tfdist.ipu.horovod import ipu_horovod_strategy, popdist_strategy
from tfdist.strategies.horovod.strategy import initialize_horovod as _initialize
from tfdist.strategies.horovod.strategy import load_horovod as _load

_hvd = _load()

Adasum = _hvd.Adasum
Average = _hvd.Average
Sum = _hvd.Sum
allgather = _hvd.allgather
allreduce = _hvd.allreduce
broadcast = _hvd.broadcast
gloo_built = _hvd.gloo_built
gloo_enabled = _hvd.gloo_enabled
is_homogeneous = _hvd.is_homogeneous
local_rank = _hvd.local_rank
local_size = _hvd.local_size
mpi_built = _hvd.mpi_built
mpi_enabled = _hvd.mpi_enabled
mpi_threads_supported = _hvd.mpi_threads_supported
nccl_built = _hvd.nccl_built
rank = _hvd.rank
shutdown = _hvd.shutdown
size = _hvd.size


def ddl_built() -> bool:
    """Returns False: Horovod is built without IBM's library."""
    return False


def mlsl_built() -> bool:
    """Returns False: Horovod is built without Intel's library."""
    return False


def init() -> None:
    """Joins the other processes of the MPI job; a second call changes nothing."""
    _initialize()


__all__ = [
    "Adasum",
    "Average",
    "Sum",
    "allgather",
    "allreduce",
    "broadcast",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "ipu_horovod_strategy",
    "is_homogeneous",
    "local_rank",
    "local_size",
    "mlsl_built",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "popdist_strategy",
    "rank",
    "shutdown",
    "size",
]


def __dir__() -> list[str]:
    return [*__all__]
