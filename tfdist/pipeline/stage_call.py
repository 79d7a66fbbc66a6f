"""The call of a stage's function on its device: a logical CPU device is one core."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist.pipeline.pieces import Piece
from tfdist.strategies.private_tensorflow import run_independently


def call_on_device(piece: Piece, values: Sequence[tf.Tensor], device: str) -> list[tf.Tensor]:
    """Calls a stage's function.

    On a logical CPU device its operations run one after the other in one thread. Otherwise the
    operations of one stage would take the cores that are meant for the others, and at a higher
    price. A stage with a loop or a condition needs more threads.

    Args:
      piece: The function.
      values: Its arguments.
      device: Name of the stage's device.

    Returns:
      What the function gives.
    """
    executor = "SINGLE_THREADED_EXECUTOR" if _fits_one_thread(piece, values, device) else ""
    with tf.device(device), tf.experimental.function_executor_type(executor):
        results = list(piece.function(*values))
    if results and not _handles(values):
        # Else the calls with random draws would come in turn, and the devices with them.
        run_independently(results[0].op)
    return results


def _fits_one_thread(piece: Piece, values: Sequence[tf.Tensor], device: str) -> bool:
    """Says whether all operations run on one CPU device, and none waits for another thread.

    An operation runs where the variable is whose handle it takes. With a second device in the
    function, one thread could wait for a tensor that waits for its own next operation; with a call
    in it, all threads could wait for calls that no thread is left to run.
    """
    here = _kind_and_index(device)
    return (
        here[0] == "CPU"
        and all(_kind_and_index(_device_of(handle)) == here for handle in _handles(values))
        and piece.is_straight
    )


def _handles(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [value for value in values if value.dtype == tf.resource]


def _device_of(handle: tf.Tensor) -> str:
    """Returns the device of a variable's handle, of whose stand-in a loop's body has another."""
    graph = getattr(handle, "graph", None)
    outer = {id(inner): one for one, inner in getattr(graph, "captures", ())}.get(id(handle))
    return str(handle.device) if outer is None else _device_of(outer)


def _kind_and_index(device: str) -> tuple[str | None, int | None]:
    spec = tf.DeviceSpec.from_string(device)
    return spec.device_type, spec.device_index
