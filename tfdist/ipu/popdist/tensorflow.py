"""`popdist.tensorflow`: device options of this instance."""

from __future__ import annotations

from tfdist.cluster.instances import (
    check_num_devices_per_replica,
    num_devices_per_replica,
    num_local_replicas,
)
from tfdist.ipu.config import IPUConfig


def set_ipu_config(
    config: IPUConfig, ipus_per_replica: int | None = None, configure_device: bool = True
) -> IPUConfig:
    """Selects a device for each replica of this instance, as `utils.auto_select_ipus` does.

    Args:
      config: The options that `utils.create_ipu_config` returned; they are changed.
      ipus_per_replica: The number of devices that the program expects for each replica.
      configure_device: If False, the options stay as they are.

    Raises:
      ValueError: If the launcher gives a replica another number of devices.
    """
    if ipus_per_replica is not None and not check_num_devices_per_replica(ipus_per_replica):
        raise ValueError(
            f"set_ipu_config got ipus_per_replica={ipus_per_replica}, but tfdist run was given "
            f"--devices-per-replica {num_devices_per_replica()}. Make them equal."
        )
    if configure_device:
        config.auto_select_ipus = num_local_replicas()
    return config
