"""LocalStrategy: several replicas of a model in one process."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster import PeerWatch
from tfdist.strategies.extended import WorkerExtended
from tfdist.strategies.placement import place
from tfdist.strategies.replica_count import count_replicas


class NoCollectives:
    """The collectives of a worker that is alone."""

    num_workers = 1
    worker_index = 0
    max_bucket_bytes = alone_bytes = 1 << 20

    def sum(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        return list(tensors)

    def gather(self, tensor: tf.Tensor, name: str, *, same_rows: bool = False) -> tf.Tensor:
        return tensor

    def broadcast(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        return tensor

    def among(self, instances: tuple[int, ...]) -> NoCollectives:
        return self


class LocalStrategy(v1.distribute.Strategy):  # type: ignore[misc]
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
        replicas = count_replicas(num_replicas)
        placement = place(
            device,
            variables_on_host=variables_on_host,
            num_replicas=replicas.number,
            devices_per_replica=replicas.devices_each,
        )
        super().__init__(WorkerExtended(self, placement, NoCollectives()))

    @property
    def master(self) -> str:
        """The target for a session: this process itself."""
        return ""

    def watch_peers(self) -> PeerWatch:
        """Returns a watch over nobody."""
        return PeerWatch()

    def update_config_proto(self, config_proto: v1.ConfigProto) -> v1.ConfigProto:
        """Returns a copy of a session's config with what this strategy needs."""
        return self.extended.placement.configure(config_proto)
