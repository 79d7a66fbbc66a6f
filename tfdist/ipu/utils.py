"""`ipu.utils`: device options; only the number of devices has an effect here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf


@dataclass
class IPUConfig:
    """The original's device options.

    Attributes:
      num_ipus: The number of devices selected.
    """

    num_ipus: int = 1


def create_ipu_config(**options: Any) -> IPUConfig:
    """Returns device options; the options given have no effect, which is logged once."""
    if options:
        tf.compat.v1.logging.warning(
            "create_ipu_config: no effect without an IPU: %s.", ", ".join(sorted(options))
        )
    return IPUConfig()


def auto_select_ipus(opts: IPUConfig, num_ipus: int) -> IPUConfig:
    """Selects a number of devices: one for each replica.

    Raises:
      ValueError: If it is not an integer of at least 1.
    """
    if isinstance(num_ipus, bool) or not isinstance(num_ipus, int) or num_ipus < 1:
        raise ValueError(
            f"auto_select_ipus got num_ipus={num_ipus!r}: give an integer of at least 1, one for "
            "each replica."
        )
    return replace(opts, num_ipus=num_ipus)


def configure_ipu_system(opts: IPUConfig) -> None:
    """Does nothing: each session creates its devices."""
