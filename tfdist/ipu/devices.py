"""The device that stands for an IPU's name."""

from __future__ import annotations


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
