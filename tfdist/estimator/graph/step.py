"""One training step: model_fn on the device; host_call and the global step on the host.

    device                                       host
                                                 next batch
    model_fn: forward, loss, gradients  <------
      (once for each replica)           ------>  host_call: reductions, weights, slots
                                                 global step + 1

With `iterations_per_loop` a `tf.while_loop` on the host makes several of these in one session call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.tasks import listed
from tfdist.estimator.graph import global_step as counting
from tfdist.estimator.graph.replicas import EachReplica
from tfdist.estimator.inputs.batches import Batch, Input
from tfdist.estimator.spec import EstimatorSpec
from tfdist.strategies.placement import HOST, Placement
from tfdist.strategies.private_tensorflow import is_in_loop_or_branch

# Graph collection of ops that every training step runs in addition to train_op and host_call.
RUN_WITH_EACH_STEP = "tfdist_run_with_each_step"

ModelFn = Callable[[Any, Any], EstimatorSpec]


@dataclass(kw_only=True)
class Training:
    """The ops of one session call while training.

    Attributes:
      spec: The EstimatorSpec of the first replica.
      train_op: Runs the step, or the loop of steps, and increments the global step.
      loss: Scalar of this worker: the step's loss, or the mean over its replicas and the loop.
      has_more: float32 scalar, 1.0 if this worker's input suffices for another call; None if not
        known.
      batch: The batch of the first replica; inside the loop, if there is one.
    """

    spec: EstimatorSpec
    train_op: tf.Operation
    loss: tf.Tensor
    has_more: tf.Tensor | None
    batch: Batch


def build_training(
    model_fn: ModelFn,
    inputs: Input,
    global_step: tf.Variable,
    *,
    each_replica: EachReplica,
    placement: Placement,
    iterations: int,
    count_input: Callable[[Sequence[Batch]], tf.Operation] | None = None,
) -> Training:
    """Builds the training ops of one session call.

    Args:
      model_fn: A function from (features, labels) to an EstimatorSpec in TRAIN.
      inputs: Provides the batches, one for each replica and step.
      global_step: Incremented by one each step.
      each_replica: Calls a function in each replica.
      placement: The devices.
      iterations: Steps in one call.
      count_input: Makes an op that counts a step's batches; it runs in the step.
    """

    def build_step() -> Training:
        batches = next_batches(inputs, placement.num_replicas)

        def build(replica: int) -> tuple[EstimatorSpec, list[Any]]:
            features, labels, _ = batches[replica]
            spec = model_fn(features, labels)
            return spec, [*_ops_of(spec, placement), *v1.get_collection(RUN_WITH_EACH_STEP)]

        specs, ops = zip(*each_replica(build), strict=True)
        others = [] if count_input is None else [count_input(batches)]
        train_op = _count(specs[0], global_step, [*(op for own in ops for op in own), *others])
        loss = _mean([spec.loss for spec in specs])  # []
        return Training(
            spec=specs[0],
            train_op=train_op,
            loss=loss,
            has_more=batches[-1][2],
            batch=batches[0],
        )

    return build_step() if iterations == 1 else _build_loop(build_step, iterations)


def train_op_of(
    spec: EstimatorSpec, global_step: tf.Variable, placement: Placement
) -> tf.Operation:
    """Returns the op of one step of a model, for a worker without peers."""
    return _count(spec, global_step, _ops_of(spec, placement))


def _ops_of(spec: EstimatorSpec, placement: Placement) -> list[Any]:
    ops = [spec.train_op, _run_host_call(spec, placement)]
    return [op for op in ops if op is not None]


def next_batches(inputs: Input, count: int) -> list[Batch]:
    """Fetches several batches, in the input's order."""
    batches: list[Batch] = []
    for _ in range(count):
        fetched = [b for b in batches[-1:] if b[2] is not None]
        with tf.control_dependencies([has_more for *_, has_more in fetched]):
            batches.append(inputs.next_batch())
    return batches


def _mean(losses: list[tf.Tensor]) -> tf.Tensor:
    if len(losses) == 1:
        return losses[0]
    with tf.device(HOST):
        return tf.add_n([tf.cast(loss, tf.float32) for loss in losses]) / float(len(losses))


def _build_loop(build_step: Callable[[], Training], iterations: int) -> Training:
    steps: list[Training] = []
    knows_the_end = False

    def body(i: tf.Tensor, total: tf.Tensor, _: tf.Tensor) -> Any:
        nonlocal knows_the_end
        # Without v2 behaviour a loop has no graph of its own: its scope would be part of the names
        # of the variables that an optimizer makes, and so of a checkpoint.
        with v1.name_scope(""):
            step = build_step()
        steps.append(step)
        knows_the_end = step.has_more is not None
        has_more = step.has_more if knows_the_end else tf.constant(1.0)  # []
        loss = tf.cast(step.loss, tf.float32)  # []
        with tf.control_dependencies([step.train_op]):
            return i + 1, total + loss, tf.identity(has_more)

    # One iteration at a time: each reads the variables that the one before it has updated.
    count, total, has_more = tf.while_loop(
        lambda i, *_: i < iterations,
        body,
        [tf.constant(0), tf.constant(0.0), tf.constant(1.0)],
        parallel_iterations=1,
    )
    _forget_the_inside(v1.get_default_graph())
    return Training(
        spec=steps[0].spec,
        train_op=count.op,
        loss=total / float(iterations),
        has_more=has_more if knows_the_end else None,
        batch=steps[0].batch,
    )


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


def _run_host_call(spec: EstimatorSpec, placement: Placement) -> tf.Operation | tf.Tensor | None:
    """Copies the tensors to the host and calls the function there."""
    if spec.host_call is None:
        return None
    function, tensors = spec.host_call
    with placement.on_host():
        # One copy op for each tensor, so that each is copied as soon as it exists.
        result = function(*(_on_host(t) for t in tensors))
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
        return counting.increment(global_step, ops)
    if spec.host_call is not None:
        raise ValueError(
            "Illegal increment of the `global_step` variable in the `model_fn`: with host_call the "
            "Estimator increments it. Call minimize or apply_gradients without global_step."
        )
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
