"""The Estimator class: training, evaluation, prediction and export with a model_fn."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster import ClusterError
from tfdist.cluster.environment import read_run
from tfdist.estimator.checkpoints import listing, warm_start
from tfdist.estimator.checkpoints.model_dir_lock import locked
from tfdist.estimator.checkpoints.recovery import newest_whole, recover, whole_at
from tfdist.estimator.checkpoints.warm_start import WarmStartFrom
from tfdist.estimator.config.arguments import (
    InputFn,
    argument_names,
    call_with,
    check_model_fn,
    check_multiple,
    checked_listeners,
    whole_steps,
)
from tfdist.estimator.config.run_config import RunConfig, decide_model_dir
from tfdist.estimator.config.settings import default_session_config, without_fusion
from tfdist.estimator.config.task_role import refuse_parameter_servers
from tfdist.estimator.evaluation import predict, saved_model
from tfdist.estimator.evaluation.evaluate import Evaluation, build_evaluation, run_evaluation
from tfdist.estimator.evaluation.saved_model import ReceiverFn
from tfdist.estimator.graph.replicas import BatchSizes, num_workers
from tfdist.estimator.inputs.position import InputPosition, read_position
from tfdist.estimator.loop.loop import train
from tfdist.estimator.loop.parameter_servers import end_if_server, notify_servers
from tfdist.estimator.loop.train_call import FoundCheckpoint, TrainCall, saves_checkpoints
from tfdist.estimator.pipelined.spec import PipelineEstimatorSpec
from tfdist.estimator.private_keras import name_layers_from_the_start
from tfdist.estimator.spec import EstimatorSpec, ModeKeys, checked_hooks
from tfdist.process.snapshot_folders import name_for
from tfdist.strategies.saving.checkpoint_files import CheckpointDamagedError, step_of
from tfdist.strategies.saving.disk_space import full_disk_named
from tfdist.training.precision import find_precision
from tfdist.training.stochastic_rounding import stochastic_rounding

_OVERRIDABLE = frozenset(
    {
        "model_fn",
        "latest_checkpoint",
        "_create_and_assert_global_step",
        "_export_all_saved_models",
        "export_savedmodel",  # Only v1 has it.
    }
)
_HOOKS_RULE = "Hooks must be a SessionRunHook"


class Estimator:
    """Trains, evaluates and predicts with a model_fn; saves to and resumes from model_dir.

    Args:
      model_fn: A function of `features` and any of `labels`, `mode`, `params`, `config` that builds
        one model in the current graph and returns an `EstimatorSpec`. It runs on the device.
      model_dir: Folder of checkpoints and event files. None takes the config's folder; without
        one, a temporary folder.
      config: A `RunConfig`; None is `RunConfig()`.
      params: Passed to model_fn and input_fn, copied.
      warm_start_from: A path or `WarmStartSettings`, for training and evaluation while model_dir
        has no checkpoint.
      train_batch_size: Examples that all replicas of all workers read in one step of training.
        params["batch_size"] in input_fn and model_fn is the number that each replica reads.
      eval_batch_size: The same for evaluating.
      predict_batch_size: The same for predicting.

    Raises:
      ValueError: If an argument is not usable.
      PermissionError: If model_dir cannot be written.
    """

    def __init__(
        self,
        model_fn: Callable[..., EstimatorSpec],
        model_dir: str | os.PathLike[str] | None = None,
        config: RunConfig | None = None,
        params: dict[str, Any] | None = None,
        warm_start_from: WarmStartFrom = None,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
    ) -> None:
        type(self)._assert_members_are_not_overridden(self)
        if config is None:
            v1.logging.info("Using default config.")
            config = RunConfig()
        if not isinstance(config, RunConfig):
            raise ValueError(f"config must be an instance of `RunConfig`, but provided {config!r}.")
        check_model_fn(model_fn, params)
        self._model_dir = decide_model_dir(model_dir, config)
        self._config = _complete(config, self._model_dir)
        self._model_fn = model_fn
        self._params = copy.deepcopy(params or {})
        self._batch_sizes = BatchSizes(
            train_batch_size, eval_batch_size, predict_batch_size, self._config, params
        )
        self._warm_start_settings = warm_start.warm_start_settings(warm_start_from)
        # Libraries read these attributes of tf.estimator's class. A change has no effect.
        self._session_config = self._config.session_config
        self._device_fn = self._config.device_fn
        self._train_distribution = self._config.train_distribute
        self._eval_distribution = self._config.eval_distribute
        if params is None and "params" in argument_names(model_fn):
            v1.logging.warning("Estimator's model_fn (%s) includes params argument, but params are "
                               "not passed to Estimator.", model_fn)  # fmt: skip
        # tf.estimator's line has the names with an underscore.
        settings = {f"_{name.lstrip('_')}": one for name, one in self._config.described().items()}
        v1.logging.info("Using config: %s", settings)
        if num_workers(self._config.eval_distribute) > 1:
            v1.logging.info("eval_distribute has several workers, but an evaluation runs in the "
                            "process that calls it alone.")  # fmt: skip

    # Properties and values of checkpoints.

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
        return lambda features, labels, mode, config: self._call_model_fn(
            features, labels, mode, config
        )

    def latest_checkpoint(self) -> str | None:
        """Returns the path of the newest checkpoint in model_dir, or None; it may be damaged."""
        return listing.latest(self.model_dir)

    def get_variable_names(self) -> list[str]:
        """Returns the names of the newest checkpoint's variables; ValueError without one."""
        return [name for name, _ in tf.train.list_variables(listing.required(self.model_dir))]

    def get_variable_value(self, name: str) -> Any:
        """Returns a variable's value in the newest checkpoint as a numpy array.

        Args:
          name: The variable's name, such as "dense/kernel".
        """
        return tf.train.load_variable(listing.required(self.model_dir), name)

    def eval_dir(self, name: str | None = None) -> str:
        """Returns the folder of evaluation's event files.

        Args:
          name: The name of the evaluation, if it has one: see `evaluate`.
        """
        return os.path.join(self.model_dir, "eval" if not name else f"eval_{name}")

    # Training, evaluation, prediction and export.

    def train(
        self,
        input_fn: InputFn,
        hooks: Sequence[v1.train.SessionRunHook] | None = None,
        steps: float | None = None,
        max_steps: float | None = None,
        saving_listeners: Sequence[v1.train.CheckpointSaverListener] | None = None,
    ) -> Estimator:
        """Trains until a number of steps is done or the input ends.

        Under a strategy every worker must call it, with the same model and number of steps. All
        end after the same step, even if the input or a hook ends training on only one of them.
        Only worker 0 saves checkpoints and summaries.

        Args:
          input_fn: Returns a `tf.data.Dataset` of features or (features, labels), or such tensors.
            Called with those of `mode`, `params` and `config` that its signature names, and with
            `input_context` under a strategy.
          hooks: Session hooks.
          steps: Number of steps from the restored one; a multiple of iterations_per_loop. A
            fraction is rounded up, here and elsewhere.
          max_steps: The global step at which to stop. Returns at once if a checkpoint has reached
            it.
          saving_listeners: Called around each checkpoint, on worker 0.

        Returns:
          This Estimator.

        Raises:
          ValueError: If steps are not usable, or model_fn or input_fn returned something that is
            not allowed.
          NanLossDuringTrainingError: If the loss became NaN on any worker.
          WorkerLostError: If another worker was lost.
          ModelMismatchError: If the workers' models differ.
          CheckpointMismatchError: If the model differs from model_dir's checkpoint.
          ModelDirInUseError: If another process trains in the same model_dir.
          CheckpointDamagedError: If model_dir has checkpoints, but all are damaged.
          CheckpointSpaceError: If there is no disk space for a checkpoint.
        """
        self._check_role()
        steps = whole_steps("steps", steps)
        max_steps = whole_steps("max_steps", max_steps)
        if steps is not None and max_steps is not None:
            raise ValueError("Can not provide both steps and max_steps. Give one of them.")
        config = self._config
        check_multiple(steps, config.device.iterations_per_loop)
        checked = checked_hooks(hooks, _HOOKS_RULE)
        listeners = checked_listeners(saving_listeners)
        params = self._params_in(ModeKeys.TRAIN, input_fn)
        with full_disk_named(self.model_dir), self._lock_of_chief(checked) as lock_listeners:
            train(
                TrainCall(
                    model_fn=self._in_mode(ModeKeys.TRAIN),
                    create_global_step=self._create_and_assert_global_step,
                    input_fn=input_fn,
                    params=params,
                    config=config.in_this_process(),  # A strategy of several has its own master.
                    model_dir=self.model_dir,
                    hooks=checked,
                    steps=steps,
                    max_steps=max_steps,
                    listeners=(*lock_listeners, *listeners),
                    warm_start=self._apply_warm_start,
                    found=self._find_checkpoint(needs_step=max_steps is not None),
                    pipeline=self._pipeline(ModeKeys.TRAIN),
                    pipeline_fn=self._build_pipelines,
                )
            )
        return self

    def evaluate(
        self,
        input_fn: InputFn,
        steps: float | None = None,
        hooks: Sequence[v1.train.SessionRunHook] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluates a checkpoint, in this process alone.

        Args:
          input_fn: As in `train`; `input_context` is None.
          steps: Batches to evaluate; None evaluates the whole input.
          hooks: Session hooks.
          checkpoint_path: None takes the newest checkpoint of model_dir; without any, the freshly
            initialised model is evaluated.
          name: Event files go to model_dir/eval_<name>.

        Returns:
          The metrics by name, with "loss" (the mean over steps) and "global_step".
        """
        steps = whole_steps("steps", steps)
        check_multiple(steps, self._config.device.iterations_per_loop)
        checked = checked_hooks(hooks, _HOOKS_RULE)
        params = self._params_in(ModeKeys.EVAL, input_fn)
        path = self._checkpoint_to("evaluate", checkpoint_path)
        return run_evaluation(
            self._build_evaluation(input_fn, params, has_checkpoint=path is not None),
            master=self._config.evaluation_master,
            steps=steps,
            hooks=checked,
            checkpoint_path=path,
            events_dir=self.eval_dir(name),
        )

    def predict(
        self,
        input_fn: InputFn,
        predict_keys: Sequence[str] | None = None,
        hooks: Sequence[v1.train.SessionRunHook] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
        num_predictions: int | None = None,
    ) -> Iterator[Any]:
        """Yields predictions for the input's features. Work starts with the first `next`.

        Args:
          input_fn: As in `train`; labels are dropped.
          predict_keys: The keys to keep of a dict of predictions.
          hooks: Session hooks, run once a batch.
          checkpoint_path: None takes the newest checkpoint of model_dir; without any, the freshly
            initialised model predicts.
          yield_single_examples: Whether batches are split into examples.
          num_predictions: The highest number of predictions to yield; None reads the whole input.
        """
        if num_predictions is not None and num_predictions < 1:
            raise ValueError(f"num_predictions must be at least 1, got {num_predictions}.")
        params = self._params_in(ModeKeys.PREDICT, input_fn)
        checked = checked_hooks(hooks, _HOOKS_RULE)
        path = self._checkpoint_to("predict", checkpoint_path)
        yield from predict.predict(
            model_fn=self._in_mode(ModeKeys.PREDICT),
            input_fn=input_fn,
            params=params,
            config=self._config.in_this_process(),
            create_global_step=self._create_and_assert_global_step,
            num_predictions=num_predictions,
            predict_keys=predict_keys,
            hooks=checked,
            checkpoint_path=path,
            yield_single_examples=yield_single_examples,
            warm_start=self._apply_warm_start,
        )

    def export_saved_model(
        self,
        export_dir_base: str | os.PathLike[str],
        serving_input_receiver_fn: ReceiverFn | None,
        assets_extra: dict[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        experimental_mode: str = ModeKeys.PREDICT,
    ) -> bytes:
        """Writes a checkpoint and the model as a SavedModel, in this process alone.

        Args:
          export_dir_base: The folder in which a new folder is made, named by the seconds since
            1970.
          serving_input_receiver_fn: Returns a `tfdist.estimator.export.ServingInputReceiver` or a
            similar object, with the tensors that feed the model.
          assets_extra: A dict of path below "assets.extra" to the file that is copied there.
          as_text: Whether to write saved_model.pbtxt.
          checkpoint_path: None takes the newest checkpoint of model_dir; without any, the one that
            warm_start_from names.
          experimental_mode: The mode in which model_fn is called.

        Returns:
          The path of the new folder.

        Raises:
          ValueError: If there is no receiver function or no checkpoint, or the checkpoint lacks
            variables of the model.
        """
        if not serving_input_receiver_fn:
            raise ValueError("An input_receiver_fn must be defined.")
        receiver_fns = {experimental_mode: serving_input_receiver_fn}
        return self.experimental_export_all_saved_models(
            export_dir_base, receiver_fns, assets_extra, as_text, checkpoint_path
        )

    @property
    def export_savedmodel(self) -> Any:
        raise AttributeError("Estimator has no export_savedmodel: use export_saved_model.")

    def experimental_export_all_saved_models(
        self,
        export_dir_base: str | os.PathLike[str],
        input_receiver_fn_map: dict[str, ReceiverFn],
        assets_extra: dict[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
    ) -> bytes:
        """Writes a SavedModel that holds the model in several modes, with one set of variables.

        `input_receiver_fn_map` is a dict of mode to receiver function; modes with None are left
        out. The other arguments, the result and the errors are as in `export_saved_model`.
        """
        return self._export_all_saved_models(
            export_dir_base,
            input_receiver_fn_map,
            assets_extra=assets_extra,
            as_text=as_text,
            checkpoint_path=checkpoint_path,
            strip_default_attrs=True,
        )

    # Internal methods.

    def _export_all_saved_models(
        self,
        export_dir_base: str | os.PathLike[str],
        input_receiver_fn_map: dict[str, ReceiverFn],
        assets_extra: dict[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        strip_default_attrs: bool = True,
    ) -> bytes:
        """Performs both kinds of export. Subclasses may extend it."""
        return saved_model.export(
            model_fn=lambda features, labels, mode: self._call_model_fn(
                features, labels, mode, self.config, for_export=True
            ),
            create_global_step=self._create_and_assert_global_step,
            config=self._config,
            export_dir_base=export_dir_base,
            receiver_fns=input_receiver_fn_map,
            checkpoint_path=checkpoint_path or self._checkpoint_to_export(),
            assets_extra=assets_extra,
            as_text=as_text,
            strip_default_attrs=strip_default_attrs,
        )

    def _checkpoint_to_export(self) -> str:
        newest = newest_whole(self.model_dir, first=self.latest_checkpoint())
        if newest is None and self._warm_start_settings is not None:
            newest = whole_at(self._warm_start_settings.ckpt_to_initialize_from)
        if newest is None:
            raise ValueError(
                f"Couldn't find trained model at {self.model_dir}. Train first, or give "
                "checkpoint_path."
            )
        return newest

    def _create_and_assert_global_step(self, graph: tf.Graph) -> tf.Variable:
        """Creates the step counter of a graph. Subclasses may make another one, or return None."""
        with graph.as_default():
            return v1.train.create_global_step()

    def _params_in(self, mode: str, input_fn: InputFn | None = None) -> dict[str, Any]:
        """Returns the params of a mode, with its batch size; see `BatchSizes.add_to`."""
        return self._batch_sizes.add_to(self.params, mode, input_fn)

    def _build_evaluation(
        self, input_fn: InputFn, params: dict[str, Any], *, has_checkpoint: bool
    ) -> Evaluation:
        return build_evaluation(
            model_fn=self._in_mode(ModeKeys.EVAL),
            create_global_step=self._create_and_assert_global_step,
            input_fn=input_fn,
            params=params,
            config=self._config,
            is_untrained=not has_checkpoint,
            warm_start=self._apply_warm_start,
        )

    def _checkpoint_to(self, work: str, given: str | None) -> str | None:
        """Returns `given`, else the newest whole checkpoint, else None, which it logs."""
        path = given or newest_whole(self.model_dir)
        if path is None:
            is_cold = self._warm_start_settings is None
            log = v1.logging.warning if is_cold else v1.logging.info
            log("Could not find trained model in model_dir: %s, running initialization to %s. "
                "Check the path, or train first.", self.model_dir, work)  # fmt: skip
        return path

    def _pipeline(self, mode: str) -> PipelineEstimatorSpec | None:
        """Returns the spec of a pipeline's model_fn; None for an ordinary model_fn.

        The input and the devices must be known before the graph is built. So the model_fn is called
        here in a separate graph. This calls no stage.
        """
        if "features" in argument_names(self._model_fn):
            return None
        with tf.Graph().as_default() as graph:
            self._create_and_assert_global_step(graph)
            name_layers_from_the_start()
            return self._call_pipeline(mode, self.config)

    def _build_pipelines(self, batches: Sequence[tuple[Any, Any]]) -> list[EstimatorSpec]:
        """Builds the pipeline of each replica in TRAIN, given (features, labels) of each.

        Must be called in the context of the first replica.
        """
        from tfdist.estimator.pipelined.model import build_replicas  # Not needed by most.

        config = self.config
        with _model_fn_logged():
            return build_replicas(self._call_pipeline(ModeKeys.TRAIN, config), batches, config)

    def _in_mode(self, mode: str) -> Callable[[Any, Any], EstimatorSpec]:
        return lambda features, labels: self._call_model_fn(features, labels, mode, self.config)

    def _call_model_fn(
        self, features: Any, labels: Any, mode: str, config: RunConfig, for_export: bool = False
    ) -> EstimatorSpec:
        if "features" not in argument_names(self._model_fn):
            from tfdist.estimator.pipelined.model import build_model  # Not needed by most.

            with _model_fn_logged():
                pipeline = self._call_pipeline(mode, config)
                return build_model(pipeline, features, labels, config, for_export=for_export)
        params = self._params_in(mode)
        offered = {
            "features": features, "labels": labels, "mode": mode, "params": params, "config": config
        }  # fmt: skip
        if labels is not None and "labels" not in argument_names(self._model_fn):
            raise ValueError("model_fn does not take labels, but input_fn returns labels.")
        # An optimizer makes the same variables in each mode.
        rounding = stochastic_rounding(self._config.device.stochastic_rounding)
        with _model_fn_logged(), rounding:
            spec = call_with(self._model_fn, offered)
        if isinstance(spec, PipelineEstimatorSpec):
            raise ValueError(
                "a model_fn that returns a PipelineEstimatorSpec must not have `features` or "
                "`labels` arguments. The first computational stage gets them."
            )
        if not isinstance(spec, EstimatorSpec):
            raise ValueError(f"model_fn should return an EstimatorSpec, got {spec!r}.")
        if spec.mode not in (None, mode):
            raise ValueError(
                f"model_fn returned an EstimatorSpec of mode {spec.mode!r} when it was called with "
                f"mode {mode!r}. Write EstimatorSpec(mode, ...) with the mode that it gets."
            )
        if spec.mode is None:
            return EstimatorSpec(**{**spec._asdict(), "mode": mode})
        return spec

    def _call_pipeline(self, mode: str, config: RunConfig) -> PipelineEstimatorSpec:
        offered = {"mode": mode, "params": self._params_in(mode), "config": config}
        spec = call_with(self._model_fn, offered)
        if not isinstance(spec, PipelineEstimatorSpec):
            raise TypeError(
                "a model_fn without features must return a PipelineEstimatorSpec, got "
                f"{spec!r}. For an EstimatorSpec, take features and labels."
            )
        if spec.mode != mode:
            raise ValueError(
                f"model_fn was called in mode {mode!r} and returned a PipelineEstimatorSpec for "
                f"{spec.mode!r}. Give it the mode of the call."
            )
        return spec

    def _apply_warm_start(self) -> None:
        warm_start.apply_warm_start(self._warm_start_settings)

    def _find_checkpoint(self, *, needs_step: bool) -> FoundCheckpoint:
        """Finds the checkpoint to resume from. Only worker 0 needs the folder."""
        if self._config.train_distribute is not None and not self._config.is_chief:
            return FoundCheckpoint(path=None, step=0)
        listing.require_writable(self.model_dir)
        try:
            recovers = recover if self._config.is_chief else newest_whole
            path = recovers(self.model_dir)
        except CheckpointDamagedError as error:  # All workers must end with it.
            return FoundCheckpoint(path=None, step=0, problem=str(error))
        keeps_snapshots = self._config.save_snapshot_steps and read_run() is not None
        step = step_of(path) if path and (needs_step or keeps_snapshots) else 0
        position = None
        if self._config.save_input:
            position = (read_position(path) if path else None) or InputPosition.of_new_run()
        snapshots = name_for(self.model_dir) if keeps_snapshots else ""
        return FoundCheckpoint(path=path, step=step, input=position, snapshots=snapshots)

    def _lock_of_chief(
        self, hooks: Sequence[v1.train.SessionRunHook]
    ) -> AbstractContextManager[Sequence[v1.train.CheckpointSaverListener]]:
        """Locks model_dir for a chief that saves; yields the listeners for its saver."""
        has_saver = any(isinstance(hook, v1.train.CheckpointSaverHook) for hook in hooks)
        saves = has_saver or saves_checkpoints(self._config)
        return locked(self.model_dir) if self._config.is_chief and saves else nullcontext(())

    def _check_role(self) -> None:
        """Raises an error in a task, or a cluster, that does not train."""
        config = self._config
        end_if_server(config)
        if config.task_type in ("evaluator", "ps"):
            raise ValueError(
                f"Train has been called wrong configuration: this task is {config.task_type!r}. "
                "Call tfdist.estimator.train.train_and_evaluate, which knows what each task does."
            )
        refuse_parameter_servers(config)
        if config.num_worker_replicas > 1 and config.train_distribute is None:
            raise ClusterError(
                f"TF_CONFIG lists {config.num_worker_replicas} workers, but RunConfig has no "
                "train_distribute. Give it tfdist.strategies.MultiWorkerStrategy()."
            )
        notify_servers(config)

    def _assert_members_are_not_overridden(self) -> None:
        # Libraries replace this function, by its name in tf.estimator, to override all the same.
        own = {name for name in vars(Estimator) if not name.startswith("__")} - _OVERRIDABLE
        overridden = sorted(
            name
            for name in own
            if inspect.getattr_static(type(self), name) is not vars(Estimator)[name]
        )
        if overridden:
            raise ValueError(
                "Subclasses of Estimator cannot override members of Estimator. "
                f"{type(self)} does override {overridden}. Give these members other names."
            )


@contextmanager
def _model_fn_logged() -> Iterator[None]:
    """Logs the beginning and the end of a model_fn's call, and numbers layers from the start."""
    v1.logging.info("Calling model_fn.")
    name_layers_from_the_start()
    yield
    v1.logging.info("Done calling model_fn.")


def _complete(config: RunConfig, model_dir: str) -> RunConfig:
    """Returns a copy with the model_dir, and with a session_config if it has none."""
    # Not methods of the config, because a subclass may override `replace`.
    if config.session_config is None:
        config = RunConfig.replace(config, session_config=default_session_config())
    is_bfloat16 = find_precision(config.device.precision).compute == tf.bfloat16
    if is_bfloat16 and not tf.config.list_physical_devices("GPU"):
        config = RunConfig.replace(config, session_config=without_fusion(config.session_config))
    return RunConfig.replace(config, model_dir=model_dir)
