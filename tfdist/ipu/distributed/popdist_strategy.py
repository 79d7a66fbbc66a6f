"""`ipu.distributed.popdist_strategy`: training on all instances, whatever started them."""

from __future__ import annotations

from tfdist.ipu.strategy_contract import device_for, with_originals_contract
from tfdist.strategies import strategy_for_run
from tfdist.strategies.this_run import RunStrategy


def PopDistStrategy(
    ipu_device: str = "/device:IPU:0",
    add_ipu_cross_replica_reductions: bool = True,
    enable_dataset_iterators: bool = True,
    enable_keras_extensions: bool = True,
) -> RunStrategy:
    """Returns `strategy_for_run()` for the original's arguments, with variables on the device.

    In TensorFlow 2 its datasets follow the original's contract: each instance takes its own shard,
    `dataset.shard(getNumInstances(), getInstanceIndex())`, and batches are for one replica.

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
    strategy = strategy_for_run(device_for(ipu_device), variables_on_host=False)
    return with_originals_contract(
        strategy,
        "PopDistStrategy",
        enable_dataset_iterators=enable_dataset_iterators,
        enable_keras_extensions=enable_keras_extensions,
    )


IPUMultiReplicaStrategy = PopDistStrategy
