"""Devices of a pipeline: those on which the stages compute, and the host.

On a machine with GPUs the stages compute on the GPUs. On other machines they compute on logical CPU
devices. These are several names for the same cores, so that each stage can have its own device.
"""

from __future__ import annotations

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.environment import read_num_threads
from tfdist.cluster.tasks import checked_count
from tfdist.strategies.placement import HOST, limit_threads

__all__ = ["HOST", "compute_devices", "set_cpu_devices"]


def set_cpu_devices(count: int) -> None:
    """Creates logical CPU devices to compute on: CPU:1 to CPU:`count`. CPU:0 is the host.

    They divide the machine's cores: with n devices an operation uses an n-th of them, unless
    `tf.config.threading.set_intra_op_parallelism_threads` was called before. If there are already
    as many devices or more, nothing changes. On a machine with GPUs nothing changes either, and a
    warning is logged: stages compute on the GPUs. Hide the GPUs (CUDA_VISIBLE_DEVICES="") to
    compute on CPU devices there.

    Raises:
      RuntimeError: If TensorFlow is already running with fewer devices. The first operation or
        tensor starts TensorFlow; so does a Keras optimizer.
      ValueError: If count is not an integer of at least 1.
    """
    meaning = " It is how many logical CPU devices compute, beside the host."
    checked_count("count", count, more=meaning)
    gpus = tf.config.get_visible_devices("GPU")
    if gpus:
        v1.logging.warning(
            "set_cpu_devices(%d) changes nothing here: stages compute on this machine's GPUs, of "
            'which there are %d. Set CUDA_VISIBLE_DEVICES="" to compute on CPU devices.',
            count,
            len(gpus),
        )
        return
    cpu = tf.config.list_physical_devices("CPU")[0]
    needed = 1 + count
    configured = tf.config.get_logical_device_configuration(cpu)
    if configured is not None and len(configured) >= needed:
        return
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * needed
        )
    except RuntimeError:  # TensorFlow is running.
        present = len(_indices("CPU"))
        if present < needed:
            raise RuntimeError(
                f"set_cpu_devices({count}) came too late: TensorFlow is running with {present} "
                f"logical CPU device{'s' if present > 1 else ''}, and {count} beside the host need "
                f"{needed}. Call it before the first operation, tensor or optimizer, right after "
                "the imports."
            ) from None
    else:
        limit_threads(max(1, read_num_threads() // count))


def compute_devices() -> tuple[str, ...]:
    """Returns the names of this process's devices to compute on; `Stage.device(i)` is the i-th.

    On a machine with GPUs these are "/device:GPU:0" and so on. Without GPUs they are the logical
    CPU devices from "/device:CPU:1" on. Without both it is the host: ("/device:CPU:0",).

    Starts TensorFlow's runtime: `set_cpu_devices` must be called before.
    """
    gpus = _indices("GPU")
    if gpus:
        return tuple(f"/device:GPU:{index}" for index in gpus)
    beside_host = _indices("CPU")[1:]
    return tuple(f"/device:CPU:{index}" for index in beside_host) or (HOST,)


def _indices(kind: str) -> list[int]:
    """Returns the numbers of this process's logical devices of a kind."""
    specs = [
        tf.DeviceSpec.from_string(device.name) for device in tf.config.list_logical_devices(kind)
    ]
    # A strategy of several workers may list the other workers' devices after those of this process.
    return [spec.device_index for spec in specs if spec.task == specs[0].task]
