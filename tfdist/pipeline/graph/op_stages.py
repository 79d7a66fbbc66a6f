"""A traced forward pass: its graph, the stage of each operation, and the inputs of a stage."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.pipeline.stage_plan import PlannedStage
from tfdist.process.text import listed
from tfdist.training.half_precision import HALVES
from tfdist.training.layers.graph_slices import Slice, is_stateful, slice_graph

# Operations that compute nothing: they may be outside all blocks.
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
        # Keras casts a model's arguments to the model's dtype, before any layer.
        "Cast",
    }
)
_READING = frozenset(
    {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"}
)
_WRITING = ("Assign", "ResourceScatter", "ResourceApply", "ResourceSparseApply")
# The attribute that lists the positions of the handles that a function only reads.
_READ_ONLY = "_read_only_resource_inputs"
_STARTS_NOTHING = frozenset({"Placeholder", "VarHandleOp", *_READING})


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A traced forward pass: its graph, and the stage of each operation."""

    graph: tf.Graph
    arguments: tuple[tf.Tensor, ...]  # The placeholders of one micro-batch, [batch, ...] each.
    # The tensors that the forward pass returned, flat, without the loss.
    outputs: tuple[tf.Tensor, ...]
    loss: tf.Tensor | None  # The scalar to minimise; None in inference.
    # Stage of each operation by its name; see `stages_of_operations`.
    stage_of: Mapping[str, int | None]
    stage_names: tuple[str, ...]
    # The trainable variable behind each handle, by the handle's name.
    trained: Mapping[str, tf.Variable]
    written: frozenset[str]  # Names of the handles of variables that the forward pass may change.
    # Operations that must run although no operation uses their results.
    effects: tuple[tf.Operation, ...]
    # Returns the error for an operation that is needed and in no stage.
    refuse_outside: Callable[[tf.Operation], Exception]
    # float32 scalar of `outputs`, by which each micro-batch's gradients count; None counts all
    # micro-batches alike.
    weight: tf.Tensor | None = None

    def results(self) -> list[tf.Tensor]:
        return [*self.outputs, *([] if self.loss is None else [self.loss])]

    def home(self, tensor: tf.Tensor, default: int = 0) -> int:
        """Returns the stage that computes a tensor; `default` if any stage may compute it.

        Raises the error of `refuse_outside` if its operation is in no stage.
        """
        self.check_block(tensor.op)
        home = self.stage_of[tensor.op.name]
        return default if home is None else home

    def check_block(self, op: tf.Operation) -> None:
        """Raises the error of `refuse_outside` if an operation is in no stage."""
        if op.name not in self.stage_of:
            raise self.refuse_outside(op)

    def is_in_forward(self, stage: int, op: tf.Operation) -> bool:
        """Returns whether an operation may be computed in a stage's forward."""
        self.check_block(op)
        home = self.stage_of[op.name]
        return (home is None or home == stage) and not self.is_given(op)

    def is_given(self, op: tf.Operation) -> bool:
        """Returns whether an operation's results come from outside all stages.

        This holds for arguments and handles. It holds as well for the value of a variable that the
        forward pass does not change, and for its cast to half precision: the value is read and cast
        once for all micro-batches.
        """
        if op.type in ("Placeholder", "VarHandleOp") or any(op is t.op for t in self.arguments):
            return True
        read = read_of_weight(op)
        return read is not None and read.inputs[0].name not in self.written

    def slice_forward(self, kept: Sequence[Sequence[tf.Tensor]] = ()) -> list[Slice]:
        """Returns the part of the graph that each stage's forward has to compute.

        The stages are visited from the last to the first: each adds the tensors that it needs to
        the targets of the earlier stages that compute them. `kept` are the forward tensors that
        each stage's backward needs.
        """
        wanted: list[list[Any]] = [[] for _ in self.stage_names]
        for tensor in self.results():
            wanted[self.home(tensor)].append(tensor)
        for op in self.effects:
            self.check_block(op)
            wanted[self.stage_of[op.name] or 0].append(op)
        for stage, tensors in enumerate(kept):
            for tensor in tensors:
                wanted[self.home(tensor, stage)].append(tensor)
        slices: list[Slice] = []
        for stage in reversed(range(len(wanted))):
            found = slice_graph(wanted[stage], partial(self.is_in_forward, stage))
            for tensor in found.inputs:
                if not self.is_given(tensor.op):
                    wanted[self.home(tensor)].append(tensor)
            slices.insert(0, found)
        return slices

    def handed_on(self, needed: Sequence[Sequence[tf.Tensor]], stage: int) -> list[tf.Tensor]:
        """Returns the tensors that a stage computes and later stages use."""
        found = {
            tensor.name: tensor
            for of_later in needed[stage + 1 :]
            for tensor in of_later
            if not self.is_given(tensor.op) and self.stage_of[tensor.op.name] == stage
        }
        return list(found.values())


def by_handle(graph: Any, variables: Iterable[tf.Variable]) -> dict[str, tf.Variable]:
    """Returns variables by the names of their handles in a graph.

    Variables without a handle in the graph are left out. In the graph of a function or a loop's
    body, a handle captured from outside is a placeholder.
    """
    inside = {id(outer): placeholder for outer, placeholder in getattr(graph, "captures", ())}
    handles = ((inside.get(id(v.handle), v.handle), v) for v in variables)
    return {h.name: v for h, v in handles if getattr(h, "graph", None) is graph}


def read_of_weight(op: tf.Operation) -> tf.Operation | None:
    """Returns the read of the variable whose value an operation gives, as it is or cast to half.

    None for any other operation.
    """
    source = behind_identities(op.inputs[0].op) if is_cast_to_half(op) else op
    return source if source.type == "ReadVariableOp" else None


def is_cast_to_half(op: tf.Operation) -> bool:
    """Returns whether an operation casts its input to half precision."""
    return op.type == "Cast" and op.outputs[0].dtype in HALVES


def behind_identities(op: tf.Operation) -> tf.Operation:
    """Returns the operation behind a chain of identities, of which `op` may be the last one."""
    while op.type == "Identity":
        op = op.inputs[0].op
    return op


def written_handles(operations: Iterable[tf.Operation], trained: Collection[str]) -> frozenset[str]:
    """Returns the names of the handles of variables that a forward pass may change.

    An operation of unknown type is assumed to read the `trained` variables, named by their handles,
    and to change other ones.
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
    """Refuses a variable that the forward pass changes and that several stages use.

    While a stage works on a micro-batch, later stages work on earlier ones: they would read a value
    that depends on the schedule. `written` are the names of the changed variables' handles.

    Raises:
      ValueError: If there is such a variable.
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
    """Returns the operations that a tf.function runs even if no operation uses their results."""
    return tuple(
        op
        for op in operations
        if is_stateful(op) and op.type not in _STARTS_NOTHING and "seed" not in op.node_def.attr
    )


def stages_of_operations(
    operations: Sequence[tf.Operation],
    block_of: Mapping[str, str | None],
    stages: Sequence[PlannedStage],
) -> dict[str, int | None]:
    """Returns the stage of each operation by the operation's name.

    An operation that computes nothing is in the latest stage of its inputs. If its inputs are in no
    stage, its stage is None: any stage may have a copy of it. Other operations outside all blocks
    are left out. The operations are in the order of creation.

    Raises:
      ValueError: If a stage uses a tensor that a later stage computes.
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
    """Returns the error for an operation of the forward pass that is in no block."""
    return ValueError(
        f"{op.type} at {line_of(op)} is outside all blocks. The blocks are {', '.join(blocks)}: "
        "put it into one of them, or into a new one that a stage lists."
    )


def line_of(op: tf.Operation) -> str:
    """Returns "file.py:12: code" for the user's line that created an operation."""
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
