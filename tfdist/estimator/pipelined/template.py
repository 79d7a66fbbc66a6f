"""One call of each stage function, and the ops that each has added to the graph.

These ops are a template: the pipeline runs functions that are extracted from them. They are fed
with the step's first micro-batch, so that tensors for hooks and summaries can be computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.pipelined.spec import OptimizerFunctionOutput, PipelineEstimatorSpec
from tfdist.pipeline.graph.op_stages import Traced, by_handle, line_of
from tfdist.strategies.values.sync_on_read import SyncOnReadVariable
from tfdist.training.wrappers.optimizer_wrapper import loss_to_differentiate

# These ops depend only on variables and constants, so each stage may have a copy.
_READS = frozenset({"ReadVariableOp", "Const", "VarHandleOp"})


@dataclass(frozen=True, kw_only=True)
class Template:
    """The ops of the stages, and the optimizer.

    Attributes:
      traced: The ops by stage. Its loss is the scalar to differentiate, scaled if the optimizer
        scales it. Its outputs are scalars of the micro-batch: the loss as it is reported, the loss
        weight if there is one, and the metrics.
      metrics: The names of the metrics.
      optimizer: The optimizer that updates the weights.
    """

    traced: Traced
    metrics: Sequence[str]
    optimizer: Any

    def handles_of(self, replica: int) -> dict[str, tf.Tensor]:
        """Returns the handles of a replica's own variables, such as moving averages.

        It comes `replica` replicas after the one in whose context the stages were called. The keys
        are the names of the handles in the template.
        """
        named = by_handle(self.traced.graph, v1.global_variables()) if replica else {}
        return {
            name: variable.others[replica - 1].handle
            for name, variable in named.items()
            if isinstance(variable, SyncOnReadVariable)
        }


def call_stages(
    stages: Sequence[Callable[..., Any]], arguments: Sequence[Any], devices: Sequence[str | None]
) -> tuple[Any, ...]:
    """Calls each stage, on its device if it has one, with the return value of the stage before it.

    Returns:
      The return value of the last stage.
    """
    for stage, device in zip(stages, devices, strict=True):
        with tf.device(device):
            returned = stage(*arguments)
        arguments = returned if isinstance(returned, (list, tuple)) else (returned,)
    return tuple(arguments)


def make_template(
    spec: PipelineEstimatorSpec, arguments: Sequence[Any], devices: Sequence[str]
) -> Template:
    """Calls the stages and the optimizer_function.

    Raises:
      TypeError: If the optimizer_function does not return an `OptimizerFunctionOutput`.
      ValueError: If there is a loss weight and gradients are to be added up.
    """
    graph = v1.get_default_graph()
    fed = [v1.placeholder_with_default(t, t.shape) for t in tf.nest.flatten(arguments)]
    made_by: list[int] = []  # The number of ops in the graph when each stage began, and at the end.
    results: list[OptimizerFunctionOutput] = []
    differentiated: list[tf.Tensor] = []
    weights: list[tf.Tensor] = []  # The loss weight, if there is one.
    metrics: dict[str, tf.Tensor] = {}

    def noting_the_start(stage: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            made_by.append(len(graph.get_operations()))
            return stage(*args)

        return call

    def last_stage(*args: Any) -> Any:
        assert spec.optimizer_function is not None
        outputs = call_stages([spec.computational_stages[-1]], args, devices[-1:])
        result = spec.optimizer_function(*outputs)
        if not isinstance(result, OptimizerFunctionOutput):
            raise TypeError(
                "optimizer_function must return tfdist.estimator.OptimizerFunctionOutput, got "
                f"{result!r}."
            )
        results.append(result)
        metrics.update({name: tf.identity(t) for name, t in (result.metrics or {}).items()})
        if result.loss_weight is not None:
            _refuse_sum(spec)
            weights.append(tf.reshape(tf.cast(result.loss_weight, tf.float32), []))
        differentiated.append(loss_to_differentiate(result.opt, result.loss))
        return result.loss

    stages = [*spec.computational_stages[:-1], last_stage]
    call_stages(
        [noting_the_start(one) for one in stages],
        tf.nest.pack_sequence_as(tuple(arguments), fed),
        devices,
    )
    _refuse_old_variables()
    operations = graph.get_operations()
    made_by.append(len(operations))
    updates = _take_updates(graph, operations[made_by[0] :])
    trained = by_handle(graph, v1.trainable_variables())
    stage_of = _stage_of(operations, made_by)
    stage_of.update((t.op.name, None) for t in fed)
    return Template(
        traced=Traced(
            graph=graph,
            arguments=tuple(fed),
            outputs=(results[0].loss, *weights, *metrics.values()),
            loss=differentiated[0],
            stage_of=stage_of,
            stage_names=tuple(f"stage_{i}" for i in range(len(stages))),
            trained=trained,
            written=frozenset(op.inputs[0].name for op in updates),
            effects=updates,
            refuse_outside=_refuse_outside,
            weight=weights[0] if weights else None,
        ),
        metrics=list(metrics),
        optimizer=results[0].opt,
    )


def _refuse_sum(spec: PipelineEstimatorSpec) -> None:
    if spec.reduction_method == "sum":
        raise ValueError(
            'reduction_method="sum" adds up the gradients of micro-batches, and loss_weight makes '
            'their mean by weight. Set reduction_method="mean", or leave loss_weight out.'
        )


def _refuse_old_variables() -> None:
    old = [v.op.name for v in v1.global_variables() if not hasattr(v, "handle")]
    if old:
        raise ValueError(
            f"a pipeline needs resource variables, and {old[0]!r} is none. Call "
            "tf.compat.v1.enable_resource_variables() before the training."
        )


def _stage_of(operations: Sequence[tf.Operation], starts: Sequence[int]) -> dict[str, int | None]:
    result: dict[str, int | None] = {
        op.name: None for op in operations[: starts[0]] if op.type in _READS
    }
    for stage, (start, end) in enumerate(itertools.pairwise(starts)):
        for op in operations[start:end]:
            result[op.name] = None if _reads_a_variable(op) else stage
    return result


def _reads_a_variable(op: tf.Operation) -> bool:
    """Returns whether an op is a weight's value, or its copy on the device."""
    if op.type == "Identity":
        return op.inputs[0].op.type == "ReadVariableOp"
    return op.type in _READS


def _take_updates(graph: tf.Graph, operations: Sequence[tf.Operation]) -> tuple[tf.Operation, ...]:
    """Finds the ops that change variables in the forward pass, such as moving averages.

    They run with each micro-batch in their stage, so they are removed from the model's collection.
    """
    trained = by_handle(graph, v1.trainable_variables())
    handles = by_handle(graph, v1.global_variables()).keys() - trained.keys()
    first_values = {op.name for v in v1.global_variables() for op in _ungrouped(v.initializer)}
    updates = [
        op
        for op in operations
        if op.type.startswith("Assign")
        and op.inputs[0].name in handles
        and op.name not in first_values
    ]
    names = {op.name for op in updates}
    collected = graph.get_collection_ref(v1.GraphKeys.UPDATE_OPS)
    collected[:] = [spec for spec in collected if not _needs(getattr(spec, "op", spec), names)]
    if collected:
        op = getattr(collected[0], "op", collected[0])
        raise ValueError(
            f"UPDATE_OPS has {op.type} at {line_of(op)}, which a pipeline does not run: it runs "
            "assignments that stages make to variables with trainable=False. Write it as one."
        )
    return tuple(updates)


def _ungrouped(op: tf.Operation) -> list[tf.Operation]:
    """Returns the ops that a group consists of; a group of one for any other op.

    The initializer of a variable of which each replica has its own is a group.
    """
    if op.type != "NoOp":
        return [op]
    return [inner for before in op.control_inputs for inner in _ungrouped(before)]


def _needs(op: tf.Operation, names: set[str]) -> bool:
    """Returns whether an op is one of those named, or only forwards the output of one."""
    while op.type in ("Identity", "ReadVariableOp", "NoOp"):
        before = [*op.control_inputs, *(t.op for t in op.inputs if t.dtype != tf.resource)]
        if not before:
            return False
        op = before[0]
    return op.name in names


def _refuse_outside(op: tf.Operation) -> Exception:
    return ValueError(
        f"a stage uses {op.type} at {line_of(op)}, which is computed outside of all stages. "
        "Compute it in the stage, or hand it on from the first one."
    )
