"""Which device computes, which one holds the variables, and how a session gets both.

The *device* computes forward and backward; the *host* (always `CPU:0`) reduces gradients and,
with `variables_on_host`, holds the variables and their slots. A machine without a GPU gets a
second logical CPU as its device, so that the two places are real everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

HOST = "/device:CPU:0"

_DEVICE = re.compile(r"^(?:/device:|/)?(?P<kind>[A-Za-z]+):(?P<index>\d+)$")


class DeviceError(ValueError):
    """A device was asked for that this machine does not have."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where things are in one worker.

    Attributes:
      device: Where gradients are computed, such as "/device:GPU:0" or "/device:CPU:1".
      variables_on_host: Whether variables, slots and updates are on the host rather than
        on the device. Reductions are on the host either way.
    """

    device: str
    variables_on_host: bool = True

    @property
    def variable_device(self) -> str:
        return HOST if self.variables_on_host else self.device

    def on_device(self) -> AbstractContextManager[Any]:
        return tf.device(self.device)

    def on_host(self) -> AbstractContextManager[Any]:
        return tf.device(HOST)

    def create_variable(
        self, next_creator: Callable[..., tf.Variable], *, inside_loop: bool = False, **kwargs: Any
    ) -> tf.Variable:
        """Creates a variable where variables live; weights are read through a copy on the device.

        The copy is made once a session call. Inside a loop of steps it would go stale after
        the first one, so there every read fetches the value from the host. Variables that are not
        trainable (slots, counters) have none either: they may be read again after their update in
        the same step.

        Args:
          next_creator: As in `tf.variable_creator_scope`.
          inside_loop: Whether the variable is read inside a loop of steps.
          **kwargs: The variable's arguments. A slot variable's `colocate_with` is honoured.
        """
        # A variable made inside a loop's body belongs to the graph around it.
        with tf.init_scope():
            colocate_with = kwargs.pop("colocate_with", None)
            if colocate_with is not None:
                with tf.compat.v1.get_default_graph().colocate_with(colocate_with):
                    return next_creator(**kwargs)
            is_weight = kwargs.get("trainable") is not False
            if self.variables_on_host and is_weight and not inside_loop:
                kwargs["caching_device"] = kwargs.get("caching_device") or self.device
            # The host counts the steps, wherever the weights are.
            is_counter = kwargs.get("name") == "global_step"
            with tf.device(HOST if is_counter else self.variable_device):
                return next_creator(**kwargs)

    def configure(self, config: tf.compat.v1.ConfigProto | None) -> tf.compat.v1.ConfigProto:
        """Returns a copy of the session's config in which the device exists."""
        configured = tf.compat.v1.ConfigProto()
        if config is not None:
            configured.CopyFrom(config)
        kind, index = _split(self.device)
        if kind == "CPU":
            count = configured.device_count
            count["CPU"] = max(count["CPU"] or 1, index + 1)
        return configured


def place(device: str | None, *, variables_on_host: bool = True) -> Placement:
    """Decides this worker's placement.

    Args:
      device: A device's name ("/device:GPU:1", "GPU:1", "/gpu:1"); None means the first GPU, or
        the second logical CPU on a machine without one. Any `CPU:n` exists: logical CPUs are made.
      variables_on_host: See `Placement`.

    Raises:
      DeviceError: If the device does not exist on this machine.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if device is None:
        return Placement(
            device="/device:GPU:0" if gpus else "/device:CPU:1", variables_on_host=variables_on_host
        )
    kind, index = _split(device)
    known = {"CPU": None, "GPU": len(gpus)}
    if kind not in known or (known[kind] is not None and index >= len(gpus)):
        found = ", ".join(f"/device:GPU:{i}" for i in range(len(gpus))) or "no GPU"
        raise DeviceError(
            f"device {device!r} does not exist: this machine has {found}, and /device:CPU:n for "
            "any n. Choose one of these, or leave device out."
        )
    return Placement(device=f"/device:{kind}:{index}", variables_on_host=variables_on_host)


def _split(device: str) -> tuple[str, int]:
    match = _DEVICE.match(device) if isinstance(device, str) else None
    if match is None:
        raise DeviceError(
            f"device {device!r} is not a device's name: write it like '/device:GPU:0' or "
            "'/device:CPU:1'."
        )
    return match["kind"].upper(), int(match["index"])
