"""`ipu.distributed.popdist_strategy`: training on all instances, whatever started them."""

from __future__ import annotations

import tensorflow as tf

from tfdist.ipu.devices import device_for
from tfdist.strategies import strategy_for_run
from tfdist.strategies.this_run import RunStrategy


def PopDistStrategy(
    ipu_device: str = "/device:IPU:0",
    add_ipu_cross_replica_reductions: bool = True,
    enable_dataset_iterators: bool = True,
    enable_keras_extensions: bool = True,
) -> RunStrategy:
    """Returns `strategy_for_run()` for the original's arguments, with variables on the device.

    Args:
      ipu_device: "/device:IPU:0", or another device's name.
      add_ipu_cross_replica_reductions: True; gradients are always reduced over all replicas.
      enable_dataset_iterators: Has no effect; False is logged once.
      enable_keras_extensions: Has no effect; False is logged once.

    Raises:
      ValueError: If it is another IPU than the first, or the reductions are switched off.
    """
    if not add_ipu_cross_replica_reductions:
        raise ValueError(
            "add_ipu_cross_replica_reductions is False, and only True is supported: the strategy "
            "reduces the gradients. Leave it out."
        )
    options = {
        "enable_dataset_iterators": enable_dataset_iterators,
        "enable_keras_extensions": enable_keras_extensions,
    }
    if not all(options.values()):
        unused = ", ".join(name for name, value in options.items() if not value)
        tf.compat.v1.logging.warning("PopDistStrategy: no effect without an IPU: %s.", unused)
    return strategy_for_run(device_for(ipu_device), variables_on_host=False)


IPUMultiReplicaStrategy = PopDistStrategy
