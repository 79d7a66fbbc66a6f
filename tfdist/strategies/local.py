"""LocalStrategy: several replicas of a model in one process."""

from __future__ import annotations

from tfdist.strategies.base import BaseStrategy
from tfdist.strategies.placement import count_replicas
from tfdist.strategies.reductions.engine import NoCollectives


class LocalStrategy(BaseStrategy):
    """Synchronous training of several replicas in this process, each on its own device.

    The replicas share one set of variables. Each computes the gradients of its own batch on its
    device; they are averaged and applied on the host. The Estimator makes one by itself for
    `DeviceConfig(num_replicas=...)` and for a `tf.distribute.MirroredStrategy`.

    Args:
      num_replicas: How many; None is what `tfdist run` says, or 1. Where `tfdist run` says another
        number, it wins.
      device: The first one's device, the others take the ones after it; None is the first GPU, or
        the second logical CPU on a machine without one.
      variables_on_host: Whether variables, slots and updates live on the host, or on the first
        replica's device.

    Raises:
      DeviceError: If a device does not exist.
      ValueError: If num_replicas is not an integer of at least 1.
    """

    def __init__(
        self,
        num_replicas: int | None = None,
        device: str | None = None,
        variables_on_host: bool = True,
    ) -> None:
        super().__init__(
            NoCollectives(),
            replicas=count_replicas(num_replicas),
            device=device,
            variables_on_host=variables_on_host,
        )
