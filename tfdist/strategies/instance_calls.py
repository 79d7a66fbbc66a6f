"""A function on some of the instances only, and a point where all of them meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from tfdist.cluster.environment import find_engine, find_instance
from tfdist.cluster.progress import in_phase
from tfdist.cluster.tasks import listed
from tfdist.strategies.barrier import meet_over_grpc, meet_over_horovod
from tfdist.strategies.executing_instances import executing_instances, executing_on
from tfdist.strategies.horovod import make_process_set
from tfdist.strategies.multi_worker import start_server_of_run

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


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
            meet_over_horovod(members, timeout_s)
        else:
            meet_over_grpc(members, timeout_s)


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


def _prepare(named: tuple[int, ...]) -> None:
    """Has the engine ready for collectives between these instances; all take part."""
    if find_engine() == "horovod":
        make_process_set(named)
    else:
        start_server_of_run()
