"""The rule by which a launcher starts its workers again after they have ended.

    end of a start                                            next
    ---------------------------------------------------------------------------------------------
    asked to stop, or no worker has failed                    Stop
    the workers left so that hosts can join                   Grow
    another process took a port                               Restart with other ports, three times
    the failure would come again, or no restart is left       Stop
    --min-instances, and hosts may be lost                    LookForHosts, then one of these:
        too few instances would be left                           Stop
        hosts are lost, or a worker has failed twice              Shrink
        else                                                      Restart

`tfdist run` and the job of `tfdist slurm` ask `next_start` after each start, with the `History` of
the run, the `End` of this start, and the `Limits` that the user has set.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tfdist.launch.failures.failure import Failure, why_permanent
from tfdist.launch.failures.first_failure import has_failed
from tfdist.process.exit_codes import (
    BAD_CONFIGURATION,
    CANNOT_RUN,
    NO_SPACE,
    NOT_FOUND,
    PORT_TAKEN,
    STOP_CODES,
)
from tfdist.process.text import listed

# The number of starts with other ports, after another process took a port, before the run fails.
MOST_NEW_PORTS = 3


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The starts that the user and the kind of run allow.

    Attributes:
      min_instances: The smallest number of instances; None if the size must not change.
      can_change_ports: Whether the launcher chooses the ports.
      can_leave_out_one: Whether one instance of a host can be left out.
    """

    max_restarts: int
    min_instances: int | None = None
    can_change_ports: bool = True
    can_leave_out_one: bool = True


@dataclass(frozen=True, kw_only=True)
class End:
    """The end of one start of the workers.

    Attributes:
      failure: The failure that ended it; None if no worker is known to have failed.
      start_error: Why the workers could not be started; "" if they were.
      must_stop: Whether the run is over whatever has happened: it was asked to stop, for example.
      is_for_joining: Whether the workers were asked to leave so that hosts can join.
      hosts: The host of each instance; with `is_for_joining` also those that join.
      lost_hosts: The hosts that do not answer; None if some may not, and it is not known yet.
    """

    exit_code: int = 0
    failure: Failure | None = None
    start_error: str = ""
    must_stop: bool = False
    is_for_joining: bool = False
    hosts: Sequence[str] = ()
    lost_hosts: Collection[str] | None = ()


@dataclass(frozen=True, kw_only=True)
class Stop:
    """The run is over.

    Attributes:
      reason: Why the workers do not start again; "" if no restart was to be expected.
    """

    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Restart:
    """The same number of workers starts again.

    Attributes:
      with_other_ports: Whether another process took a port, which costs no restart.
    """

    with_other_ports: bool = False


@dataclass(frozen=True, kw_only=True)
class Shrink:
    """Fewer workers start again.

    Attributes:
      hosts: The host of each instance that is left.
      reason: Why the others are left out.
    """

    hosts: Sequence[str]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Grow:
    """More workers start, with the hosts that have joined."""


@dataclass(frozen=True, kw_only=True)
class LookForHosts:
    """The caller must find `End.lost_hosts`, and ask again."""


NextStart: TypeAlias = Stop | Restart | Shrink | Grow | LookForHosts


@dataclass(frozen=True, kw_only=True)
class History:
    """The starts of a run so far.

    Attributes:
      restarts: The starts after a failure.
      joins: The starts with hosts that have joined.
      new_ports: The starts with other ports.
      earlier: The failure of the start before; None if there was none, or if that start had other
        workers.
      has_failed_to_start: Whether the workers could not be started although all hosts answered.
    """

    restarts: int = 0
    joins: int = 0
    new_ports: int = 0
    earlier: Failure | None = None
    has_failed_to_start: bool = False

    @property
    def starts(self) -> int:
        """The number of earlier starts, without those that only changed the ports."""
        return self.restarts + self.joins

    def after(self, end: End, decision: NextStart) -> History:
        """Returns the history with a start that ended so, and what was decided."""
        if isinstance(decision, Stop | LookForHosts):
            return self
        now = replace(self, has_failed_to_start=False)
        if end.is_for_joining:
            now = replace(now, joins=now.joins + 1, earlier=None)
        if isinstance(decision, Grow):
            return now
        if isinstance(decision, Restart) and decision.with_other_ports:
            return replace(now, new_ports=now.new_ports + 1)
        now = replace(now, restarts=now.restarts + 1)
        if end.start_error:
            return replace(now, has_failed_to_start=not end.lost_hosts)
        return replace(now, earlier=None if isinstance(decision, Shrink) else end.failure)


def next_start(history: History, end: End, limits: Limits) -> NextStart:
    """Returns what follows the end of a start."""
    if end.start_error:
        return _after_start_error(history, end, limits)
    if end.must_stop:
        return Stop()
    if end.is_for_joining and end.exit_code in STOP_CODES:
        return Grow()  # A worker without a handler yet may have left before another one could save.
    if end.failure is None and not has_failed(end.exit_code):
        return Stop()
    is_port_taken = end.exit_code == PORT_TAKEN and limits.can_change_ports
    if is_port_taken and history.new_ports < MOST_NEW_PORTS:
        return Restart(with_other_ports=True)
    earlier = None if end.is_for_joining else history.earlier
    reason = _why_over(history, end, limits, earlier)
    if reason:
        return Stop(reason=reason)
    if limits.min_instances is None:
        return Restart()
    if end.lost_hosts is None:
        return LookForHosts()
    return _with_fewer(end, limits, earlier)


def _after_start_error(history: History, end: End, limits: Limits) -> NextStart:
    """A restart that fails although all hosts answer is tried once more: one was away meanwhile."""
    if end.must_stop or limits.min_instances is None or history.restarts >= limits.max_restarts:
        return Stop()
    if end.lost_hosts is None:
        return LookForHosts()
    if not end.lost_hosts and (history.starts == 0 or history.has_failed_to_start):
        return Stop()
    return _with_fewer(end, limits, None)


def _why_over(history: History, end: End, limits: Limits, earlier: Failure | None) -> str:
    """Returns why the workers do not start again after a failure; "" if they may."""
    if end.exit_code in (BAD_CONFIGURATION, CANNOT_RUN, NOT_FOUND):
        return "the configuration is invalid, so a restart would fail again"
    if end.exit_code == NO_SPACE:
        return "there is no room for a checkpoint, so a restart would fail again"
    permanent = "" if end.failure is None else why_permanent(end.failure, earlier)
    if permanent:
        return permanent
    if history.restarts >= limits.max_restarts:
        return f"{history.restarts} of {limits.max_restarts} restarts are used"
    return ""


def _with_fewer(end: End, limits: Limits, earlier: Failure | None) -> NextStart:
    """Leaves out lost hosts, else the instance of a worker that has failed twice in a row.

    The instance stays if too few would be left.
    """
    smallest, failure, lost = limits.min_instances or 1, end.failure, end.lost_hosts or ()
    left = [host for host in end.hosts if host not in lost]
    if len(left) < max(1, smallest):
        return Stop(
            reason=f"{_lost(lost)}, and fewer than --min-instances {smallest} would be left"
        )
    if lost:
        return Shrink(hosts=left, reason=_lost(lost))
    has_failed_again = (
        failure is not None
        and earlier is not None
        and earlier.index == failure.index
        and failure.index < len(left)  # An evaluator is no instance.
    )
    if failure is None or not has_failed_again or not limits.can_leave_out_one:
        return Restart()
    if len(left) - 1 < max(1, smallest):
        return Restart()
    host = left[failure.index]
    del left[len(left) - 1 - left[::-1].index(host)]  # The order of the hosts stays.
    return Shrink(hosts=left, reason=f"{failure.name} has failed twice in a row")


def _lost(hosts: Collection[str]) -> str:
    return f"{listed(sorted(hosts))} cannot be reached"
