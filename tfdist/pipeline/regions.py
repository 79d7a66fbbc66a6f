"""Which stage each operation of a traced forward pass belongs to, and what a stage needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from tfdist.pipeline.stage_plan import PlannedStage

# Operations that compute nothing: they may stand outside all blocks.
_PASSIVE = frozenset(
    {
        "Placeholder",
        "PlaceholderWithDefault",
        "Const",
        "VarHandleOp",
        "ReadVariableOp",
        "Identity",
        "IdentityN",
        "NoOp",
    }
)
_READING = frozenset(
    {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"}
)
_WRITING = ("Assign", "ResourceScatter", "ResourceApply", "ResourceSparseApply")
_STARTS_NOTHING = frozenset({"Placeholder", "VarHandleOp", *_READING})


def is_stateful(op: tf.Operation) -> bool:
    """Says whether an operation may give something else, or change something, the next time."""
    return bool(op.op_def.is_stateful)


def has_effect(op: tf.Operation) -> bool:
    """Says whether an operation has to run even if nobody uses what it gives."""
    is_random = "seed" in op.node_def.attr
    return is_stateful(op) and op.type not in _STARTS_NOTHING and not is_random


def written_handles(operations: Iterable[tf.Operation], trained: Collection[str]) -> frozenset[str]:
    """Names the handles of the variables that a forward pass may change.

    A trainable variable that a loop, a condition or a function takes is taken to be read there.

    Args:
      operations: The forward pass.
      trained: Names of the handles of trainable variables.
    """
    handles = {t.name: t for op in operations for t in op.inputs if t.dtype == tf.resource}
    return frozenset(n for n, t in handles.items() if _is_written(t, is_trainable=n in trained))


def _is_written(handle: tf.Tensor, *, is_trainable: bool) -> bool:
    users = {op.type for op in handle.consumers()} - _READING
    if is_trainable:
        return any(user.startswith(_WRITING) for user in users)
    return bool(users)


@dataclass(frozen=True, kw_only=True)
class Slice:
    """What has to be computed for some tensors.

    Attributes:
      operations: In no particular order.
      inputs: What they take from elsewhere, in the order of first use.
    """

    operations: tuple[tf.Operation, ...]
    inputs: tuple[tf.Tensor, ...]


def slice_graph(
    targets: Iterable[tf.Tensor | tf.Operation], is_inside: Callable[[tf.Operation], bool]
) -> Slice:
    """Walks from targets to what they need, as far as operations are inside.

    Args:
      targets: Tensors, and operations that have to run.
      is_inside: Whether an operation is part of the slice. A target operation always is.

    Returns:
      The operations inside, and the tensors of those outside that they use.
    """
    operations: dict[str, tf.Operation] = {}
    inputs: dict[str, tf.Tensor] = {}
    waiting: list[tf.Operation] = []

    def take(op: tf.Operation) -> None:
        if op.name not in operations:
            operations[op.name] = op
            waiting.append(op)

    def need(tensor: tf.Tensor) -> None:
        if is_inside(tensor.op):
            take(tensor.op)
        else:
            inputs.setdefault(tensor.name, tensor)

    for target in targets:
        if isinstance(target, tf.Operation):
            take(target)
        else:
            need(target)
    while waiting:
        for tensor in waiting.pop().inputs:
            need(tensor)
    return Slice(operations=tuple(operations.values()), inputs=tuple(inputs.values()))


def stages_of_operations(
    operations: Sequence[tf.Operation],
    block_of: Mapping[str, str | None],
    stages: Sequence[PlannedStage],
) -> dict[str, int | None]:
    """Gives every operation its stage, by the operation's name.

    Operations that compute nothing follow what they use; None stands for those that use nothing of
    a stage, which any stage may have for itself. Operations outside all blocks are left out.

    Args:
      operations: The forward pass, in the order of its making.
      block_of: The block of each operation by its name; None is outside all blocks.
      stages: The stages.

    Raises:
      ValueError: If a stage uses what a later one computes.
    """
    number = {name: index for index, stage in enumerate(stages) for name in stage.blocks}
    result: dict[str, int | None] = {}
    for op in operations:
        block = block_of.get(op.name)
        used = [result[t.op.name] for t in op.inputs if t.op.name in result]
        latest = max((stage for stage in used if stage is not None), default=None)
        if block is not None and not (op.type == "Const" or op.type == "Placeholder"):
            stage = number[block]
            if latest is not None and latest > stage:
                raise ValueError(
                    f"block {block!r} in stage {stage} uses {op.type} inputs that stage {latest} "
                    f"({stages[latest].name}) computes, after it. A stage uses what it computes "
                    f"itself or what stages before it do: put the code at {line_of(op)} into a "
                    "later block."
                )
            result[op.name] = stage
        elif block is not None or op.type in _PASSIVE:
            result[op.name] = latest
    return result


def refuse_outside_blocks(op: tf.Operation, blocks: Collection[str]) -> ValueError:
    """Makes the error for an operation of the forward pass that is in no block."""
    return ValueError(
        f"{op.type} at {line_of(op)} is outside all blocks. The blocks are {', '.join(blocks)}: "
        "put it into one of them, or into a new one that a stage lists."
    )


def line_of(op: tf.Operation) -> str:
    """Returns "file.py:12: code" of the user's line that has made an operation."""
    frames = [
        frame
        for frame in op.traceback
        if not any(part in _NOT_THE_USERS for part in Path(frame.filename).parts)
        and not frame.filename.startswith("<")
    ]
    if not frames:
        return f"operation {op.name!r}"
    frame = frames[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}: `{(frame.line or op.name).strip()}`"


_NOT_THE_USERS = frozenset({"tensorflow", "keras", "tf_keras", "pipeline"})
