"""How many replicas this worker has: what the launcher said, else what the program asks for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tfdist.cluster import ClusterError
from tfdist.cluster.environment import find_launched_replicas
from tfdist.cluster.rendezvous import print_to_stderr
from tfdist.strategies.placement import check_num_replicas


@dataclass(frozen=True, kw_only=True)
class ReplicaCount:
    """The replicas of this worker.

    Attributes:
      number: How many there are.
      devices_each: How many devices belong to each.
    """

    number: int = 1
    devices_each: int = 1

    @property
    def num_devices(self) -> int:
        """How many devices this worker takes."""
        return self.number * self.devices_each


def count_replicas(asked: int | None) -> ReplicaCount:
    """Decides how many replicas this worker has.

    Where the launcher and the program disagree the launcher wins, and the first instance says so
    in one line.

    Args:
      asked: What the program asks for in each worker; None leaves it to the launcher, or is 1.

    Raises:
      ValueError: If `asked` is not an integer of at least 1.
      ClusterError: If the launcher's variables contradict each other, or the instances have
        different numbers of replicas.
    """
    if asked is not None:
        check_num_replicas(asked)
    told = find_launched_replicas()
    if told is None:
        return ReplicaCount(number=asked or 1)
    if not told.is_uniform:
        raise ClusterError(
            f"this instance has {told.num_local_replicas} of {told.num_total_replicas} replicas "
            "and others have more or fewer: the mean over workers would weigh them wrongly. Give "
            "every instance as many."
        )
    if asked not in (None, told.num_local_replicas) and told.index == 0:
        _say_overridden(told.num_local_replicas)
    return ReplicaCount(number=told.num_local_replicas, devices_each=told.devices_per_replica)


@cache  # A program may give the number in several places.
def _say_overridden(number: int) -> None:
    print_to_stderr(
        f"The number of replicas is overridden by tfdist run. The new value is {number}."
    )
