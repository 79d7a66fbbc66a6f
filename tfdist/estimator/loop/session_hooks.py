"""The hooks of a training, in tf.estimator's order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.environment import read_profile
from tfdist.estimator.checkpoints.background import BackgroundSaves, WaitingListener, reads_files
from tfdist.estimator.checkpoints.input_progress import InputProgress
from tfdist.estimator.checkpoints.writer import (
    CheckpointWriter,
    TrainingSaver,
    write_whole_checkpoints,
)
from tfdist.estimator.graph.global_step import StepLimit, limit_in_place_of
from tfdist.estimator.graph.steady_timer import SteadyTimer
from tfdist.estimator.loop.decision import Model
from tfdist.estimator.loop.peers import Peers
from tfdist.estimator.loop.progress_report import SavingNotes
from tfdist.estimator.loop.skipped_steps import hooks_with_loss_scales
from tfdist.estimator.loop.snapshots import Snapshots
from tfdist.estimator.loop.step_profile_hook import StepProfileHook
from tfdist.estimator.loop.train_call import Hooks, TrainCall
from tfdist.estimator.spec import EstimatorSpec
from tfdist.strategies.placement import HOST
from tfdist.strategies.private_tensorflow import listeners_of, replace_timer, set_steps_per_call
from tfdist.strategies.saving.stop_limit import StopLimit
from tfdist.strategies.stop_signals import StopSignals


def all_hooks(
    call: TrainCall,
    model: Model,
    peers: Peers,
    savers: Savers,
    snapshots: Snapshots,
) -> tuple[Hooks, list[StepLimit]]:
    """Returns the user's hooks and TensorFlow's, and the limits of the training.

    The loop itself needs no hooks: its work in a step is written in the loop. The hooks are built
    in the order in which they run, because some of them add ops to the graph.
    """
    spec = model.training.spec
    decision = model.decision
    limits: list[StepLimit] = [(call.steps, call.max_steps)]

    def of_user(given: Iterable[v1.train.SessionRunHook]) -> Hooks:
        kept = []
        for hook in given:
            limit = limit_in_place_of(hook, call.iterations)
            if limit is not None:
                limits.append(limit)
                continue
            if call.iterations > 1:
                set_steps_per_call(hook, call.iterations)
            kept.append(hook)
        return decision.hooks_of_user(kept)

    _add_loss_summary(decision.loss)
    starts_last = model.inputs.starts_last
    hooks = [
        *decision.hooks_of_user(profile_of_run()),  # First: it measures the time of all others.
        *decision.hooks_that_save(lambda: savers.usual(spec, peers.is_chief), savers.own),
        *snapshots.hooks(),
        *(of_user(spec.training_chief_hooks) if peers.is_chief else []),
        *_counters_and_summaries(call, savers.scaffold, is_chief=peers.is_chief),
        *([] if starts_last else peers.hooks_of_input(model.inputs)),
        *of_user(call.hooks),
        *hooks_with_loss_scales(
            decision.hooks_against_nan(), model.training.train_op, logs=peers.is_chief
        ),
        *_loss_lines(call, model),
        *of_user(spec.training_hooks),
        savers.saves,
        *(peers.hooks_of_input(model.inputs) if starts_last else []),
        # They complete the graph, and wait for the other workers at the end.
        *peers.last_hooks(model),
    ]
    return hooks, limits


def _counters_and_summaries(
    call: TrainCall, scaffold: v1.train.Scaffold, *, is_chief: bool
) -> Hooks:
    hooks: Hooks = []
    config = call.config
    if config.log_step_count_steps is not None:
        counter = v1.train.StepCounterHook(
            every_n_steps=config.log_step_count_steps,
            output_dir=call.model_dir if is_chief else None,
        )
        set_steps_per_call(counter, call.iterations)
        hooks.append(counter)
    if config.save_summary_steps and is_chief:
        hooks.append(
            v1.train.SummarySaverHook(
                scaffold=scaffold,
                save_steps=config.save_summary_steps,
                output_dir=call.model_dir,
            )
        )
    return hooks


def _loss_lines(call: TrainCall, model: Model) -> Hooks:
    every = call.config.log_step_count_steps
    if every is None:
        return []
    shown = {"loss": model.decision.loss, "step": model.global_step}
    return [v1.train.LoggingTensorHook(shown, every_n_iter=max(1, every // call.iterations))]


@cache
def profile_of_run() -> Hooks:
    """Returns the hook that `tfdist run --profile` asks for, one for all trainings of a process."""
    requested = read_profile()
    return [StepProfileHook(*requested)] if requested is not None else []


@dataclass(frozen=True, kw_only=True)
class Savers:
    """The hooks that save checkpoints."""

    call: TrainCall
    scaffold: v1.train.Scaffold
    signals: StopSignals
    progress: InputProgress
    saves: BackgroundSaves

    def usual(self, spec: EstimatorSpec, is_chief: bool) -> Hooks:
        """Returns tf.estimator's saver unless the user has one.

        The user's listeners are added to that saver, or to the first saver of the user.
        """
        given = [
            hook
            for hook in (*self.call.hooks, *spec.training_hooks, *spec.training_chief_hooks)
            if isinstance(hook, v1.train.CheckpointSaverHook)
        ]
        if given:
            listeners_of(given[0]).extend(self.call.listeners)
            for hook in given:
                SavingNotes(self.signals).add_to(hook)
                write_whole_checkpoints(hook, self.progress, self._background_of(hook))
            return []
        if is_chief and self.call.saves_checkpoints:
            config = self.call.config
            secs, steps = config.save_checkpoints_secs, config.save_checkpoints_steps
            return [self.own(save_secs=secs, save_steps=steps)]
        if self.call.listeners:
            raise ValueError(
                "There should be a CheckpointSaverHook to use saving_listeners. Please set one of "
                "the RunConfig.save_checkpoints_steps or RunConfig.save_checkpoints_secs."
            )
        return []

    def own(self, **timing: Any) -> v1.train.CheckpointSaverHook:
        """Makes a saver with the user's listeners; `timing` is `save_secs` or `save_steps`."""
        writer = CheckpointWriter(lambda: self.scaffold.saver, self.progress, limit=StopLimit())
        saver = TrainingSaver(
            self.call.model_dir,
            saver=writer,
            listeners=list(self.call.listeners),
            save_graph_def=self.call.config.checkpoint_save_graph_def,
            **timing,
        )
        replace_timer(saver, SteadyTimer(timing.get("save_secs"), timing.get("save_steps")))
        SavingNotes(self.signals).add_to(saver)
        saver.saves = writer.saves = self._background_of(saver)
        set_steps_per_call(saver, self.call.iterations)
        return saver

    def _background_of(self, saver: v1.train.CheckpointSaverHook) -> BackgroundSaves | None:
        """Returns the saves in the background for a saver; None if its files are read at once."""
        if not self.call.config.save_checkpoints_async:
            return None
        listeners = listeners_of(saver)
        for listener in listeners:
            if isinstance(listener, WaitingListener):
                listener.wait_for_files = self.saves.wait
        readers = [type(found).__name__ for found in listeners if reads_files(found)]
        if type(saver) not in (v1.train.CheckpointSaverHook, TrainingSaver):
            readers.append(type(saver).__name__)
        if readers:
            v1.logging.info(
                "Steps wait until a checkpoint is written, as %s may read its files.", readers[0]
            )
        return None if readers else self.saves


def add_metrics_to_report(metrics: Mapping[str, tf.Tensor]) -> None:
    """Adds, for each training metric, a tensor and a summary of its name to the graph.

    Raises:
      ValueError: If an op or a scope of the model has the name, in any case of letters.
    """
    with tf.device(HOST), v1.name_scope(""):
        for name, value in metrics.items():
            named = tf.identity(value, name=name)  # []
            if named.op.name != name:
                raise ValueError(
                    f"training metric {name!r} gets a tensor of that name, and the model has one "
                    "of that name already (in any case of letters). Rename one of them."
                )
            summary = tf.raw_ops.ScalarSummary(tags=name, values=named, name=f"{name}/summary")
            v1.add_to_collection(v1.GraphKeys.SUMMARIES, summary)


def _add_loss_summary(loss: tf.Tensor) -> None:
    graph = v1.get_default_graph()
    names = {op.name for op in graph.get_operations() if op.type == "ScalarSummary"}
    if "loss" not in names:
        with tf.device(HOST):
            v1.summary.scalar("loss", loss)
