"""PipelineEstimatorSpec, the return value of a pipelined model_fn, and its requirements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.spec import ModeKeys, checked_training_metrics, checked_weight
from tfdist.pipeline.schedule import SCHEDULES, Schedule, smallest_accumulation
from tfdist.process.text import listed
from tfdist.training.wrappers.optimizer_wrapper import has_own_gradients

# Graph collection with the number of devices that each replica of a pipeline in the graph needs.
_NUM_DEVICES = "tfdist_pipeline_devices"


@dataclass(frozen=True)
class OptimizerFunctionOutput:
    """The return value of the optimizer_function of a `PipelineEstimatorSpec`.

    Attributes:
      opt: An optimizer of tf.compat.v1.train or tf_keras.
      loss: Scalar tensor of floating type, the mean over the micro-batch.
      loss_weight: How much `loss` is a mean over, as in `EstimatorSpec`: a micro-batch counts by
        it, in the gradients and in the reported loss. Needs `reduction_method="mean"`.
      metrics: Dict of name to scalar tensor, each a mean over the micro-batch. Of each step the
        mean over all micro-batches is reported, as `training_metrics` of `EstimatorSpec` are.

    Raises:
      TypeError: If one of them has another type.
      ValueError: If a tensor is not a scalar, or a loss weight is negative.
    """

    opt: Any
    loss: tf.Tensor
    loss_weight: Any = None
    metrics: Mapping[str, tf.Tensor] | None = None

    def __post_init__(self) -> None:
        if not callable(getattr(self.opt, "apply_gradients", None)):
            raise TypeError(
                f"opt of OptimizerFunctionOutput must be an optimizer of tf.compat.v1.train or "
                f"tf_keras, got {self.opt!r}."
            )
        if has_own_gradients(self.opt):
            raise TypeError(
                f"{type(self.opt).__name__} has a compute_gradients of its own, which a pipeline "
                "does not call: it takes gradients stage by stage. Put what it does into "
                "apply_gradients, or use another optimizer."
            )
        if not isinstance(self.loss, tf.Tensor):
            raise TypeError(f"loss of OptimizerFunctionOutput must be a tensor, got {self.loss!r}.")
        if self.loss.shape.rank != 0 or not self.loss.dtype.is_floating:
            raise ValueError(
                "loss of OptimizerFunctionOutput must be a scalar of floating type, got shape "
                f"{self.loss.shape} of {self.loss.dtype.name}. Return tf.reduce_mean(loss)."
            )
        object.__setattr__(self, "loss_weight", checked_weight(self.loss_weight))
        object.__setattr__(self, "metrics", checked_training_metrics(self.metrics))


@dataclass(frozen=True, kw_only=True)
class PipelineEstimatorSpec:
    """A model as stages, each on a separate device; returned by a model_fn without features.

    The model_fn takes any of `mode`, `params` and `config`, but not `features` or `labels`, which
    are passed to the first stage. For training it is called twice: first in an otherwise empty
    graph. A stage is a function. It gets the return value of the stage before it; several returned
    tensors become as many arguments of the next stage. Its variables and layers are made while it
    runs: once, for any number of micro-batches.

    In training the input consists of micro-batches. A step takes `gradient_accumulation_count` of
    them through the pipeline, and adds up their gradients on the devices. It updates the weights
    once, on the host, where the gradients are also averaged over replicas and workers.
    Micro-batches at the end of the input that are too few for a step are dropped. Assignments of
    the stages to variables that are not trained, such as moving averages, run with each
    micro-batch.

    With several replicas in a worker (`num_replicas` of the strategy or of `DeviceConfig`) each has
    its own devices and takes `gradient_accumulation_count` micro-batches in a step; the input's
    micro-batches go to the replicas in turn. The Estimator's `train_batch_size` is the size of one
    micro-batch of each replica, summed over all replicas of all workers.

    In evaluation and prediction each batch passes through the stages by itself, one device after
    the other. An evaluation uses all replicas. An export is not bound to any device.

    Args:
      mode: One of `ModeKeys`.
      computational_stages: At least two functions. The first is called with the features, and with
        the labels if the input has any.
      gradient_accumulation_count: Micro-batches in a step; needed in TRAIN. At least 2N - 1 for N
        stages, unless the schedule is "sequential".
      optimizer_function: Called with the return value of the last stage; returns an
        `OptimizerFunctionOutput`. Needed in TRAIN.
      eval_metrics_fn: Called with the return value of the last stage; returns a dict of metrics as
        in `EstimatorSpec.eval_metric_ops`, and a scalar tensor as "loss". Needed in EVAL.
      device_mapping: The index of each stage's device among its replica's devices. Those of
        replica r begin with index r * (highest index + 1); 0 is the device of the Estimator.
        The default is 0, 1, 2 and so on.
      pipeline_schedule: "interleaved", "grouped" or "sequential"; see
        `tfdist.pipeline.PipelinedExecution`.
      recomputation: Whether stages drop their activations and recompute them for the backward pass.
      reduction_method: Whether the gradients of a step's micro-batches are averaged ("mean") or
        added up ("sum").
      training_chief_hooks: As in `EstimatorSpec`, as are the other hooks and the scaffold.
      training_hooks: As in `EstimatorSpec`.
      evaluation_hooks: As in `EstimatorSpec`.
      prediction_hooks: As in `EstimatorSpec`.
      scaffold: As in `EstimatorSpec`.

    Raises:
      TypeError: If an argument has a wrong type.
      ValueError: If something needed in this mode is missing, or numbers do not match.
    """

    mode: str
    computational_stages: Sequence[Callable[..., Any]]
    gradient_accumulation_count: int | None = None
    optimizer_function: Callable[..., OptimizerFunctionOutput] | None = None
    eval_metrics_fn: Callable[..., dict[str, Any]] | None = None
    device_mapping: Sequence[int] | None = None
    pipeline_schedule: Schedule = "interleaved"
    recomputation: bool = False
    reduction_method: Literal["mean", "sum"] = "mean"
    training_chief_hooks: Iterable[v1.train.SessionRunHook] | None = None
    training_hooks: Iterable[v1.train.SessionRunHook] | None = None
    evaluation_hooks: Iterable[v1.train.SessionRunHook] | None = None
    prediction_hooks: Iterable[v1.train.SessionRunHook] | None = None
    scaffold: v1.train.Scaffold | None = None

    def __post_init__(self) -> None:
        if self.mode not in (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT):
            raise ValueError(f"Unknown mode: {self.mode!r}. Use ModeKeys.TRAIN, EVAL or PREDICT.")
        self._check_stages()
        self._check_devices()
        if self.mode == ModeKeys.TRAIN:
            self._check_training()
        if self.mode == ModeKeys.EVAL and self.eval_metrics_fn is None:
            raise ValueError("PipelineEstimatorSpec must contain eval_metrics_fn when evaluating.")
        for name in ("optimizer_function", "eval_metrics_fn"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise TypeError(f"{name} must be a function, got {getattr(self, name)!r}.")

    @property
    def devices(self) -> tuple[int, ...]:
        """The index of each stage's device."""
        if self.device_mapping is None:
            return tuple(range(len(self.computational_stages)))
        return tuple(self.device_mapping)

    @property
    def num_devices(self) -> int:
        """The number of devices that a replica needs, up to the highest index that is used."""
        return max(self.devices) + 1

    def _check_stages(self) -> None:
        stages = self.computational_stages
        if not isinstance(stages, (list, tuple)) or not all(callable(stage) for stage in stages):
            raise TypeError(f"computational_stages must be a list of functions, got {stages!r}.")
        if len(stages) < 2:
            raise ValueError(
                f"a pipeline has at least two computational stages, got {len(stages)}. For one "
                "stage return an EstimatorSpec."
            )

    def _check_devices(self) -> None:
        mapping = self.device_mapping
        if mapping is None:
            return
        if not isinstance(mapping, (list, tuple)) or not all(_is_index(key) for key in mapping):
            raise TypeError(
                f"device_mapping must be a list of integers from 0 on, got {mapping!r}."
            )
        if len(mapping) != len(self.computational_stages):
            raise ValueError(
                f"each stage needs a device: device_mapping has {len(mapping)} devices for "
                f"{len(self.computational_stages)} stages."
            )

    def _check_training(self) -> None:
        if self.optimizer_function is None:
            raise ValueError("PipelineEstimatorSpec must contain optimizer_function when training.")
        count, stages = self.gradient_accumulation_count, len(self.computational_stages)
        if count is None:
            raise ValueError(
                "PipelineEstimatorSpec must contain gradient_accumulation_count when training."
            )
        if not _is_index(count) or count < 1:
            raise ValueError(
                f"gradient_accumulation_count must be an integer of at least 1, got {count!r}."
            )
        if self.pipeline_schedule not in SCHEDULES:
            raise ValueError(
                f"pipeline_schedule must be {listed(map(repr, SCHEDULES), 'or')}, got "
                f"{self.pipeline_schedule!r}."
            )
        if self.pipeline_schedule != "sequential" and count < smallest_accumulation(stages):
            raise ValueError(
                f"gradient_accumulation_count is {count}, and a pipeline of {stages} stages needs "
                f"at least {smallest_accumulation(stages)} (2 x {stages} - 1). Raise it, or use "
                'pipeline_schedule="sequential".'
            )
        if self.pipeline_schedule == "interleaved" and len(set(self.devices)) < stages:
            raise ValueError(
                f"device_mapping {list(self.devices)} has a device twice, which the schedule "
                '"interleaved" does not allow in training. Use "grouped" or "sequential".'
            )
        if self.reduction_method not in ("mean", "sum"):
            raise ValueError(
                f'reduction_method must be "mean" or "sum", got {self.reduction_method!r}.'
            )


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def in_steps(result: Any, micro_batches: int, num_replicas: int = 1) -> Any:
    """Groups the micro-batches of an input by step and by replica.

    The replicas take micro-batches in turn, as those of an ordinary model do. With two of them and
    three micro-batches in a step:

        step              0                 1
        replica 0         0   2   4         6   8   10
        replica 1         1   3   5         7   9   11

    Args:
      result: The return value of an input_fn: a dataset of micro-batches.
      micro_batches: The number of micro-batches of a replica in a step.
      num_replicas: The number of replicas of this worker.

    Returns:
      A dataset of elements [micro_batches, batch, ...]. A step has one for each replica.

    Raises:
      ValueError: If it is not a dataset, or the size of its batches is not fixed.
    """
    if not isinstance(result, (tf.data.Dataset, v1.data.Dataset)):
        raise ValueError(
            f"input_fn must return a tf.data.Dataset to train a pipeline, got "
            f"{type(result).__name__}. Write tf.data.Dataset.from_tensor_slices((features, "
            "labels)).batch(size, drop_remainder=True)."
        )
    for spec in tf.nest.flatten(result.element_spec):
        if not isinstance(spec, tf.TensorSpec) or not spec.shape.is_fully_defined():
            raise ValueError(
                f"the micro-batches of a pipeline all have one shape, and the input has {spec}. "
                "Write dataset.batch(size, drop_remainder=True)."
            )
    if num_replicas == 1:
        return result.batch(micro_batches, drop_remainder=True)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def by_replica(*element: object) -> Any:
        def split(step: tf.Tensor) -> tf.Tensor:  # [num_replicas, micro_batches, batch, ...]
            return tf.stack([step[r::num_replicas] for r in range(num_replicas)])

        parts = tf.nest.map_structure(split, element)
        return parts if len(parts) > 1 else parts[0]

    steps = result.batch(micro_batches * num_replicas, drop_remainder=True)
    return steps.map(by_replica).unbatch()


def need_devices(number: int) -> None:
    """Records the number of devices that each replica of a pipeline in the current graph needs."""
    v1.add_to_collection(_NUM_DEVICES, number)


def num_devices_in(graph: tf.Graph) -> int:
    """Returns the number of devices that each replica in a graph needs; 1 without a pipeline."""
    return max(graph.get_collection(_NUM_DEVICES), default=1)
