"""`tf.compat.v1.estimator.tpu` for `use_tpu=False`: the TPUEstimator as an Estimator.

Programs such as BERT are written for TPUs and GPUs alike, with these names for both. Nothing here
uses a TPU.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow.compat.v1 as v1

from tfdist.estimator.checkpoints.warm_start import WarmStartFrom
from tfdist.estimator.config.run_config import RunConfig as BaseRunConfig
from tfdist.estimator.missing import find_missing
from tfdist.estimator.spec import EstimatorSpec, ModeKeys
from tfdist.estimator.v1 import tpu_experimental as experimental
from tfdist.estimator.v1.estimator import Estimator

__all__ = [
    "InputPipelineConfig",
    "RunConfig",
    "TPUConfig",
    "TPUEstimator",
    "TPUEstimatorSpec",
    "experimental",
]


class InputPipelineConfig:
    """The ways in which TPUs read their input; without an effect here."""

    PER_SHARD_V1 = 1
    PER_HOST_V1 = 2
    PER_HOST_V2 = 3
    BROADCAST = 4
    SLICED = 5


class TPUConfig(NamedTuple):
    """Settings of TPUs, which programs make and read; without an effect here."""

    iterations_per_loop: int = 2
    num_shards: int | None = None
    num_cores_per_replica: int | None = None
    per_host_input_for_training: Any = True
    tpu_job_name: str | None = None
    initial_infeed_sleep_secs: int | None = None
    input_partition_dims: Any = None
    eval_training_input_configuration: int = InputPipelineConfig.PER_HOST_V1
    experimental_host_call_every_n_steps: int = 1
    experimental_allow_per_host_v2_parallel_get_next: bool = False
    experimental_feed_hook: Any = None


class RunConfig(BaseRunConfig):
    """A RunConfig with the settings of TPUs, which have no effect.

    Args:
      tpu_config: A `TPUConfig`.
      evaluation_master: Must be None or "": evaluation is in the process that calls it.
      master: As `evaluation_master`, for training.
      cluster: Must be None: it would be a TPU's.
      **kwargs: The arguments of `tfdist.estimator.RunConfig`.

    Raises:
      ValueError: If an argument would need a TPU.
    """

    def __init__(
        self,
        tpu_config: TPUConfig | None = None,
        evaluation_master: str | None = None,
        master: str | None = None,
        cluster: Any = None,
        **kwargs: Any,
    ) -> None:
        targets = {"master": master, "evaluation_master": evaluation_master, "cluster": cluster}
        for name, value in targets.items():
            if value:
                raise ValueError(
                    f"{name} is {value!r}, the address of a TPU, and there are no TPUs here. Leave "
                    "it out: train_distribute gives several workers."
                )
        super().__init__(**kwargs)
        self._tpu_config = tpu_config or TPUConfig()

    @property
    def tpu_config(self) -> TPUConfig:
        return self._tpu_config

    @property
    def cluster(self) -> None:
        return None

    def replace(self, **kwargs: Any) -> RunConfig:
        """Returns a copy with some settings replaced, tpu_config among them.

        Args:
          **kwargs: The settings to replace, by the names of the constructor.
        """
        tpu_config = kwargs.pop("tpu_config", self._tpu_config)
        new: Any = super().replace(**kwargs)
        vars(new)["_tpu_config"] = tpu_config
        return new


class TPUEstimatorSpec(NamedTuple):
    """The return value of a TPUEstimator's model_fn; fields as in `EstimatorSpec`, except these.

    Attributes:
      eval_metrics: A pair (function, list or dict of tensors), for EVAL.
      scaffold_fn: A function that returns a `tf.compat.v1.train.Scaffold`.
      host_call: A pair (function, list or dict of tensors). The function returns ops which run with
        each step, such as summaries; they see the values of that step. Unlike that of an
        `EstimatorSpec`, it is no part of the update of variables.
    """

    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metrics: Any = None
    export_outputs: Any = None
    scaffold_fn: Callable[[], Any] | None = None
    host_call: Any = None
    training_hooks: Any = None
    evaluation_hooks: Any = None
    prediction_hooks: Any = None

    def as_estimator_spec(self) -> EstimatorSpec:
        """Returns the `EstimatorSpec` for an Estimator without a TPU."""
        hooks = () if self.host_call is None else (_RunWithEachStep(_called(self.host_call)),)
        return EstimatorSpec(
            self.mode,
            predictions=self.predictions,
            loss=self.loss,
            train_op=self.train_op,
            eval_metrics=self.eval_metrics if self.mode == ModeKeys.EVAL else None,
            export_outputs=self.export_outputs,
            scaffold=self.scaffold_fn() if self.scaffold_fn else None,
            training_hooks=(*(self.training_hooks or ()), *hooks),
            evaluation_hooks=(*(self.evaluation_hooks or ()), *hooks),
            prediction_hooks=(*(self.prediction_hooks or ()), *hooks),
        )


class TPUEstimator(Estimator):
    """An Estimator with a model_fn that returns a `TPUEstimatorSpec` or an `EstimatorSpec`.

    Arguments that are not listed here are as in `Estimator`. `batch_axis`, `eval_on_tpu`,
    `export_to_tpu`, `export_to_cpu`, `embedding_config_spec` and `export_saved_model_api_version`
    have no effect.

    Args:
      config: A `RunConfig` of this module or of `tfdist.estimator`.
      params: As in `Estimator`; without "batch_size".
      use_tpu: Must be False.
      train_batch_size: Examples of a step. `params["batch_size"]` is the share of a replica.
      eval_batch_size: The same for evaluating.
      predict_batch_size: The same for predicting.

    Raises:
      ValueError: If `use_tpu` is True, or another argument is not usable.
    """

    def __init__(
        self,
        model_fn: Callable[..., EstimatorSpec | TPUEstimatorSpec] | None = None,
        model_dir: str | os.PathLike[str] | None = None,
        config: BaseRunConfig | None = None,
        params: dict[str, Any] | None = None,
        use_tpu: bool = True,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        batch_axis: Any = None,
        eval_on_tpu: bool = True,
        export_to_tpu: bool = True,
        export_to_cpu: bool = True,
        warm_start_from: WarmStartFrom = None,
        embedding_config_spec: Any = None,
        export_saved_model_api_version: Any = 1,
    ) -> None:
        if use_tpu:
            raise ValueError(
                "TPUEstimator has use_tpu=True (its default), and there are no TPUs here. Give "
                "use_tpu=False: it trains on GPUs or CPUs."
            )
        if model_fn is None:
            raise ValueError("model_fn must be provided to TPUEstimator.")
        super().__init__(
            _with_estimator_spec(model_fn),
            model_dir,
            config,
            params,
            warm_start_from,
            train_batch_size,
            eval_batch_size,
            predict_batch_size,
        )


def _with_estimator_spec(
    model_fn: Callable[..., EstimatorSpec | TPUEstimatorSpec],
) -> Callable[..., Any]:
    """Returns a model_fn with the same arguments that returns an `EstimatorSpec`."""

    @functools.wraps(model_fn)
    def plain(*args: Any, **kwargs: Any) -> Any:
        spec = model_fn(*args, **kwargs)
        return spec.as_estimator_spec() if isinstance(spec, TPUEstimatorSpec) else spec

    return plain


def _called(host_call: Any) -> Any:
    function, tensors = host_call
    return function(**tensors) if isinstance(tensors, dict) else function(*tensors)


class _RunWithEachStep(v1.train.SessionRunHook):  # type: ignore[misc]
    """Runs ops in each session call; their results are not used."""

    def __init__(self, ops: Any) -> None:
        self._ops = ops

    def before_run(self, run_context: v1.train.SessionRunContext) -> Any:
        return v1.train.SessionRunArgs(self._ops)


def __getattr__(name: str) -> Any:
    return find_missing("tpu", name)


def __dir__() -> list[str]:
    return [*__all__]
