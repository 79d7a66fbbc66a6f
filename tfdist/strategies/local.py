"""LocalStrategy: several replicas of a model in one process."""

from __future__ import annotations

from typing import Any

from tfdist.strategies.base import BaseStrategy
from tfdist.strategies.placement import count_replicas
from tfdist.strategies.reductions.engine import NoCollectives


class LocalStrategy(BaseStrategy):
    """Synchronous training of several replicas in this process, each on another device.

    The replicas share one set of variables. Each computes the gradients of its own batch on its
    device; they are averaged and applied on the host. The Estimator makes a `LocalStrategy` itself
    for `DeviceConfig(num_replicas=...)` and for a `tf.distribute.MirroredStrategy`.

        config = RunConfig(train_distribute=LocalStrategy(num_replicas=2))

    Args:
      num_replicas: The number of replicas. None takes the number given to `tfdist run`, or 1; if
        both are given, `tfdist run` wins.
      device: The device of the first replica; the others take the devices after it. None is the
        first GPU, or the second logical CPU on a machine without one.
      variables_on_host: Whether variables, slots and updates are on the host rather than on the
        device of the first replica.
      variable_partitioner: As in `MultiWorkerStrategy`. One process holds every row.

    Raises:
      DeviceError: If a device does not exist.
      ValueError: If num_replicas is not an integer of at least 1.
    """

    def __init__(
        self,
        num_replicas: int | None = None,
        device: str | None = None,
        variables_on_host: bool = True,
        *,
        variable_partitioner: Any = None,
    ) -> None:
        super().__init__(
            NoCollectives(),
            replicas=count_replicas(num_replicas),
            device=device,
            variables_on_host=variables_on_host,
            partitioner=variable_partitioner,
        )
