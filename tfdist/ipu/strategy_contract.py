"""Devices, datasets and methods of the original's strategies, which tfdist's have not."""

from __future__ import annotations

from typing import TypeVar

from tfdist.cluster.instances import instance_index, num_instances
from tfdist.ipu.config import IPUConfig
from tfdist.ipu.keras_options import add_methods_to_models
from tfdist.ipu.without_effect import log_without_effect
from tfdist.strategies.base import BaseStrategy

Strategy = TypeVar("Strategy", bound=BaseStrategy)


def device_for(ipu_device: str) -> str | None:
    """Returns None, this machine's own device, for "/device:IPU:0"; other names stay.

    Raises:
      ValueError: If it is another IPU than the first: a worker has one device.
    """
    if "IPU" not in ipu_device.upper():
        return ipu_device
    if not ipu_device.endswith(":0"):
        raise ValueError(
            f"ipu_device is {ipu_device!r}, and a worker has one device here. Use "
            "'/device:IPU:0' (this machine's GPU, or a second logical CPU), or a GPU's name."
        )
    return None


def with_originals_contract(strategy: Strategy, name: str, **options: bool) -> Strategy:
    """Returns the strategy with the original's contract for datasets, and its methods.

    The original's name for it is in the line that names options of False, which have no effect.
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
