"""One training step: model_fn on the device; host_call and the global step on the host.

    device                                       host
                                                 next batch
    model_fn: forward, loss, gradients  <------
      (once for each replica)           ------>  host_call: reductions, weights, slots
                                                 global step + 1

With `iterations_per_loop` a `tf.while_loop` on the host makes several of these in one session call.
With `gradient_accumulation` a step takes several micro-batches: session calls of model_fn alone, or
iterations of that loop, come before the one with `host_call` (see accumulation.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.graph import global_step as counting
from tfdist.estimator.graph.accumulation import Accumulation, StepSums, StepValues, of_one_batch
from tfdist.estimator.graph.precision import ModelPrecision
from tfdist.estimator.graph.replicas import EachReplica
from tfdist.estimator.inputs.batches import Batch, Input
from tfdist.estimator.spec import EstimatorSpec
from tfdist.process.text import listed
from tfdist.strategies.placement import HOST, Placement
from tfdist.strategies.private_tensorflow import is_in_loop_or_branch
from tfdist.training.layers.replica_groups import combined_over_replicas
from tfdist.training.precision import Precision
from tfdist.training.wrappers.accumulation import accumulated_updates

# Graph collection of ops that every training step runs in addition to train_op and host_call.
RUN_WITH_EACH_STEP = "tfdist_run_with_each_step"

ModelsFn = Callable[[Sequence[Batch], ModelPrecision], Sequence[EstimatorSpec]]
WeightedReductions = Callable[[Sequence[tf.Tensor]], AbstractContextManager[None]]

_COUNTED_TWICE = (
    "Illegal increment of the `global_step` variable in the `model_fn`: with host_call the "
    "Estimator increments it. Call minimize or apply_gradients without global_step."
)


@dataclass(kw_only=True)
class Training:
    """The ops of one session call while training.

    Attributes:
      spec: The EstimatorSpec of the first replica.
      train_op: Runs the step, or the loop of steps, and increments the global step.
      loss: Scalar of this worker: the step's loss, or the mean over its micro-batches, its replicas
        and the loop.
      weight: float32 scalar, how much `loss` counts among those of the other workers; None counts
        all workers alike.
      metrics: The training metrics of this worker, a float32 scalar each: means like `loss`.
      has_more: float32 scalar, 1.0 if this worker's input suffices for another call; None if not
        known.
      batch: The batch of the first replica; inside the loop, if there is one.
      earlier: The op of each session call for the step's micro-batches before the last, in order.
    """

    spec: EstimatorSpec
    train_op: tf.Operation
    loss: tf.Tensor
    weight: tf.Tensor | None = None
    metrics: Mapping[str, tf.Tensor]
    has_more: tf.Tensor | None
    batch: Batch
    earlier: Sequence[tf.Operation] = ()


def build_training(step: StepBuilder, iterations: int) -> Training:
    """Builds the ops of a session call of so many steps, and of those for earlier micro-batches."""
    if iterations > 1:
        return _build_loop(step, iterations)
    forward = step.forward()
    count = step.accumulation.count
    if count == 1:
        return step.complete(forward)
    sums = step.sums(forward)
    ops = [step.accumulate(forward, sums, "first")]
    if count > 2:
        ops += [step.accumulate(forward, sums, "further")] * (count - 2)
    return replace(step.complete(forward, sums), earlier=ops)


@dataclass(frozen=True, kw_only=True)
class Forward:
    """The ops of one micro-batch before `host_call`: of each replica, and those that all run."""

    batches: Sequence[Batch]
    specs: Sequence[EstimatorSpec]
    ops: Sequence[Any]


@dataclass(frozen=True, kw_only=True)
class StepBuilder:
    """Builds the parts of a step.

    Attributes:
      models_fn: A function from the batch of each replica and the model's precision to the
        EstimatorSpec of each replica, in TRAIN. It calls model_fn by `precision.call`.
      inputs: Provides the batches, one for each replica and micro-batch.
      global_step: Incremented by one each step.
      each_replica: Calls a function in each replica.
      placement: The devices.
      accumulation: The micro-batches of a replica in a step.
      precision: The precision of the model.
      weighted: Makes the reductions of gradients in a `with` block count each replica by its
        weight; None without a strategy.
      count_input: Makes an op that counts a micro-batch's batches; it runs in each micro-batch.
    """

    models_fn: ModelsFn
    inputs: Input
    global_step: tf.Variable
    each_replica: EachReplica
    placement: Placement
    accumulation: Accumulation
    precision: Precision
    weighted: WeightedReductions | None
    count_input: Callable[[Sequence[Batch]], tf.Operation] | None

    def forward(self) -> Forward:
        """Builds the model of each replica, with the next batches."""
        batches = next_batches(self.inputs, self.placement.num_replicas)
        precision = ModelPrecision(self.precision, self.placement.variable_device)
        with precision.around_model():
            specs = self.models_fn(batches, precision)
        precision.check()
        ops = [spec.train_op for spec in specs if spec.train_op is not None]
        if specs[0].loss_weight is not None:
            _check_statistics(v1.get_default_graph())
        if self.accumulation.count > 1:
            _check_accumulated(specs[0], self.accumulation, self.global_step)
            # host_call may run them, but only with the last micro-batch.
            ops += _in_this_graph(v1.get_collection(v1.GraphKeys.UPDATE_OPS))
        if self.count_input is not None:
            ops.append(self.count_input(batches))
        return Forward(batches=batches, specs=specs, ops=[*ops, *_ops_of_hooks()])

    def sums(self, forward: Forward) -> list[StepSums]:
        """Makes the sums over the micro-batches, on the device of each replica."""

        def make(replica: int) -> StepSums:
            batch = forward.batches[replica][:2]
            return StepSums(forward.specs[replica], batch, self.accumulation, replica)

        return self.each_replica(make)

    def accumulate(
        self, forward: Forward, sums: list[StepSums], which: Literal["first", "further"]
    ) -> tf.Operation:
        """Returns the op of a micro-batch that another one of the step follows."""
        ops = self.each_replica(lambda replica: getattr(sums[replica], which)())
        return tf.group(*ops, *_in_this_graph(forward.ops))

    def complete(self, forward: Forward, sums: list[StepSums] | None = None) -> Training:
        """Builds the end of a step: `host_call` in each replica, and the global step."""
        specs = forward.specs

        def values_of(replica: int) -> StepValues:
            return of_one_batch(specs[replica]) if sums is None else sums[replica].last()

        values = self.each_replica(values_of)
        calls = self._host_calls(specs, values)
        known = {id(op) for op in forward.ops}
        ops = [*_in_this_graph(forward.ops), *calls]
        ops += [op for op in _ops_of_hooks() if id(op) not in known]
        losses, weights = [v.loss for v in values], [v.weight for v in values]
        return Training(
            spec=specs[0],
            train_op=_count(specs[0], self.global_step, ops),
            loss=_mean(losses, weights),
            weight=None if weights[0] is None else _total(weights),
            metrics={
                name: tf.cast(_mean([v.metrics[name] for v in values], weights), tf.float32)
                for name in specs[0].training_metrics
            },
            has_more=forward.batches[-1][2],
            batch=forward.batches[0],
        )

    def _host_calls(
        self, specs: Sequence[EstimatorSpec], values: Sequence[StepValues]
    ) -> list[Any]:
        if specs[0].host_call is None:
            return []

        def call(replica: int) -> Any:
            return _run_host_call(specs[replica], values[replica].tensors, self.placement)

        weights = [v.weight for v in values if v.weight is not None]
        if not weights:
            return self.each_replica(call)
        if self.weighted is not None:
            with self.weighted(weights):
                return self.each_replica(call)
        # One replica without a strategy reduces nothing, so the whole call can be left out.
        return [tf.cond(weights[0] > 0, lambda: tf.group(*self.each_replica(call)), tf.no_op)]


def train_op_of(
    spec: EstimatorSpec, global_step: tf.Variable, placement: Placement
) -> tf.Operation:
    """Returns the op of one step of a model, for a worker without peers."""
    ops = [] if spec.train_op is None else [spec.train_op]
    if spec.host_call is not None:
        ops.append(_run_host_call(spec, spec.host_call[1], placement))
    return _count(spec, global_step, ops)


def _ops_of_hooks() -> list[tf.Operation]:
    return _in_this_graph(v1.get_collection(RUN_WITH_EACH_STEP))


def _in_this_graph(ops: Sequence[Any]) -> list[Any]:
    """Returns the ops that the current graph has; a branch leaves out those around it."""
    return [op for op in ops if op.graph is v1.get_default_graph()]


def _check_accumulated(
    spec: EstimatorSpec, accumulation: Accumulation, global_step: tf.Variable
) -> None:
    """Checks that a model_fn leaves its updates and the global step to host_call."""
    if spec.host_call is None:
        raise ValueError(
            f"gradient_accumulation is {accumulation.count}, and model_fn returned no host_call, "
            "which would get the gradients. Return one, or leave the setting out and use train_op "
            "with tfdist.training.GradientAccumulationOptimizer(optimizer, num_mini_batches="
            f"{accumulation.count})."
        )
    if spec.loss_weight is not None and accumulation.reduction == "sum":
        raise ValueError(
            'accumulation_reduction="sum" adds up the gradients of micro-batches, and loss_weight '
            'makes their mean by weight. Set accumulation_reduction="mean", or leave loss_weight '
            "out."
        )
    if counting.is_incremented(global_step.graph, global_step):
        raise ValueError(_COUNTED_TWICE)


def _check_statistics(graph: tf.Graph) -> None:
    """Refuses statistics over replicas: their gradients are added before they are weighted."""
    for name in combined_over_replicas(graph):
        raise ValueError(
            f"loss_weight weights the gradients of a replica, and those of {name} are added over "
            "replicas before. Set group_size=1, or leave loss_weight out."
        )


def next_batches(inputs: Input, count: int) -> list[Batch]:
    """Fetches several batches, in the input's order."""
    batches: list[Batch] = []
    for _ in range(count):
        fetched = [b for b in batches[-1:] if b[2] is not None]
        with tf.control_dependencies([has_more for *_, has_more in fetched]):
            batches.append(inputs.next_batch())
    return batches


def _mean(losses: list[tf.Tensor], weights: list[tf.Tensor | None]) -> tf.Tensor:
    """Returns the mean over the replicas, by their weights if there are any."""
    if len(losses) == 1:
        return losses[0]
    with tf.device(HOST):
        losses = [tf.cast(loss, tf.float32) for loss in losses]
        if weights[0] is None:
            return tf.add_n(losses) / float(len(losses))
        shares = [loss * weight for loss, weight in zip(losses, weights, strict=True)]
        return tf.math.divide_no_nan(tf.add_n(shares), _total(weights))


def _total(weights: list[Any]) -> tf.Tensor:
    with tf.device(HOST):
        return tf.add_n(weights)  # []


def _build_loop(builder: StepBuilder, iterations: int) -> Training:
    """Builds a loop over micro-batches: `iterations` steps of them."""
    made: list[Forward] = []
    count = builder.accumulation.count

    def body(i: tf.Tensor, total: tf.Tensor, weight: tf.Tensor, _: tf.Tensor) -> Any:
        # Without v2 behaviour a loop has no graph of its own: its scope would be part of the names
        # of the variables that an optimizer makes, and so of a checkpoint.
        with v1.name_scope(""):
            forward = builder.forward()
            made.append(forward)
            # The loss and the metrics, [1 + metrics], and their weight, [].
            values, added = _build_micro_batch(builder, forward, i % count)
        has_more = forward.batches[-1][2]
        has_more = tf.constant(1.0) if has_more is None else has_more  # []
        with tf.control_dependencies([values, *forward.ops]):
            return i + 1, total + values, weight + added, tf.identity(has_more)

    # One iteration at a time: each reads the variables that the one before it has updated. The
    # number of metrics is known once the body is built: the total begins as a scalar.
    scalar = tf.TensorShape([])
    end, total, weight, has_more = tf.while_loop(
        lambda i, *_: i < iterations * count,
        body,
        [tf.constant(0), tf.constant(0.0), tf.constant(0.0), tf.constant(1.0)],
        shape_invariants=[scalar, tf.TensorShape(None), scalar, scalar],
        parallel_iterations=1,
    )
    _forget_the_inside(v1.get_default_graph())
    forward = made[0]
    is_weighted = forward.specs[0].loss_weight is not None
    means = tf.math.divide_no_nan(total, weight) if is_weighted else total / float(iterations)
    names = forward.specs[0].training_metrics
    loss, *metrics = tf.unstack(tf.reshape(means, [1 + len(names)]))
    return Training(
        spec=forward.specs[0],
        train_op=end.op,
        loss=loss,
        weight=weight if is_weighted else None,
        metrics=dict(zip(names, metrics, strict=True)),
        has_more=None if forward.batches[-1][2] is None else has_more,
        batch=forward.batches[0],
    )


def _build_micro_batch(
    builder: StepBuilder, forward: Forward, number: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the values of the step that a micro-batch completes, and their weight; else zeros.

    The values are the loss and the metrics times the weight, float32 [1 + metrics]. The number of
    the micro-batch in the step, from 0, is the same on all workers: they reduce in one iteration.
    """

    def complete(sums: list[StepSums] | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        step = builder.complete(forward, sums)
        weight = tf.constant(1.0) if step.weight is None else step.weight  # []
        values = tf.stack([tf.cast(step.loss, tf.float32), *step.metrics.values()])
        with tf.control_dependencies([step.train_op]):
            return values * weight, tf.identity(weight)

    last = builder.accumulation.count - 1
    if last == 0:
        return complete()
    sums = builder.sums(forward)

    def accumulate(which: Literal["first", "further"]) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.control_dependencies([builder.accumulate(forward, sums, which)]):
            return tf.zeros([1 + len(forward.specs[0].training_metrics)]), tf.constant(0.0)

    branches = {
        0: lambda: accumulate("first"),
        1: lambda: accumulate("further"),
        2: lambda: complete(sums),
    }
    branch = tf.where(tf.equal(number, 0), 0, tf.where(tf.equal(number, last), 2, 1))  # []
    return tuple(tf.switch_case(branch, branches))


def _forget_the_inside(graph: tf.Graph) -> None:
    """Removes the ops inside a loop from the collections, since they cannot run outside it."""
    for key in graph.get_all_collection_keys():
        items = graph.get_collection_ref(key)
        usable = [item for item in items if not _is_inside(item, graph)]
        if key == v1.GraphKeys.SUMMARIES and len(usable) < len(items):
            v1.logging.info(
                "Summaries made in model_fn are not written with iterations_per_loop above 1."
            )
        items[:] = usable


def _is_inside(item: Any, graph: tf.Graph) -> bool:
    """Returns whether a graph element is in a loop, which need not have a graph of its own."""
    if not isinstance(item, tf.Tensor | tf.Operation):
        return False
    op = item.op if isinstance(item, tf.Tensor) else item
    return item.graph is not graph or is_in_loop_or_branch(op)


def _run_host_call(
    spec: EstimatorSpec, tensors: Sequence[Any], placement: Placement
) -> tf.Operation | tf.Tensor:
    """Copies the tensors to the host and calls the function there."""
    assert spec.host_call is not None
    function, _ = spec.host_call
    num_accumulated = len(accumulated_updates())
    with placement.on_host():
        # One copy op for each tensor, so that each is copied as soon as it exists.
        result = function(*(_on_host(t) for t in tensors))
    if len(accumulated_updates()) > num_accumulated:
        raise ValueError(
            "GradientAccumulationOptimizer(optimizer, n) in host_call would count each micro-batch "
            "as a step, and all of them alike. Set DeviceConfig(gradient_accumulation=n), and call "
            "apply_gradients of the optimizer inside it."
        )
    if isinstance(result, tf.Variable):
        result = result.op
    if not isinstance(result, (tf.Operation, tf.Tensor)):
        raise TypeError(
            f"`host_call` return value must be Operation or Tensor, got {result!r}. Return what "
            "optimizer.apply_gradients(...) returns."
        )
    return result


def _on_host(tensor: Any) -> Any:
    if isinstance(tensor, tf.IndexedSlices):
        return tf.IndexedSlices(
            tf.identity(tensor.values),  # [rows, ...]
            tf.identity(tensor.indices),  # [rows]
            tensor.dense_shape,
        )
    return tf.identity(tensor)


def _count(spec: EstimatorSpec, global_step: tf.Variable, ops: list[Any]) -> tf.Operation:
    """Increments the global step after the ops, unless the model does so itself."""
    if not counting.is_incremented(global_step.graph, global_step):
        if not all(update.counts_steps for update in accumulated_updates()):
            v1.logging.warning(
                "The global step counts micro-batches, since GradientAccumulationOptimizer was not "
                "given it. Write minimize(loss, global_step=tf.compat.v1.train.get_global_step())."
            )
        return counting.increment(global_step, ops)
    if spec.host_call is not None:
        raise ValueError(_COUNTED_TWICE)
    return tf.group(*ops)


def describe_host_call(
    spec: EstimatorSpec, placement: Placement, num_workers: int, num_buckets: int
) -> str:
    """Returns one line with number, size, devices and destination of host_call's tensors."""
    assert spec.host_call is not None
    tensors = spec.host_call[1]
    # A pipeline's gradients come from several devices.
    devices = sorted({getattr(t, "device", "") for t in tensors} - {""}) or [placement.device]
    num_bytes = sum(_num_bytes(t) for t in tensors)
    size = f"{num_bytes / 1e6:.2f} MB" if num_bytes >= 5000 else f"{num_bytes} bytes"
    number = _count_of(len(tensors), "gradient")
    line = f"host_call: {number} ({size}) from {listed(devices)} to {HOST}"
    if num_workers > 1:
        line += f", reduced over {num_workers} workers in {_count_of(num_buckets, 'bucket')}"
    return line


def _num_bytes(tensor: Any) -> int:
    dense = tensor.values if isinstance(tensor, (tf.IndexedSlices, tf.SparseTensor)) else tensor
    return (dense.shape.num_elements() or 0) * dense.dtype.size


def _count_of(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
