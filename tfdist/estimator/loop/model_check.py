"""Checks before the first step: equal models on all workers, reductions, precision."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.graph.global_step import StepLimit, handle_of, users_of
from tfdist.estimator.graph.step import Training
from tfdist.estimator.inputs.queued_input import leaves
from tfdist.process.endings import COMES_AGAIN, OneLineError
from tfdist.strategies.graph_walks import ancestors
from tfdist.strategies.placement import Placement
from tfdist.strategies.reductions.division import division_of
from tfdist.strategies.reductions.reducer import GATHERED_ROWS
from tfdist.training.half_precision import HALVES, is_half, stock_on_halves
from tfdist.training.name_patterns import name_of
from tfdist.training.precision import Precision, describe_emulation, processor_features

# Any other op that uses a variable may change it: an assignment, an optimizer's op, a loop's body.
_READS = frozenset(
    {
        "DisableCopyOnRead", "Identity", "ReadVariableOp", "ResourceGather", "ResourceGatherNd",
        "VarIsInitializedOp", "VariableShape",
    }
)  # fmt: skip
# Ops whose state, the numbers drawn so far, is in the session alone.
_RANDOM = frozenset(
    {
        "Multinomial", "ParameterizedTruncatedNormal", "RandomGamma", "RandomPoissonV2",
        "RandomShuffle", "RandomStandardNormal", "RandomUniform", "RandomUniformInt",
        "TruncatedNormal",
    }
)  # fmt: skip
# The update kernels of TensorFlow, which its optimizers and those of Keras use.
_UPDATE = re.compile("^(Resource)?(Sparse)?Apply(?P<optimizer>[A-Z].*)")


class ModelMismatchError(OneLineError, RuntimeError):
    """Raised on every worker if the workers' models differ."""


class LimitMismatchError(OneLineError, ValueError):
    """Raised on every worker if `train` was given different limits."""


def check_limits(limits: Sequence[StepLimit]) -> None:
    """Compares the limits of all workers, in worker order: pairs of `steps` and `max_steps`.

    Raises:
      LimitMismatchError: If they differ; a worker that ended first would leave the others waiting.
    """
    for worker, other in enumerate(limits):
        for name, first, own in zip(("steps", "max_steps"), limits[0], other, strict=True):
            if first != own:
                raise LimitMismatchError(
                    f"{name} is {first} on worker 0 and {own} on worker {worker}. All workers end "
                    f"after the same step: give all of them the same {name}."
                )


def describe_model(
    variables: Sequence[Any],
    reductions: Sequence[str],
    combined_with: Mapping[str, Sequence[str]],
    settings: Mapping[str, Any],
) -> str:
    """Describes a worker's model: the facts that must be equal on all workers.

    Args:
      variables: The global variables, in the order in which the workers exchange their values.
      reductions: One text for each value that the training graph reduces, in order.
      combined_with: What the forward pass combines each trainable variable with.
      settings: Values, by the names that a message uses for them. Every worker has the same names.
    """
    return json.dumps(
        {
            "variables": {v.op.name: _describe(v) for v in variables},
            "reductions": list(reductions),
            "combined_with": {name: list(others) for name, others in combined_with.items()},
            "settings": dict(settings),
        }
    )


def _describe(variable: Any) -> str:
    division = division_of(variable)
    return f"{variable.dtype.name} {variable.shape}" if division is None else division.describe()


def check_models(models: Sequence[str]) -> None:
    """Compares every worker's model, a text of `describe_model`, with worker 0's.

    Raises:
      ModelMismatchError: If models differ; names the worker and the first variable that differs.
    """
    first = json.loads(models[0])
    for worker, text in enumerate(models[1:], start=1):
        other = json.loads(text)
        difference = _difference(first, other, worker)
        fix = "Start all workers with the same program and arguments."
        if difference is None:
            difference = _other_order(first, other, worker)
            fix = (
                "Create the variables in the same order on every worker: iterate over "
                "sorted(names), for example, where model_fn iterates over a set."
            )
        if difference is not None:
            raise ModelMismatchError(f"The workers' models differ: {difference}. {fix}")


def _difference(first: dict[str, Any], other: dict[str, Any], worker: int) -> str | None:
    mine, theirs = first["variables"], other["variables"]
    for name in mine:
        if name not in theirs:
            return f"variable {name} ({mine[name]}) exists on worker 0 but not on worker {worker}"
        if mine[name] != theirs[name]:
            return (
                f"variable {name} is {mine[name]} on worker 0 and {theirs[name]} on worker {worker}"
            )
    for name in theirs:
        if name not in mine:
            return f"variable {name} ({theirs[name]}) exists on worker {worker} but not on worker 0"
    for name, value in first["settings"].items():
        own = other["settings"][name]
        if value != own:
            return f"{name} is {value} on worker 0 and {own} on worker {worker}"
    mine, theirs = Counter(first["reductions"]), Counter(other["reductions"])
    if mine != theirs:
        return (
            f"worker 0 reduces {mine.total()} values and worker {worker} {theirs.total()}, or of "
            f"other shapes or compression: only one of them reduces "
            f"{next(iter([*(mine - theirs), *(theirs - mine)]))}"
        )
    return None


def _other_order(first: dict[str, Any], other: dict[str, Any], worker: int) -> str | None:
    """Describes the first pair of values that belong to different variables; None without one."""
    for what, key in (("variable", "variables"), ("reduction", "reductions")):
        for number, (mine, theirs) in enumerate(zip(first[key], other[key], strict=True), start=1):
            if mine != theirs:
                return f"{what} {number} is {mine} on worker 0 and {theirs} on worker {worker}"
    for name, mine in first["combined_with"].items():
        theirs = other["combined_with"].get(name, mine)
        if mine != theirs:
            return (
                f"variable {name} is combined with {_listed(mine)} on worker 0 and with "
                f"{_listed(theirs)} on worker {worker}"
            )
    return None


def _listed(names: Sequence[str]) -> str:
    shown = [*names[:3], *(["..."] if len(names) > 3 else [])]
    return ", ".join(shown) if shown else "nothing"


def warn_if_nothing_is_learnt(train_op: tf.Operation) -> None:
    """Warns if a step changes none of the graph's trainable variables."""
    variables = v1.trainable_variables()
    if not variables or changes_of(variables, train_op):
        return
    v1.logging.warning(
        "train_op changes none of the %d trainable variables, unless a hook does. Optimizers of "
        "Keras 3, and the newer ones of tf_keras, change nothing in a graph: use those of "
        "tf_keras.optimizers.legacy or tf.compat.v1.train.",
        len(variables),
    )


def random_ops(train_op: tf.Operation, batch: Sequence[Any]) -> list[str]:
    """Returns the names of the model's random ops, whose state is not saved.

    Those that the features and labels of the batch depend on are the input's.
    """
    parts = tf.nest.flatten([leaves(part) for part in batch], expand_composites=True)
    of_input = ancestors([x.op for x in parts if isinstance(x, tf.Tensor)], control_inputs=False)
    run = ancestors([train_op], control_inputs=True)
    return [op.name for op in run if op.type in _RANDOM and op not in of_input]


def warn_of_random_ops(train_op: tf.Operation, batch: Sequence[Any]) -> None:
    """Warns, in a resumed training, of the model's random ops."""
    if drawn := random_ops(train_op, batch):
        v1.logging.warning(
            "%d random op(s) of the model, such as %s, draw the numbers of the first steps again: "
            "the weights will differ from those of an undisturbed training. tf.random.stateless_* "
            "with the global step in its seed avoids it.",
            len(drawn),
            drawn[0],
        )


def log_if_it_comes_again(training: Training, *, has_input: bool) -> None:
    """Logs whether a training that has failed by its numbers would do so after a restart.

    `has_input` is whether a restart continues with the same batches.
    """
    is_exact = has_input and not tf.config.list_physical_devices("GPU")
    steps = (training.train_op, *training.earlier)
    if is_exact and not any(random_ops(step, training.batch[:2]) for step in steps):
        v1.logging.error(f"{COMES_AGAIN}: its weights and its batches are the same.")


def changes_of(variables: Sequence[Any], train_op: tf.Operation) -> list[tf.Operation]:
    """Returns the ops that may change one of the variables whenever `train_op` runs."""
    run = ancestors([train_op], control_inputs=True)
    users = (user for variable in variables for user in users_of(handle_of(variable)))
    return [op for op, handle in users if op in run and not _only_reads(op, handle)]


def _only_reads(op: tf.Operation, handle: tf.Tensor) -> bool:
    """Returns whether an op leaves a variable as it is; a function or loop knows it of its body."""
    if op.type in _READS:
        return True
    try:
        read_only = op.get_attr("_read_only_resource_inputs")
    except ValueError:
        return False
    return all(i in read_only for i, tensor in enumerate(op.inputs) if tensor is handle)


def check_gradients_are_reduced(
    train_op: tf.Operation, loss: tf.Tensor, num_reductions: int, num_replicas: int
) -> None:
    """Checks that replicas which change trainable variables combine something before.

    An optimizer of TensorFlow or Keras reduces gradients in `apply_gradients`. One that overrides
    `apply_gradients` and assigns the variables itself does not: each worker would train another
    model. A program that reduces any value over the replicas, by the strategy or by ops of its own,
    may know what it does. Only one that reduces nothing at all is refused.

    Args:
      train_op: The op that each session call runs.
      loss: The loss of a step, which is in the graph of a loop of steps.
      num_reductions: The number of values that the strategy reduces in each step.
      num_replicas: The number of replicas of all workers.

    Raises:
      ModelMismatchError: If the replicas' models would drift apart.
    """
    if num_replicas == 1 or num_reductions:
        return
    changes = changes_of(v1.trainable_variables(), train_op)
    if not changes or _has_own_reductions(train_op.graph):
        return
    # In a loop of steps the change is inside the loop's op.
    changed_by = _changed_by([*changes, *loss.graph.get_operations()])
    raise ModelMismatchError(
        f"{changed_by} changes trainable variables and reduces no gradient: "
        f"{num_replicas} replicas would train {num_replicas} different models. Wrap the optimizer, "
        "tfdist.training.DistributedOptimizer(optimizer), or let its apply_gradients end with "
        "super().apply_gradients of tf.compat.v1.train.Optimizer, which reduces."
    )


def _has_own_reductions(graph: tf.Graph) -> bool:
    """Returns whether the program has collectives of its own, such as Horovod's, in the graph."""
    # Statistics of a batch norm over replicas are no gradients.
    types = {node.op for node in _nodes_of(graph) if GATHERED_ROWS not in node.name}
    # Broadcasts share the variables' initial values.
    return any(
        name.startswith(("Horovod", "Collective", "Nccl", "XlaAllReduce"))
        and "Broadcast" not in name
        and "Bcast" not in name
        for name in types
    )


def _changed_by(ops: list[tf.Operation]) -> str:
    """Returns the name of the optimizer that made one of these ops, else the first op's name."""
    for op in ops:
        for frame in reversed(op.traceback or ()):
            kind = _optimizer_at(frame) if frame.name == "apply_gradients" else None
            if kind is not None:
                return f"{kind.__name__}.apply_gradients ({frame.filename}:{frame.lineno})"
    return f"The op {ops[0].name!r}"


def _optimizer_at(frame: Any) -> type[Any] | None:
    """Returns the optimizer's class whose apply_gradients a frame of a traceback is in."""
    for kind in _subclasses_of(v1.train.Optimizer):
        code = getattr(vars(kind).get("apply_gradients"), "__code__", None)
        if code is None or code.co_filename != frame.filename:
            continue
        if any(frame.lineno == line for *_, line in code.co_lines()):
            return kind
    return None


def _subclasses_of(kind: type[Any]) -> Iterator[type[Any]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses_of(subclass)


def _nodes_of(graph: tf.Graph) -> Iterator[Any]:
    definition = graph.as_graph_def()
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def check_half_weights(graph: tf.Graph) -> None:
    """Raises a ValueError if an optimizer of TensorFlow or Keras updates weights in half."""
    halves = [variable for variable in v1.trainable_variables() if is_half(variable)]
    if not halves:
        return
    dtypes = {dtype.as_datatype_enum for dtype in HALVES}
    for node in _nodes_of(graph):
        update = _UPDATE.match(node.op)
        if update is not None and node.attr["T"].type in dtypes:
            kind = update["optimizer"]
            raise ValueError(stock_on_halves(kind, name_of(halves[0]), halves[0]))


def log_half_precision(precision: Precision, placement: Placement, loss: tf.Tensor) -> None:
    """Logs what makes half precision slow or inexact here: one line each."""
    kind = tf.DeviceSpec.from_string(placement.device).device_type
    if not precision.is_float32 and kind == "CPU":
        line = describe_emulation(precision, kind, processor_features())
        if line is not None:
            v1.logging.info(line)
    if is_half(loss):
        v1.logging.warning(
            "The loss is %s, which has 2 to 3 digits. Compute it in float32: "
            'tf.cast(logits, tf.float32), or a last layer with dtype="float32".',
            loss.dtype.name,
        )
