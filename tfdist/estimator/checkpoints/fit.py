"""The comparison of a model's variables with the checkpoint that they will be restored from.

TensorFlow compares names and dtypes, but not shapes: a variable takes the shape in the checkpoint,
and a changed layer would continue training with its old shape. So the comparison is made before the
restore. It reads from the graph the ops that a saver has built, with the names that they restore:

    RestoreV2(path, names, slices) -> (Identity | Reshape)* -> AssignVariableOp(variable, value)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import tensorflow as tf
import tensorflow.compat.v1 as v1
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from tfdist.process.endings import OneLineError

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # Key of object-based checkpoints; no public name.


class CheckpointMismatchError(
    OneLineError,
    ValueError,
    tf.errors.InvalidArgumentError,  # type: ignore[misc]
    tf.errors.NotFoundError,  # type: ignore[misc]
):
    """Raised for a checkpoint that lacks a value that the model restores.

    Programs catch what TensorFlow raised in its place: a ValueError at a warm start, and at a
    restore an InvalidArgumentError for a shape or a NotFoundError for a name.

    Args:
      message: The line for the user.
    """

    def __init__(self, message: str) -> None:
        tf.errors.OpError.__init__(self, None, None, message, tf.errors.INVALID_ARGUMENT)
        super().__init__(message)


@dataclass(frozen=True, kw_only=True)
class CheckpointValue:
    """One value of a model or a checkpoint.

    Attributes:
      dtype: Its type.
      shape: Its shape, including all slices; in a model it may be unknown.
      is_reshaped: Whether the model takes any shape with the same number of elements.
    """

    dtype: tf.DType
    shape: tf.TensorShape
    is_reshaped: bool = False

    def __str__(self) -> str:
        shape = "of any shape" if self.shape.rank is None else str(self.shape.as_list())
        return f"{self.dtype.name} {shape}"

    @property
    def num_bytes(self) -> int:
        """Size of its elements in a file; 0 if the shape is unknown or the element size varies."""
        return (self.shape.num_elements() or 0) * (
            0 if self.dtype == tf.string else self.dtype.size
        )

    def accepts(self, saved: CheckpointValue) -> bool:
        if self.is_reshaped and self.shape.is_fully_defined():
            has_shape = self.shape.num_elements() == saved.shape.num_elements()
        else:
            has_shape = self.shape.is_compatible_with(saved.shape)
        return has_shape and self.dtype == saved.dtype


def difference(
    wanted: Mapping[str, CheckpointValue], saved: Mapping[str, CheckpointValue]
) -> str | None:
    """Describes the first value that a model restores and a checkpoint lacks; None without one."""
    differing = [
        name
        for name, value in wanted.items()
        if name not in saved or not value.accepts(saved[name])
    ]
    if not differing:
        return None
    first = differing[0]
    if first in saved:
        what = f"{first} is {saved[first]} in the checkpoint and {wanted[first]} in the model"
    else:
        what = f"{first} ({wanted[first]} in the model) is not in the checkpoint"
    return f"{what} (variables that differ: {len(differing)} of {len(wanted)})"


def mismatch(saver: v1.train.Saver, checkpoint: str) -> str | None:
    """Compares what a built saver of the current graph will restore with a checkpoint.

    Returns:
      One line for the user; None if all values can be restored. Also None for a checkpoint that
      cannot be read, because restoring it reports the error.
    """
    what = _difference(values_of(saver, v1.get_default_graph()), checkpoint)
    return what and (
        f"Restoring from checkpoint failed for a mismatch between {checkpoint} and the model: "
        f"{what}. Use another model_dir, or the model that wrote the checkpoint."
    )


def values_of(saver: v1.train.Saver, graph: tf.Graph) -> dict[str, CheckpointValue]:
    """Returns the values that a built saver of a graph saves and restores, by name."""
    if not isinstance(getattr(saver, "saver_def", None), v1.train.SaverDef):
        return {}  # It saves nothing, or is a stand-in for a saver.
    path = graph.get_tensor_by_name(saver.saver_def.filename_tensor_name)
    return _restored_by(op for op in path.consumers() if op.type == "RestoreV2")


def check_initial_values(checkpoint: str) -> None:
    """Raises an error for a checkpoint that does not fit the initializers which read from it.

    TensorFlow compared names and shapes when it built the initializers, but not dtypes.
    """
    restores = [
        op
        for op in v1.get_default_graph().get_operations()
        if op.type == "RestoreV2"
        and tf.get_static_value(op.inputs[0]) == tf.compat.as_bytes(checkpoint)
    ]
    what = _difference(_restored_by(restores), checkpoint)
    if what is not None:
        raise CheckpointMismatchError(
            f"Checkpoint {checkpoint} does not fit the model that starts from it: {what}. Name in "
            "vars_to_warm_start only variables that fit."
        )


def _difference(wanted: Mapping[str, CheckpointValue], checkpoint: str) -> str | None:
    try:
        reader = tf.train.load_checkpoint(checkpoint)
        dtypes = reader.get_variable_to_dtype_map()
        shapes = reader.get_variable_to_shape_map()
    except tf.errors.OpError:
        return None
    saved = {
        name: CheckpointValue(dtype=tf.as_dtype(dtypes[name]), shape=tf.TensorShape(shape))
        for name, shape in shapes.items()
    }
    if _OBJECT_GRAPH in saved and not v1.get_default_graph().finalized:
        # A saver searches the object graph for missing names, and adds operations for them.
        keys = _keys_by_name(reader.get_tensor(_OBJECT_GRAPH))
        saved = {name: saved[key] for name, key in keys.items() if key in saved} | saved
    return difference(wanted, saved)


def _restored_by(restores: Iterable[tf.Operation]) -> dict[str, CheckpointValue]:
    return {name: value for op in restores for name, value in _restored(op)}


def _restored(op: tf.Operation) -> Iterator[tuple[str, CheckpointValue]]:
    """Yields the name and value of each tensor that an op of type RestoreV2 reads."""
    names, slices = (tf.get_static_value(tensor) for tensor in op.inputs[1:])
    for output, name, whole in zip(op.outputs, names, slices, strict=True):
        shape, is_reshaped = _assigned_shape(output)
        if whole:  # A partition such as "20 30 0,10:0,30": the whole shape, then this slice.
            shape = tf.TensorShape([int(size) for size in whole.decode().split()[:-1]])
        value = CheckpointValue(dtype=output.dtype, shape=shape, is_reshaped=is_reshaped)
        yield name.decode(), value


def _assigned_shape(restored: tf.Tensor) -> tuple[tf.TensorShape, bool]:
    """Returns the shape of the variable that gets a restored tensor, and whether it is reshaped."""
    for op in restored.consumers():
        if op.type in ("Identity", "Reshape"):
            shape, is_reshaped = _assigned_shape(op.outputs[0])
            return shape, is_reshaped or op.type == "Reshape"
        if op.type == "AssignVariableOp" and op.inputs[0].op.type == "VarHandleOp":
            return tf.TensorShape(op.inputs[0].op.get_attr("shape")), False
        if op.type == "Assign":
            return op.inputs[0].shape, False
    return tf.TensorShape(None), False  # A table or similar resource, of any size.


def _keys_by_name(object_graph: bytes) -> dict[str, str]:
    """Returns the keys of an object-based checkpoint's variables by the variables' names."""
    graph = TrackableObjectGraph.FromString(object_graph)
    attributes = (attribute for node in graph.nodes for attribute in node.attributes)
    return {attribute.full_name: attribute.checkpoint_key for attribute in attributes}
