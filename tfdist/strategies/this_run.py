"""The strategy of this run, calls on some of its instances, and a point where all of them meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeAlias, TypeVar

from tfdist.cluster.environment import find_engine, find_instance
from tfdist.cluster.tasks import listed
from tfdist.process.progress_file import in_phase
from tfdist.strategies.horovod.strategy import (
    HorovodCollectives,
    HorovodStrategy,
    initialize_horovod,
    make_process_set,
)
from tfdist.strategies.local import LocalStrategy
from tfdist.strategies.multi_worker import MultiWorkerStrategy, has_server, start_server_of_run
from tfdist.strategies.reductions.compression import Compression, find_half
from tfdist.strategies.reductions.engine import executing_instances, executing_on
from tfdist.strategies.values.barrier import meet_over_grpc, meet_over_horovod

RunStrategy: TypeAlias = "HorovodStrategy | LocalStrategy | MultiWorkerStrategy"

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def strategy_for_run(
    device: str | None = None,
    variables_on_host: bool = True,
    *,
    num_replicas: int | None = None,
    compression: Compression | None = None,
) -> RunStrategy:
    """Makes the strategy that this process's start asks for.

    `MultiWorkerStrategy` where TF_CONFIG or a Slurm step lists the workers, else `HorovodStrategy`
    where `mpirun` or `horovodrun` started several processes, else `LocalStrategy`: alone, and under
    a launcher of one process, which needs no Horovod. An evaluator task gets a
    `MultiWorkerStrategy`, whose one worker it is.

    Args:
      device: As in those strategies.
      variables_on_host: As there.
      num_replicas: As there.
      compression: As there; a process on its own sends no gradients.

    Raises:
      ValueError: If `compression` or `num_replicas` is something else.
      ClusterError: If what the process was started with is malformed or contradicts itself.
      HorovodNotFoundError: If one of these started it, and Horovod or its library is missing.
      RendezvousError: If this worker's port is in use.
      DeviceError: If a device does not exist.
    """
    find_half(compression)  # Refused in every run, also in one that sends no gradients.
    engine = find_engine()
    if engine == "horovod":
        return HorovodStrategy(
            device, variables_on_host, num_replicas=num_replicas, compression=compression
        )
    if engine == "grpc":
        return MultiWorkerStrategy(
            None, device, variables_on_host, num_replicas=num_replicas, compression=compression
        )
    return LocalStrategy(num_replicas, device, variables_on_host)


def join_run() -> None:
    """Joins the other processes of an MPI job; does nothing in a run without one.

    A collective of that job. A strategy does the same, so a program needs this only to talk over
    Horovod before it makes one.

    Raises:
      HorovodNotFoundError: If Horovod or its MPI library is missing.
    """
    if find_engine() == "horovod":
        initialize_horovod()


def execute_on_instances(
    instances: Iterable[int],
    function: Callable[Arguments, Result],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Result | None:
    """Calls a function on some of the instances, whose collectives are theirs alone meanwhile.

    Every instance must call this, with the same instances; those not named return at once. In the
    function every strategy of this process, whenever it was made, reduces, gathers and broadcasts
    among the named instances: `num_replicas_in_sync` and the input context count them only, and
    the first of them is the chief. It is for a strategy's functions in a graph and session made
    there. A `RunConfig` keeps to the whole run: train with an Estimator outside.

    Args:
      instances: Their indices.
      function: What to call.
      *args: Its arguments.
      **kwargs: Its keyword arguments.

    Returns:
      What the function returned, on the instances named; None on the others.

    Raises:
      ValueError: If there is no instance, or one that the run does not have.
      RuntimeError: If it is called by such a function, or several instances are named in a run
        over gRPC that has no strategy yet.
    """
    own = find_instance()
    named = _checked(instances, own.num_instances)
    if executing_instances() is not None:
        raise RuntimeError(
            "execute_on_instances was called by a function that it executes itself: the other "
            "instances would have to take part. Call it after that function has returned."
        )
    if own.num_instances > 1 and len(named) > 1:
        _prepare(named)
    if own.index not in named:
        return None
    with executing_on(named):
        return function(*args, **kwargs)


def synchronize(timeout_s: float = 1800.0) -> None:
    """Waits until every instance has called this as often as this one has.

    Inside `execute_on_instances` those named wait for each other. A process on its own goes on at
    once, and so does an evaluator. Over gRPC those that wait say twice a minute who is missing;
    over Horovod its own warning on the first instance does, once a minute.

    Args:
      timeout_s: How long to wait for the others, in seconds.

    Raises:
      RendezvousError: If somebody is missing after that.
      WorkerLostError: If the process of another instance has ended.
    """
    own = find_instance()
    members = executing_instances() or tuple(range(own.num_instances))
    if len(members) == 1:
        return
    with in_phase("waiting"):
        if find_engine() == "horovod":
            meet_over_horovod(_horovod_collectives(members), timeout_s)
        else:
            meet_over_grpc(members, timeout_s, has_server)


def _checked(instances: Iterable[int], count: int) -> tuple[int, ...]:
    named = sorted(set(instances))
    unknown = [one for one in named if one not in range(count)]
    if unknown or not named:
        allowed = listed([str(index) for index in range(count)])
        what = f"instance {unknown[0]!r}" if unknown else "no instance"
        raise ValueError(
            f"execute_on_instances got {what}, and this run has {allowed}. Name one or more of "
            "these."
        )
    return tuple(int(one) for one in named)


def _horovod_collectives(members: tuple[int, ...]) -> HorovodCollectives:
    hvd = initialize_horovod()
    return HorovodCollectives(hvd, None if len(members) == hvd.size() else members)


def _prepare(named: tuple[int, ...]) -> None:
    """Has the engine ready for collectives between these instances; all take part."""
    if find_engine() == "horovod":
        make_process_set(named)
    else:
        start_server_of_run()
