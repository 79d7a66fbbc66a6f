"""`ipu.distributed.popdist_strategy`: training on all instances, whatever started them."""

from __future__ import annotations

from typing import TypeVar

from tfdist.cluster.instances import instance_index, num_instances
from tfdist.ipu.config import IPUConfig
from tfdist.ipu.devices import device_for
from tfdist.ipu.keras_options import add_methods_to_models
from tfdist.ipu.without_effect import log_without_effect
from tfdist.strategies import strategy_for_run
from tfdist.strategies.base import BaseStrategy
from tfdist.strategies.this_run import RunStrategy

Strategy = TypeVar("Strategy", bound=BaseStrategy)


def PopDistStrategy(
    ipu_device: str = "/device:IPU:0",
    add_ipu_cross_replica_reductions: bool = True,
    enable_dataset_iterators: bool = True,
    enable_keras_extensions: bool = True,
) -> RunStrategy:
    """Returns `strategy_for_run()` for the original's arguments, with variables on the device.

    In TensorFlow 2 its datasets follow the original's contract: each instance takes its own shard,
    `dataset.shard(getNumInstances(), getInstanceIndex())`, and batches are those of one replica.

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


def with_originals_contract(strategy: Strategy, name: str, **options: bool) -> Strategy:
    """Returns the strategy with the original's contract for datasets, and its methods.

    Args:
      strategy: The strategy.
      name: The original's name for it.
      **options: Options of which False has no effect, which is logged.
    """
    log_without_effect(name, [option for option in options if not options[option]])
    add_methods_to_models()
    strategy.extended.divides_batches = False
    add_originals_methods(strategy)
    return strategy


def add_originals_methods(strategy: BaseStrategy) -> None:
    """Gives a strategy the methods that only the original's have."""
    strategy.experimental_run_v2 = strategy.run
    strategy.update_ipu_config = update_ipu_config


def update_ipu_config(config: IPUConfig) -> None:
    """Writes the number of instances and this one's index into device options.

    They have no effect here: the strategy asks for them itself.
    """
    config.note_instance(num_instances(), instance_index())


IPUMultiReplicaStrategy = PopDistStrategy
