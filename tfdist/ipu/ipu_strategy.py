"""`ipu.ipu_strategy`: training in this process alone, whatever others were started with it."""

from __future__ import annotations

from tfdist.ipu.strategy_contract import device_for, with_originals_contract
from tfdist.strategies import LocalStrategy


def IPUStrategy(
    ipu_device: str = "/device:IPU:0",
    enable_dataset_iterators: bool = True,
    enable_keras_extensions: bool = True,
) -> LocalStrategy:
    """Returns a `LocalStrategy` for the original's arguments, with variables on the device.

    Its replicas are this instance's, and take the dataset's batches in turn. Instances know
    nothing of each other. The arguments are as in `PopDistStrategy`.

    Raises:
      ValueError: If it is another IPU than the first.
    """
    strategy = LocalStrategy(device=device_for(ipu_device), variables_on_host=False)
    return with_originals_contract(
        strategy,
        "IPUStrategy",
        enable_dataset_iterators=enable_dataset_iterators,
        enable_keras_extensions=enable_keras_extensions,
    )


IPUStrategyV1 = IPUStrategy
