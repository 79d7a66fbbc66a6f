"""`ipu.utils`: device options, without effect here; asking for several devices is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@dataclass
class IPUConfig:
    """Stands where the original's device options stood.

    Attributes:
      num_ipus: How many devices were selected.
    """

    num_ipus: int = 1


def create_ipu_config(**options: Any) -> IPUConfig:
    """Returns device options; each one given is named once as having no effect."""
    if options:
        tf.compat.v1.logging.warning(
            "create_ipu_config: no effect without an IPU: %s.", ", ".join(sorted(options))
        )
    return IPUConfig()


def auto_select_ipus(opts: IPUConfig, num_ipus: int) -> IPUConfig:
    """Selects one device; a worker has one here.

    Raises:
      ValueError: For more than one.
    """
    if num_ipus != 1:
        raise ValueError(
            f"auto_select_ipus got num_ipus={num_ipus}, and a worker has one device here. Start "
            "one worker for each."
        )
    return opts


def configure_ipu_system(opts: IPUConfig) -> None:
    """Does nothing: a session makes its own devices."""
