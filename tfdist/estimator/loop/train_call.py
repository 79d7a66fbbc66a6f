"""The arguments of one training, and the checkpoint that it resumes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.config.arguments import InputFn
from tfdist.estimator.config.run_config import RunConfig
from tfdist.estimator.graph.accumulation import Accumulation
from tfdist.estimator.inputs.position import InputPosition
from tfdist.estimator.pipelined.spec import PipelineEstimatorSpec
from tfdist.estimator.spec import EstimatorSpec
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
