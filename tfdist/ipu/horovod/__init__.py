"""`ipu.horovod`: Horovod's functions, initialised for TensorFlow over MPI.

Importing this module loads Horovod, as the original loads MPI. If Horovod is not installed, the
import fails with one line.
"""

from typing import Any

from tfdist.ipu.horovod import ipu_horovod_strategy, popdist_strategy
from tfdist.strategies.horovod.strategy import initialize_horovod as _initialize
from tfdist.strategies.horovod.strategy import load_horovod as _load

_hvd = _load()
_NAMES = (
    *("Adasum", "Average", "Sum", "allgather", "allreduce", "broadcast", "gloo_built"),
    *("gloo_enabled", "is_homogeneous", "local_rank", "local_size", "mpi_built", "mpi_enabled"),
    *("mpi_threads_supported", "nccl_built", "rank", "shutdown", "size"),
)
__all__ = [*_NAMES, "ddl_built", "init", "ipu_horovod_strategy", "mlsl_built", "popdist_strategy"]


def __getattr__(name: str) -> Any:
    """Returns a name of Horovod's."""
    if name in _NAMES:
        return getattr(_hvd, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def ddl_built() -> bool:
    """Returns False: Horovod is built without IBM's library."""
    return False


def mlsl_built() -> bool:
    """Returns False: Horovod is built without Intel's library."""
    return False


def init() -> None:
    """Joins the other processes of the MPI job; a second call changes nothing."""
    _initialize()


def __dir__() -> list[str]:
    return [*__all__]
