"""Functions for the run that this process is part of: its strategy, its instances, a barrier."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeAlias, TypeVar

from tfdist.cluster.arguments import check_number
from tfdist.cluster.environment import find_engine, find_instance
from tfdist.process.progress_file import in_phase
from tfdist.process.text import listed
from tfdist.strategies.grpc.servers import find_membership
from tfdist.strategies.grpc.strategy import MultiWorkerStrategy, start_server_of_run
from tfdist.strategies.horovod.strategy import (
    HorovodCollectives,
    HorovodStrategy,
    initialize_horovod,
    make_process_set,
)
from tfdist.strategies.local import LocalStrategy
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
    variable_partitioner: Any = None,
) -> RunStrategy:
    """Makes the strategy that fits the way in which this process was started.

    `MultiWorkerStrategy` if TF_CONFIG or a Slurm step lists the workers; else `HorovodStrategy` if
    `mpirun` or `horovodrun` started several processes; else `LocalStrategy`, also under a launcher
    of one process, which needs no Horovod. An evaluator task gets a `MultiWorkerStrategy` with
    itself as the only worker.

    Args:
      device: The device that computes gradients. None is a GPU of this process, or a second logical
        CPU.
      variables_on_host: Whether variables, slots and updates are on the host rather than on the
        device.
      num_replicas: The number of copies of the model in each worker, on `device` and the devices
        after it. None takes the number given to `tfdist run`, or 1.
      compression: "fp16" or "bf16" sends float32 gradients to other workers in half precision. No
        effect in a run of one process.
      variable_partitioner: A partitioner of `tf.distribute.experimental.partitioners`, or None. A
        variable of which it makes more than one shard is divided between the workers.

    Raises:
      ValueError: If `compression` or `num_replicas` is not allowed.
      ClusterError: If TF_CONFIG or a launcher's variables are malformed or contradict each other.
      HorovodNotFoundError: If `mpirun` or `horovodrun` started it, and Horovod or its library is
        missing.
      RendezvousError: If this worker's port is in use.
      DeviceError: If a device does not exist.
    """
    find_half(compression)  # Checked also in a run of one process.
    engine = find_engine()
    if engine == "horovod":
        return HorovodStrategy(
            device,
            variables_on_host,
            num_replicas=num_replicas,
            compression=compression,
            variable_partitioner=variable_partitioner,
        )
    if engine == "grpc":
        return MultiWorkerStrategy(
            None,
            device,
            variables_on_host,
            num_replicas=num_replicas,
            compression=compression,
            variable_partitioner=variable_partitioner,
        )
    return LocalStrategy(
        num_replicas, device, variables_on_host, variable_partitioner=variable_partitioner
    )


def join_run() -> None:
    """Joins the other processes of an MPI job; does nothing in a run without one.

    A collective: every process of the job must call it. A strategy does the same, so a program
    needs this only to use Horovod before it makes a strategy.

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
    """Calls a function on some of the instances, with collectives between these only.

    Every instance must call this, with the same instances; those not named return at once. In the
    function every strategy of this process, even one made before, reduces, gathers and broadcasts
    among the named instances: `num_replicas_in_sync` and the input context count only these, and
    the first of them is the chief. It is for a strategy's functions in a graph and session made
    in the function. A `RunConfig` belongs to the whole run: train with an Estimator outside.

    Returns the result of `function`, called with `args` and `kwargs`, on the `instances` whose
    indices are named; None on the others.

    Raises:
      ValueError: If there is no instance, or one that the run does not have.
      RuntimeError: If such a function calls it, or several instances are named in a run over gRPC
        that has no strategy yet.
    """
    own = find_instance()
    named = _checked(instances, own.num_instances)
    if executing_instances() is not None:
        raise RuntimeError(
            "execute_on_instances was called by a function that it executes itself: the other "
            "instances would have to take part. Call it after that function has returned."
        )
    if own.num_instances > 1 and len(named) > 1:  # Every instance prepares the engine.
        if find_engine() == "horovod":
            make_process_set(named)
        else:
            start_server_of_run()
    if own.index not in named:
        return None
    with executing_on(named):
        return function(*args, **kwargs)


def synchronize(timeout_s: float = 1800.0) -> None:
    """Waits until every instance has called this as often as this one has.

    Inside `execute_on_instances` those named wait for each other. In a run of one process it
    returns at once, and in an evaluator. Over gRPC an instance that waits reports twice a minute
    which ones are missing; over Horovod the first instance does, once a minute, by Horovod's own
    warning.

    Raises:
      ValueError: If `timeout_s` is not a finite number above 0.
      RendezvousError: If an instance is missing after so many seconds.
      WorkerLostError: If the process of another instance has ended.
    """
    check_number("timeout_s", timeout_s, above=0)
    own = find_instance()
    members = executing_instances() or tuple(range(own.num_instances))
    if len(members) == 1:
        return
    with in_phase("waiting"):
        if find_engine() == "horovod":
            hvd = initialize_horovod()
            ranks = None if len(members) == hvd.size() else members
            meet_over_horovod(HorovodCollectives(hvd, ranks), timeout_s)
        else:
            meet_over_grpc(members, timeout_s, find_membership)


def _checked(instances: Iterable[int], count: int) -> tuple[int, ...]:
    named = sorted(set(instances))
    unknown = [index for index in named if index not in range(count)]
    if unknown or not named:
        allowed = listed([str(index) for index in range(count)])
        what = f"instance {unknown[0]!r}" if unknown else "no instance"
        raise ValueError(
            f"execute_on_instances got {what}, and this run has {allowed}. Name one or more of "
            "these."
        )
    return tuple(int(index) for index in named)
