"""Which stage each operation of a traced forward pass belongs to, and what a stage needs."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from tfdist.cluster.tasks import listed
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
        # Keras brings what a model is called with to the model's type, before any layer.
        "Cast",
    }
)
_READING = frozenset(
    {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"}
)
_WRITING = ("Assign", "ResourceScatter", "ResourceApply", "ResourceSparseApply")
# An attribute with the positions of the handles that a function only reads.
_READ_ONLY = "_read_only_resource_inputs"
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

    Args:
      operations: The forward pass.
      trained: Names of the handles of trainable variables. An operation that is not known is taken
        to read these, and to change others.
    """
    return frozenset(
        tensor.name
        for op in operations
        for position, tensor in enumerate(op.inputs)
        if tensor.dtype == tf.resource
        and _writes(op, position, is_trainable=tensor.name in trained)
    )


def _writes(op: tf.Operation, position: int, *, is_trainable: bool) -> bool:
    if _READ_ONLY in op.node_def.attr:  # A loop, a condition or a function.
        return position not in op.node_def.attr[_READ_ONLY].list.i
    if op.type.startswith(_WRITING):
        return True
    return not (is_trainable or op.type in _READING)


def refuse_changes_in_two_stages(
    operations: Iterable[tf.Operation],
    stage_of: Mapping[str, int | None],
    written: Collection[str],
) -> None:
    """Refuses a variable that one stage changes and another one uses.

    While a stage does a micro-batch, those behind it do earlier ones: they would see a value that
    depends on the schedule.

    Args:
      operations: The forward pass.
      stage_of: The stage of each operation, by the operation's name.
      written: Names of the handles of variables that the forward pass changes.

    Raises:
      ValueError: If there is one.
    """
    users: dict[str, dict[int, tf.Operation]] = {}
    for op in operations:
        stage = stage_of.get(op.name)
        for tensor in op.inputs:
            if tensor.name in written and stage is not None:
                users.setdefault(tensor.name, {}).setdefault(stage, op)
    for by_stage in users.values():
        if len(by_stage) > 1:
            lines = listed(f"stage {stage} at {line_of(op)}" for stage, op in by_stage.items())
            raise ValueError(
                f"a variable that the forward pass changes is used in {len(by_stage)} stages: "
                f"{lines}. Keep it in one stage, or run with ShardedExecution."
            )


def effects_of(operations: Sequence[tf.Operation]) -> tuple[tf.Operation, ...]:
    """Returns the operations that a tf.function would run although nobody uses what they give."""
    return tuple(op for op in operations if has_effect(op))


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
    """Walks from targets to what they need or have to wait for, as far as operations are inside.

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
        op = waiting.pop()
        for tensor in op.inputs:
            need(tensor)
        for first in op.control_inputs:
            if is_inside(first):
                take(first)
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
    theirs = tuple(
        f"{Path(sys.modules[name].__file__ or '').parent}{os.sep}"
        for name in _NOT_THE_USERS
        if name in sys.modules
    )
    frames = [one for one in op.traceback if not one.filename.startswith((*theirs, "<"))]
    if not frames:
        return f"operation {op.name!r}"
    frame = frames[-1]
    code = linecache.getline(frame.filename, frame.lineno).strip()
    return f"{Path(frame.filename).name}:{frame.lineno}: `{code or op.name}`"


_NOT_THE_USERS = ("tensorflow", "keras", "tf_keras", "tfdist")
