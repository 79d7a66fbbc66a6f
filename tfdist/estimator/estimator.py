"""Estimator: trains, evaluates and predicts with a model_fn."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow.compat.v1 as v1

from tfdist.cluster import ClusterError
from tfdist.estimator import checkpoints, evaluation, prediction, warm_start
from tfdist.estimator.calls import argument_names, call_with, check_model_fn
from tfdist.estimator.run_config import RunConfig
from tfdist.estimator.spec import EstimatorSpec, ModeKeys, checked_hooks
from tfdist.estimator.training import TrainCall
from tfdist.estimator.training_together import train

_OVERRIDABLE = frozenset({"model_fn", "latest_checkpoint"})


class Estimator:
    """Trains, evaluates and predicts with a model_fn, saving to and resuming from model_dir.

    Args:
      model_fn: A function of `features` and any of `labels`, `mode`, `params`, `config` that builds
        one model in the current graph and returns an `EstimatorSpec`. It runs on the device.
      model_dir: Folder of checkpoints and event files; None takes the config's, else a temporary
        folder.
      config: A `RunConfig`; None is `RunConfig()`.
      params: Passed to model_fn and input_fn, copied.
      warm_start_from: A path or `WarmStartSettings` for training and evaluating without a
        checkpoint of one's own.

    Raises:
      ValueError: If an argument is not usable.
      PermissionError: If model_dir cannot be written.
    """

    def __init__(
        self,
        model_fn: Callable[..., EstimatorSpec],
        model_dir: Any = None,
        config: RunConfig | None = None,
        params: dict[str, Any] | None = None,
        warm_start_from: Any = None,
    ) -> None:
        self._check_overrides()
        if config is not None and not isinstance(config, RunConfig):
            raise ValueError(f"config must be an instance of RunConfig, but provided {config!r}.")
        check_model_fn(model_fn, params)
        config = config if config is not None else RunConfig()
        self._model_dir = _decide_model_dir(model_dir, config)
        self._config = config.replace(model_dir=self._model_dir)
        self._model_fn = model_fn
        self._params = copy.deepcopy(params or {})
        self._warm_start = warm_start.settings_from(warm_start_from)
        if params is None and "params" in argument_names(model_fn):
            v1.logging.warning("Estimator's model_fn (%s) includes params argument, but params are "
                               "not passed to Estimator.", model_fn)  # fmt: skip
        v1.logging.info("Using config: %s", self._config)

    # Facts.

    @property
    def model_dir(self) -> str:
        return self._model_dir

    @property
    def config(self) -> RunConfig:
        return copy.deepcopy(self._config)

    @property
    def params(self) -> dict[str, Any]:
        return copy.deepcopy(self._params)

    @property
    def model_fn(self) -> Callable[..., EstimatorSpec]:
        """The model_fn as a function of exactly (features, labels, mode, config)."""

        def public_model_fn(features: Any, labels: Any, mode: str, config: Any) -> EstimatorSpec:
            return self._call_model_fn(features, labels, mode, config)

        return public_model_fn

    def latest_checkpoint(self) -> str | None:
        """Returns the path of the newest checkpoint in model_dir, or None."""
        return checkpoints.latest(self.model_dir)

    def get_variable_names(self) -> list[str]:
        """Names the variables of the newest checkpoint; ValueError if there is none."""
        return checkpoints.variable_names(self.model_dir)

    def get_variable_value(self, name: str) -> Any:
        """Returns a variable's value in the newest checkpoint as a numpy array."""
        return checkpoints.variable_value(self.model_dir, name)

    def eval_dir(self, name: str | None = None) -> str:
        """Returns the folder of evaluation's event files."""
        return os.path.join(self.model_dir, "eval" if not name else f"eval_{name}")

    # Work.

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[v1.train.SessionRunHook] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[v1.train.CheckpointSaverListener] | None = None,
    ) -> Estimator:
        """Trains until a number of steps is done or the input ends.

        Under a strategy every worker must call it, with the same model and number of steps; all
        end after the same step, also if the input or a hook ends on one of them only. Only worker
        0 saves checkpoints and summaries.

        Args:
          input_fn: Returns a `tf.data.Dataset` of features or (features, labels), or such tensors.
            Gets those of `mode`, `params`, `config` that it names, and `input_context` under a
            strategy.
          hooks: Session hooks.
          steps: Steps from where training resumes; a multiple of iterations_per_loop.
          max_steps: The global step at which to stop; returns at once if a checkpoint is there.
          saving_listeners: Called around each checkpoint, on worker 0.

        Returns:
          This Estimator.

        Raises:
          ValueError: If steps are not usable, or model_fn or input_fn returned what is not allowed.
          NanLossDuringTrainingError: If the loss became NaN on any worker.
          WorkerLostError: If another worker went away.
          ModelMismatchError: If the workers' models differ.
        """
        self._check_role()
        _check_positive("steps", steps)
        _check_positive("max_steps", max_steps)
        if steps is not None and max_steps is not None:
            raise ValueError("Can not provide both steps and max_steps. Give one of them.")
        loops = self._config.device.iterations_per_loop
        if steps is not None and steps % loops:
            below = steps - steps % loops
            nearest = f"{below} and {below + loops}" if below else f"{loops}"
            raise ValueError(
                f"steps ({steps}) must be a multiple of iterations_per_loop ({loops}). Nearest: "
                f"{nearest}."
            )
        checked = checked_hooks(hooks, "All hooks must be SessionRunHook instances")
        listeners = _check_listeners(saving_listeners)
        if self._config.train_distribute is None or self._config.is_chief:
            checkpoints.require_writable(self.model_dir)
            latest = self.latest_checkpoint()
            done = checkpoints.step_of(latest) if latest and max_steps is not None else 0
        else:
            done = 0
        if max_steps is not None and self._is_done(done, max_steps):
            v1.logging.info("Skipping training since max_steps has already saved.")
            return self
        loss = train(
            TrainCall(
                model_fn=self._in_mode(ModeKeys.TRAIN),
                input_fn=input_fn,
                params=self.params,
                config=self._config,
                model_dir=self.model_dir,
                hooks=checked,
                steps=steps,
                max_steps=max_steps,
                listeners=listeners,
                warm_start=self._warm_start_unless(self._has_checkpoint()),
            )
        )
        v1.logging.info("Loss for final step: %s.", loss)
        return self

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[v1.train.SessionRunHook] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluates a checkpoint, in this process alone.

        Args:
          input_fn: As in `train`; `input_context` is None.
          steps: Batches to evaluate; None is all of the input.
          hooks: Session hooks.
          checkpoint_path: None is the newest of model_dir; without any, the freshly initialised
            model is evaluated.
          name: Event files go to model_dir/eval_<name>.

        Returns:
          The metrics by name, with "loss" (the mean over steps) and "global_step".
        """
        _check_positive("steps", steps)
        checked = checked_hooks(hooks, "All hooks must be SessionRunHook instances")
        path = checkpoint_path or self.latest_checkpoint()
        if path is None:
            v1.logging.info("Could not find trained model in model_dir: %s, running "
                            "initialization to evaluate.", self.model_dir)  # fmt: skip
        return evaluation.evaluate(
            model_fn=self._in_mode(ModeKeys.EVAL),
            input_fn=input_fn,
            params=self.params,
            config=self._config,
            steps=steps,
            hooks=checked,
            checkpoint_path=path,
            events_dir=self.eval_dir(name),
            warm_start=self._warm_start_unless(path is not None),
        )

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Sequence[str] | None = None,
        hooks: Sequence[v1.train.SessionRunHook] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Yields predictions for the input's features; nothing happens before the first `next`.

        Args:
          input_fn: As in `train`; labels are dropped.
          predict_keys: Which of a dict's predictions to keep.
          hooks: Session hooks, run once a batch.
          checkpoint_path: None is the newest of model_dir; without any, the freshly initialised
            model predicts.
          yield_single_examples: Whether batches are split into examples.
        """
        checked = checked_hooks(hooks, "All hooks must be SessionRunHook instances")
        path = checkpoint_path or self.latest_checkpoint()
        if path is None:
            v1.logging.info("Could not find trained model in model_dir: %s, running "
                            "initialization to predict.", self.model_dir)  # fmt: skip
        yield from prediction.predict(
            model_fn=self._in_mode(ModeKeys.PREDICT),
            input_fn=input_fn,
            params=self.params,
            config=self._config,
            predict_keys=predict_keys,
            hooks=checked,
            checkpoint_path=path,
            yield_single_examples=yield_single_examples,
            warm_start=self._warm_start_unless(path is not None),
        )

    # Inside.

    def _in_mode(self, mode: str) -> Callable[[Any, Any], EstimatorSpec]:
        def model_fn(features: Any, labels: Any) -> EstimatorSpec:
            return self._call_model_fn(features, labels, mode, self.config)

        return model_fn

    def _call_model_fn(
        self, features: Any, labels: Any, mode: str, config: RunConfig
    ) -> EstimatorSpec:
        offered = {"labels": labels, "mode": mode, "params": self.params, "config": config}
        if labels is not None and "labels" not in argument_names(self._model_fn):
            raise ValueError("model_fn does not take labels, but input_fn returns labels.")
        v1.logging.info("Calling model_fn.")
        spec = call_with(self._model_fn, {"features": features, **offered})
        v1.logging.info("Done calling model_fn.")
        if not isinstance(spec, EstimatorSpec):
            raise ValueError(f"model_fn should return an EstimatorSpec, got {spec!r}.")
        return spec

    def _warm_start_unless(self, has_checkpoint: bool) -> Callable[[], None]:
        settings = None if has_checkpoint else self._warm_start
        return lambda: warm_start.apply(settings)

    def _has_checkpoint(self) -> bool:
        return self.latest_checkpoint() is not None

    def _is_done(self, step: int, max_steps: int) -> bool:
        return step >= max_steps

    def _check_role(self) -> None:
        """Refuses to train in a task, or a cluster, that does not train."""
        config = self._config
        if config.task_type in ("evaluator", "ps"):
            raise ValueError(
                f"Train has been called wrong configuration: this task is {config.task_type!r}. "
                "Call tfdist.estimator.train_and_evaluate, which knows what each task does."
            )
        if config.num_worker_replicas > 1 and config.train_distribute is None:
            raise ClusterError(
                f"TF_CONFIG lists {config.num_worker_replicas} workers, but RunConfig has no "
                "train_distribute. Give it tfdist.strategies.MultiWorkerStrategy()."
            )

    def _check_overrides(self) -> None:
        """Refuses subclasses that replace what the Estimator relies on."""
        own = {name for name in vars(Estimator) if not name.startswith("__")} - _OVERRIDABLE
        for name in own:
            if getattr(type(self), name) is not vars(Estimator)[name] and not isinstance(
                vars(Estimator)[name], staticmethod
            ):
                raise ValueError(
                    f"Subclasses of Estimator cannot override members of Estimator. {type(self)} "
                    f"does override {name}."
                )


def _decide_model_dir(model_dir: Any, config: RunConfig) -> str:
    given = os.fspath(model_dir) if model_dir else None
    if given and config.model_dir and given != config.model_dir:
        raise ValueError(
            f"model_dir are set both in constructor and RunConfig, but with different values. In "
            f"constructor: '{given}', in RunConfig: '{config.model_dir}'. Give one of them."
        )
    chosen = given or config.model_dir
    if not chosen:
        chosen = tempfile.mkdtemp()
        v1.logging.warning("Using temporary folder as model directory: %s", chosen)
    return str(chosen)


def _check_positive(name: str, value: int | None) -> None:
    if value is not None and value <= 0:
        raise ValueError(f"Must specify {name} > 0, given: {value}.")


def _check_listeners(listeners: Any) -> tuple[v1.train.CheckpointSaverListener, ...]:
    listeners = tuple(listeners or ())
    for listener in listeners:
        if not isinstance(listener, v1.train.CheckpointSaverListener):
            raise TypeError(
                "saving_listeners must be a list of CheckpointSaverListener instances, given: "
                f"{listener!r}."
            )
    return listeners
