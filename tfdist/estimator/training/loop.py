"""Estimator.train in one process: from an input_fn to a trained checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.graph import sessions
from tfdist.estimator.graph.checkpoint_fit import checked
from tfdist.estimator.graph.global_step import LastStep, StopAtStep, told_of_the_loop
from tfdist.estimator.graph.replicas import each_replica
from tfdist.estimator.graph.sessions import AfterCalls, BeforeCalls
from tfdist.estimator.graph.step import Training, build_training, describe_host_call
from tfdist.estimator.inputs.batches import Input, call_input_fn, make_input
from tfdist.estimator.pipelined import PipelineEstimatorSpec, in_steps
from tfdist.estimator.run_config import RunConfig
from tfdist.estimator.spec import EstimatorSpec, ModeKeys
from tfdist.estimator.training.model_check import warn_if_nothing_is_learnt
from tfdist.estimator.training.progress_report import (
    InputCounter,
    ProgressReport,
    SavingNotes,
    refuse_too_large,
)
from tfdist.estimator.training.stop_signals import StopOnSignal, StopSignals
from tfdist.process.progress_file import find_progress_file
from tfdist.strategies.placement import Placement, place
from tfdist.strategies.private_tensorflow import loss_scaled_by_optimizer

ModelFn = Callable[[Any, Any], EstimatorSpec]


@dataclass(frozen=True, kw_only=True)
class FoundCheckpoint:
    """What there is to resume from.

    Attributes:
      path: The checkpoint; None if there is none.
      step: Its global step, where that matters.
    """

    path: str | None
    step: int


@dataclass(frozen=True, kw_only=True)
class TrainCall:
    """What one call of `Estimator.train` was asked for.

    Attributes:
      model_fn: From (features, labels) to an EstimatorSpec in TRAIN.
      create_global_step: Makes the step counter of a graph.
      input_fn: The user's input_fn.
      params: For the input_fn.
      config: The Estimator's.
      model_dir: Where checkpoints and events go.
      hooks: The user's hooks.
      steps: How many steps from the restored one; None if `max_steps` says, or the input ends it.
      max_steps: The global step to stop at.
      listeners: The user's checkpoint listeners.
      warm_start: Adds to the graph what initialises variables from elsewhere, for a run that finds
        no checkpoint.
      found: What this worker's model_dir has to resume from.
      pipeline: What a pipeline's model_fn says; None for another one.
    """

    model_fn: ModelFn
    create_global_step: Callable[[tf.Graph], tf.Variable]
    input_fn: Callable[..., Any]
    params: dict[str, Any]
    config: RunConfig
    model_dir: str
    hooks: Sequence[v1.train.SessionRunHook]
    steps: int | None
    max_steps: int | None
    listeners: Sequence[v1.train.CheckpointSaverListener]
    warm_start: Callable[[], None]
    found: FoundCheckpoint
    pipeline: PipelineEstimatorSpec | None = None


class TrainAlone:
    """Training in one process.

    Args:
      call: What was asked for.
      strategy: The strategy, with one replica; None for stock TensorFlow.
      signals: What this process does when it is asked to stop.
    """

    num_workers, worker_index = 1, 0

    def __init__(self, call: TrainCall, strategy: Any, signals: StopSignals) -> None:
        self.call = call
        self.signals = signals
        self.config = call.config
        self.strategy = strategy
        device = call.config.device
        self.placement: Placement = (
            strategy.extended.placement
            if strategy is not None
            else place(device.device, variables_on_host=device.variables_on_host)
        )
        if call.pipeline is not None:
            self.placement = self.placement.with_devices(call.pipeline.num_devices)
            if strategy is not None:
                strategy.extended.placement = self.placement
        self.iterations = device.iterations_per_loop
        self.is_chief = bool(call.config.is_chief)  # A RunConfig of the user's may say no.
        self.progress_file = find_progress_file()
        self.input_counter = (
            None
            if self.progress_file is None
            else InputCounter(in_micro_batches=call.pipeline is not None)
        )

    def run(self) -> None:
        """Trains, unless max_steps has been reached already."""
        found = self.found_checkpoint()
        if self.call.max_steps is not None and found.step >= self.call.max_steps:
            v1.logging.info("Skipping training since max_steps has already saved.")
            return
        v1.logging.info("Loss for final step: %s.", self.train(found))

    def found_checkpoint(self) -> FoundCheckpoint:
        return self.call.found

    def train(self, found: FoundCheckpoint) -> float | None:
        """Returns the last loss, None if no step ran."""
        self.found = found
        with tf.Graph().as_default() as graph, ExitStack() as stack:
            v1.set_random_seed(self.config.tf_random_seed)
            for scope in self.scopes():
                stack.enter_context(scope)
            global_step = self.call.create_global_step(graph)
            inputs = self.make_input()
            training = self.build(inputs, global_step)
            if found.path is None:
                self.call.warm_start()
            self.add_to_collections(graph, training)
            loss = self.combine(training)
            stack.close()  # Savers and summaries are built outside the strategy's scope.
            self.say_where_things_are(training)
            if self.iterations == 1:  # Not seen from outside a loop.
                warn_if_nothing_is_learnt(training.train_op)
            self.scaffold = self.make_scaffold(training.spec)
            hooks = self.all_hooks(training, inputs, loss, global_step)
            report = self.make_report(loss)
            return self.run_session(training, loss, self.with_observers(hooks, report), report)

    # Building.

    def scopes(self) -> list[AbstractContextManager[Any]]:
        if self.strategy is not None:
            return [self.strategy.scope(), loss_scaled_by_optimizer(self.strategy)]
        inside_loop = self.iterations > 1

        def create(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
            return self.placement.create_variable(next_creator, inside_loop=inside_loop, **kwargs)

        return [tf.variable_creator_scope(create)]

    def make_input(self) -> Input:
        result = call_input_fn(
            self.call.input_fn,
            mode=ModeKeys.TRAIN,
            params=self.call.params,
            config=self.config,
            input_context=None if self.strategy is None else self.strategy.extended.input_context(),
        )
        if self.call.pipeline is not None:
            result = in_steps(result, self.call.pipeline.gradient_accumulation_count or 1)
        return make_input(result, **self.input_rules())

    def input_rules(self) -> dict[str, Any]:
        return {"needs_dataset": self.iterations > 1}

    def build(self, inputs: Input, global_step: tf.Variable) -> Training:
        has_loop = self.strategy is not None and self.iterations > 1
        with self.strategy.extended.steps_in_a_loop() if has_loop else nullcontext():
            return build_training(
                self.call.model_fn,
                inputs,
                global_step,
                each_replica=each_replica(self.strategy, self.placement),
                placement=self.placement,
                iterations=self.iterations,
                count_input=None if self.input_counter is None else self.input_counter.count,
            )

    def combine(self, training: Training) -> tf.Tensor:
        """Returns the loss to report."""
        return training.loss

    def add_to_collections(self, graph: tf.Graph, training: Training) -> None:
        if not any(x is training.loss for x in graph.get_collection(v1.GraphKeys.LOSSES)):
            graph.add_to_collection(v1.GraphKeys.LOSSES, training.loss)

    # Hooks, in tf.estimator's order.

    def all_hooks(
        self, training: Training, inputs: Input, loss: tf.Tensor, global_step: tf.Variable
    ) -> list[v1.train.SessionRunHook]:
        spec, config = training.spec, self.config
        _add_loss_summary(loss)
        hooks: list[v1.train.SessionRunHook] = []
        hooks += self.saver_hooks(spec)
        if self.is_chief:
            hooks += self.asked_hooks(spec.training_chief_hooks)
        if config.log_step_count_steps is not None:
            counter = v1.train.StepCounterHook(
                every_n_steps=config.log_step_count_steps,
                output_dir=self.call.model_dir if self.is_chief else None,
            )
            counter._set_steps_per_run(self.iterations)  # No public way to say so.
            hooks.append(counter)
        if config.save_summary_steps and self.is_chief:
            hooks.append(
                v1.train.SummarySaverHook(
                    scaffold=self.scaffold,
                    save_steps=config.save_summary_steps,
                    output_dir=self.call.model_dir,
                )
            )
        hooks += self.input_hooks(inputs)
        hooks += self.asked_hooks(self.call.hooks)
        if self.call.steps is not None or self.call.max_steps is not None:
            hooks.append(StopAtStep(self.call.steps, self.call.max_steps, self.iterations))
        hooks.append(v1.train.NanTensorHook(loss))
        if config.log_step_count_steps is not None:
            every = max(1, config.log_step_count_steps // self.iterations)
            hooks.append(
                v1.train.LoggingTensorHook({"loss": loss, "step": global_step}, every_n_iter=every)
            )
        hooks += self.asked_hooks(spec.training_hooks)
        return [*hooks, *self.stopping_hooks()]

    def stopping_hooks(self) -> list[v1.train.SessionRunHook]:
        return [StopOnSignal(self.signals)]

    def with_observers(
        self, hooks: Sequence[v1.train.SessionRunHook], report: ProgressReport | None
    ) -> list[v1.train.SessionRunHook]:
        """Puts around the hooks what observes the session calls themselves."""
        calls = self.signals.calls
        if report is None:
            return [AfterCalls(calls.end), *hooks, BeforeCalls(calls.begin)]
        last = BeforeCalls(calls.begin, report.call_begins)
        return [AfterCalls(calls.end), report, *hooks, last]

    def make_report(self, loss: tf.Tensor) -> ProgressReport | None:
        if self.progress_file is None or self.input_counter is None:
            return None
        return ProgressReport(
            self.progress_file,
            loss,
            self.input_counter,
            steps=self.call.steps,
            last_step=self.call.max_steps,
            steps_per_call=self.iterations,
            batches_per_step=self.placement.num_replicas,
            signals=self.signals,
        )

    def input_hooks(self, inputs: Input) -> list[v1.train.SessionRunHook]:
        return inputs.hooks

    def asked_hooks(
        self, hooks: Iterable[v1.train.SessionRunHook]
    ) -> list[v1.train.SessionRunHook]:
        return [told_of_the_loop(hook, self.iterations) for hook in hooks]

    def saver_hooks(self, spec: EstimatorSpec) -> list[v1.train.SessionRunHook]:
        given = [
            hook
            for hook in (*self.call.hooks, *spec.training_hooks, *spec.training_chief_hooks)
            if isinstance(hook, v1.train.CheckpointSaverHook)
        ]
        saves = self.is_chief and saves_checkpoints(self.config)
        own = [self.make_saver()] if saves and not given else []
        for hook in (given or own)[:1]:
            hook._listeners.extend(self.call.listeners)  # No public way to add one.
        for hook in (*given, *own):
            SavingNotes(self.signals).add_to(hook)
        if self.call.listeners and not (given or own):
            raise ValueError(
                "There should be a CheckpointSaverHook to use saving_listeners. Please set one of "
                "the RunConfig.save_checkpoints_steps or RunConfig.save_checkpoints_secs."
            )
        return list(own)

    def make_saver(self, **timing: Any) -> v1.train.CheckpointSaverHook:
        if not timing:
            timing = {
                "save_secs": self.config.save_checkpoints_secs,
                "save_steps": self.config.save_checkpoints_steps,
            }
        saver = v1.train.CheckpointSaverHook(
            self.call.model_dir,
            scaffold=self.scaffold,
            save_graph_def=self.config.checkpoint_save_graph_def,
            **timing,
        )
        saver._set_steps_per_run(self.iterations)  # No public way to say so.
        return saver

    # Running.

    def say_where_things_are(self, training: Training) -> None:
        if training.spec.host_call is not None:
            v1.logging.info(describe_host_call(training.spec, self.placement, 1, 0))

    def session_config(self) -> v1.ConfigProto:
        return self.placement.configure(sessions.with_defaults(self.config.session_config))

    def make_scaffold(self, spec: EstimatorSpec) -> v1.train.Scaffold:
        sessions.add_saver(spec.scaffold, self.config)
        return spec.scaffold

    def make_session(
        self, hooks: Sequence[v1.train.SessionRunHook]
    ) -> v1.train.SingularMonitoredSession:
        return sessions.training_session(
            hooks,
            checked(self.scaffold, self.found.path),
            master=self.config.master,
            config=self.session_config(),
            checkpoint_dir=self.call.model_dir,
        )

    def run_session(
        self,
        training: Training,
        loss: tf.Tensor,
        hooks: list[v1.train.SessionRunHook],
        report: ProgressReport | None,
    ) -> float | None:
        last_loss: float | None = None
        reporting = nullcontext() if report is None else report.training()
        last_step = LastStep()
        session = self.make_session([last_step, *hooks])
        with self.signals.noted(), reporting, session:
            while not session.should_stop():
                try:
                    _, last_loss = session.run([training.train_op, loss])
                except tf.errors.OutOfRangeError as error:  # Taken for the end of the input.
                    refuse_too_large(error, self.signals, self.call.model_dir)
                    raise
        self.signals.leave_after_training(
            step=last_step.step,
            num_workers=self.num_workers,
            worker_index=self.worker_index,
            saves=saves_checkpoints(self.config),
        )
        if last_loss is None:
            v1.logging.warning(
                "Training with estimator made no steps. Perhaps input is empty or misspecified."
            )
        return last_loss


def saves_checkpoints(config: RunConfig) -> bool:
    """Says whether the config asks for checkpoints."""
    return bool(config.save_checkpoints_secs or config.save_checkpoints_steps)


def _add_loss_summary(loss: tf.Tensor) -> None:
    """Adds the scalar summary 'loss' unless the model has one."""
    graph = v1.get_default_graph()
    names = {op.name for op in graph.get_operations() if op.type == "ScalarSummary"}
    if "loss" not in names:
        with tf.device("/device:CPU:0"):
            v1.summary.scalar("loss", loss)
