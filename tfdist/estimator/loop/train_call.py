"""The arguments of one training, the checkpoint that it resumes from, and its graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.checkpoints.input_progress import InputProgress
from tfdist.estimator.config.arguments import InputFn
from tfdist.estimator.config.run_config import RunConfig
from tfdist.estimator.graph.accumulation import Accumulation
from tfdist.estimator.graph.step import Training
from tfdist.estimator.inputs.batches import Input
from tfdist.estimator.inputs.position import InputPosition
from tfdist.estimator.pipelined.spec import PipelineEstimatorSpec
from tfdist.estimator.spec import EstimatorSpec
from tfdist.strategies.stop_signals import StopSignals
from tfdist.training.precision import Precision, find_precision

ModelFn = Callable[[Any, Any], EstimatorSpec]
PipelineFn = Callable[[Sequence[tuple[Any, Any]]], list[EstimatorSpec]]
Hooks = list[v1.train.SessionRunHook]


@dataclass(frozen=True, kw_only=True)
class FoundCheckpoint:
    """The checkpoint that a training resumes from.

    Attributes:
      path: Its path; None if there is no checkpoint.
      step: Its global step, if the training needs it.
      problem: The reason why training must not start; None if it may.
      input: The position at which its input begins; None if positions are not saved.
      snapshots: The name of the folder for snapshots of the training; "" if none are kept.
    """

    path: str | None
    step: int
    problem: str | None = None
    input: InputPosition | None = None
    snapshots: str = ""


class Decision:
    """The decision after each session call: to stop, to save, or to go on. The same on all workers.

    This is the one of a worker that is alone: it follows its own hooks and signals at once.

    Attributes:
      loss: Scalar: the loss to report, the same on all workers.
      metrics: The training metrics to report, a scalar each, the same on all workers.
      fetches: The tensors that each session call fetches; `receive` gets their values.
    """

    fetches: Sequence[tf.Tensor] = ()

    def __init__(
        self, loss: tf.Tensor, metrics: Mapping[str, tf.Tensor], signals: StopSignals
    ) -> None:
        self.loss = loss
        self.metrics = metrics
        self._signals = signals

    def hooks_of_user(self, hooks: Iterable[v1.train.SessionRunHook]) -> Hooks:
        """Returns the user's hooks as they run on this worker."""
        return list(hooks)

    def hooks_that_save(
        self, make_hooks: Callable[[], Hooks], make_saver: Callable[..., Any]
    ) -> Hooks:
        """Returns the hooks that save checkpoints.

        Args:
          make_hooks: Makes tf.estimator's saver, unless the user has one.
          make_saver: Makes a `CheckpointSaverHook` with the user's listeners, given its timing.
        """
        return make_hooks()

    def prepare_snapshot(self, session: v1.Session) -> None:
        """Makes the variables fit to be kept; every worker calls it after the same call."""

    def hooks_against_nan(self) -> Hooks:
        """Returns the hooks that end the training if `loss` is NaN."""
        return [v1.train.NanTensorHook(self.loss)]

    def feeds(self) -> dict[tf.Tensor, Any]:
        """Returns this worker's feeds for the coming session call: its message to the others."""
        return {}

    def receive(self, values: Sequence[Any]) -> None:
        """Takes the values of `fetches`, right after the call."""

    def ends_training(self) -> bool:
        """Returns whether the training ends after the call."""
        return self._signals.own is not None


@dataclass(frozen=True, kw_only=True)
class Model:
    """The graph of a training: its input, the ops of a session call, and what comes after it."""

    inputs: Input
    training: Training
    decision: Decision
    global_step: tf.Variable
    progress: InputProgress


@dataclass(frozen=True, kw_only=True)
class TrainCall:
    """The arguments of one call of `Estimator.train`, after its checks.

    `model_fn` makes an EstimatorSpec in TRAIN from (features, labels). With a `pipeline`, the spec
    of a pipelined model_fn, `pipeline_fn` takes its place: it makes the EstimatorSpec of each
    replica from the (features, labels) of each. `warm_start` adds the ops that initialise variables
    from another checkpoint, for a run that has found none in this worker's model_dir.
    """

    model_fn: ModelFn
    create_global_step: Callable[[tf.Graph], tf.Variable]
    input_fn: InputFn
    params: dict[str, Any]
    config: RunConfig
    model_dir: str
    hooks: Sequence[v1.train.SessionRunHook]
    steps: int | None
    max_steps: int | None
    listeners: Sequence[v1.train.CheckpointSaverListener]
    warm_start: Callable[[], None]
    found: FoundCheckpoint
    pipeline: PipelineEstimatorSpec | None
    pipeline_fn: PipelineFn

    @property
    def iterations(self) -> int:
        """Steps in one session call."""
        return int(self.config.device.iterations_per_loop)

    @property
    def accumulation(self) -> Accumulation:
        """The micro-batches of a replica in a step."""
        device = self.config.device
        return Accumulation(
            count=device.gradient_accumulation, reduction=device.accumulation_reduction
        )

    @property
    def precision(self) -> Precision:
        return find_precision(self.config.device.precision)

    @property
    def saves_checkpoints(self) -> bool:
        return saves_checkpoints(self.config)


def saves_checkpoints(config: RunConfig) -> bool:
    """Returns whether a config asks for checkpoints."""
    return bool(config.save_checkpoints_secs or config.save_checkpoints_steps)
