"""Tracing of a model: its forward pass is traced once and cut into stages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.pipeline.blocks import BlockRecord, recording
from tfdist.pipeline.graph.cutting import StageFunctions, make_stages
from tfdist.pipeline.graph.gradients import Gradients, add_gradients
from tfdist.pipeline.graph.op_stages import (
    Traced,
    by_handle,
    effects_of,
    refuse_changes_in_two_stages,
    refuse_outside_blocks,
    stages_of_operations,
    written_handles,
)
from tfdist.pipeline.stage_plan import FoundBlock, PlannedStage, plan_stages
from tfdist.pipeline.stages import AutoStage, ExecutionStrategy
from tfdist.training.layers.replica_groups import refusing_statistics_over_replicas


@dataclass(frozen=True, kw_only=True)
class TracedModel:
    """A model, traced for one shape of micro-batch and cut into stages."""

    stages: tuple[PlannedStage, ...]
    cut_stages: tuple[StageFunctions, ...]
    # The placeholders of one micro-batch, flat: [batch, ...] each.
    arguments: tuple[tf.Tensor, ...]
    # The traced tensors that the model returned, flat; in training the loss is the last.
    outputs: tuple[tf.Tensor, ...]
    structure: Any  # The model's return value, with the traced tensors in it.
    # The trainable variable behind each handle, by the handle's name in the trace.
    trained: Mapping[str, tf.Variable]
    # The handles and constants that the trace captures from outside, by their names in the trace.
    captured: Mapping[str, tf.Tensor]
    trace: Any  # The traced function. It holds the graph, to which the stages' functions refer.


def trace(
    model: Callable[..., Any],
    specs: Sequence[Any],
    strategy: ExecutionStrategy,
    *,
    training: bool,
    recomputation: bool,
    place_variables: Callable[[int], str],
    check: Callable[[Sequence[PlannedStage]], None],
    progress: Callable[[], None] = lambda: None,
) -> TracedModel:
    """Traces a model and cuts it into stages.

    The model is called with the arguments of one micro-batch, `specs`, and with `training` if it
    has such an argument. `place_variables` maps the index of a stage's device to the device of the
    variables that the model creates inside a block of that stage. `check` gets the planned stages
    before they are cut, and raises if they cannot be run. `progress` is called after the trace and
    after each stage.

    Raises:
      TypeError: If a model for training does not return its loss last.
      ValueError: If the loss is not a scalar of floating type, blocks and stages do not agree, or
        an operation is in no block.
    """
    record = BlockRecord(v1.get_default_graph())
    with (
        _variables_where_blocks_are(record, strategy, place_variables),
        refusing_statistics_over_replicas("a stage of a pipeline"),
    ):
        concrete, plan = _record(
            _with_training(model, training),
            specs,
            record,
            partial(_plan, record=record, strategy=strategy, training=training, check=check),
        )
    progress()
    cut_stages = make_stages(
        plan.traced, plan.gradients, recomputation=recomputation, progress=progress
    )
    # In the trace, placeholders of handles and constants follow those of the arguments.
    taken = concrete.inputs[len(plan.traced.arguments) :]
    return TracedModel(
        stages=plan.stages,
        cut_stages=cut_stages,
        arguments=plan.traced.arguments,
        outputs=plan.outputs,
        structure=plan.structure,
        trained=plan.traced.trained,
        captured={t.name: one for t, one in zip(taken, concrete.captured_inputs, strict=True)},
        trace=concrete,
    )


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """A traced forward and backward pass with the stage of each operation, not yet cut."""

    stages: tuple[PlannedStage, ...]
    traced: Traced
    gradients: Sequence[Gradients | None]
    outputs: tuple[tf.Tensor, ...]
    structure: Any


def _record(
    call: Callable[..., Any],
    specs: Sequence[Any],
    record: BlockRecord,
    make_plan: Callable[[Any, Any, Sequence[tf.Variable]], _Plan],
) -> tuple[Any, _Plan]:
    """Traces a model, which fills in the record of its blocks; returns the function and its plan.

    `make_plan` gets the arguments, the model's return value and the trained variables, in the
    graph of the trace.
    """
    plans: list[_Plan] = []  # TensorFlow traces twice if the model creates variables.

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def begin() -> None:
        record.restart(v1.get_default_graph())

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def finish(args: Any, returned: Any, trained: Sequence[tf.Variable]) -> Any:
        with record.noting_refusals():
            plans.append(make_plan(args, returned, trained))
        return plans[-1].outputs

    def forward(*args: Any) -> Any:
        begin()
        # The tape only finds the trained variables; gradients are computed stage by stage.
        with tf.GradientTape() as tape:
            returned = call(*args)
        return finish(args, returned, tape.watched_variables())

    try:
        with recording(record):
            return tf.function(forward).get_concrete_function(*specs), plans[-1]
    except Exception:
        if record.refusal is not None:  # TensorFlow's error would show tfdist's code.
            raise record.refusal from None
        raise


def _plan(
    arguments: Any,
    returned: Any,
    trained: Sequence[tf.Variable],
    *,
    record: BlockRecord,
    strategy: ExecutionStrategy,
    training: bool,
    check: Callable[[Sequence[PlannedStage]], None],
) -> _Plan:
    """Plans the stages of the traced blocks, and adds gradients to the graph, stage by stage."""
    graph = v1.get_default_graph()
    outputs = tuple(tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(returned))
    loss = _loss_of(returned, outputs) if training else None
    stages = plan_stages(strategy, record.found)
    check(stages)
    operations = graph.get_operations()
    trained_handles = by_handle(graph, trained)
    block_names = [block.name for block in record.found]
    traced = Traced(
        graph=graph,
        arguments=tuple(tf.nest.flatten(arguments)),
        outputs=outputs if loss is None else outputs[:-1],
        loss=loss,
        stage_of=stages_of_operations(operations, record.blocks_of(operations), stages),
        stage_names=tuple(stage.name for stage in stages),
        trained=trained_handles,
        written=written_handles(operations, trained_handles),
        effects=effects_of(operations),
        refuse_outside=lambda op: refuse_outside_blocks(op, block_names),
    )
    if strategy.schedule != "sequential":
        refuse_changes_in_two_stages(operations, traced.stage_of, traced.written)
    return _Plan(
        stages=stages,
        traced=traced,
        gradients=add_gradients(traced),
        outputs=outputs,
        structure=tf.nest.pack_sequence_as(returned, outputs),
    )


def _with_training(model: Callable[..., Any], training: bool) -> Callable[..., Any]:
    """Returns the model with its argument `training` bound, if it has such an argument."""
    call = getattr(model, "call", model)
    try:
        takes = "training" in inspect.signature(call).parameters
    except (TypeError, ValueError):
        takes = False
    if not takes:
        return model
    return lambda *args: model(*args, training=training)


def _loss_of(returned: Any, outputs: Sequence[tf.Tensor]) -> tf.Tensor:
    is_last = isinstance(returned, (list, tuple)) and not tf.nest.is_nested(returned[-1])
    if not (is_last or not tf.nest.is_nested(returned)):
        raise TypeError(
            f"a model for training returns its loss last, as in `return outputs, loss`; this one "
            f"returned {type(returned).__name__}."
        )
    loss = outputs[-1]
    if loss.shape.rank != 0 or not loss.dtype.is_floating:
        raise ValueError(
            f"the loss, which is what the model returns last, must be a scalar of floating type, "
            f"got shape {loss.shape} of {loss.dtype.name}. Return tf.reduce_mean(loss)."
        )
    return loss


@contextmanager
def _variables_where_blocks_are(
    record: BlockRecord, strategy: ExecutionStrategy, place: Callable[[int], str]
) -> Iterator[None]:
    """Creates each variable on the device of the block in which it is created."""

    def create(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        device = device_of_block(strategy, record.current, record.found)
        if device is None:
            return next_creator(**kwargs)
        with tf.device(place(device)):
            return next_creator(**kwargs)

    with tf.variable_creator_scope(create):
        yield


def device_of_block(
    strategy: ExecutionStrategy, block: FoundBlock | None, found: Sequence[FoundBlock]
) -> int | None:
    """Returns the device of a block before all blocks are known; None if it is not determined."""
    if block is None:
        return None
    if isinstance(strategy.stages, AutoStage):
        if strategy.stages is AutoStage.SAME_AS_DEVICE or block.device is not None:
            return block.device
        return list(found).index(block)
    for number, stage in enumerate(strategy.stages):
        if block.name in stage.block_names:
            if stage.device_index is not None:
                return stage.device_index
            return number if block.device is None else block.device
    return None
