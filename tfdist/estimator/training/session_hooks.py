"""The hooks of a training, in tf.estimator's order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.graph.global_step import StepLimit, limit_in_place_of
from tfdist.estimator.inputs.batches import Input
from tfdist.estimator.spec import EstimatorSpec
from tfdist.estimator.training.peers import Hooks, Peers
from tfdist.estimator.training.progress_report import SavingNotes
from tfdist.estimator.training.stop_signals import StopSignals
from tfdist.estimator.training.train_call import TrainCall
from tfdist.strategies.placement import HOST
from tfdist.strategies.private_tensorflow import listeners_of, set_steps_per_call


class SessionHooks:
    """The user's hooks and TensorFlow's, for one training.

    The loop itself needs none: what it has to do in a step are lines of the loop.

    Args:
      call: The arguments of the training.
      spec: The model's.
      peers: The other workers.
      signals: The stop signals of this process.
      scaffold: The scaffold of the session.

    Attributes:
      limits: The limits of the training: the call's, and those of hooks that these replace.
    """

    def __init__(
        self,
        call: TrainCall,
        spec: EstimatorSpec,
        peers: Peers,
        signals: StopSignals,
        scaffold: v1.train.Scaffold,
    ) -> None:
        self._call = call
        self._spec = spec
        self._peers = peers
        self._signals = signals
        self._scaffold = scaffold
        self.limits: list[StepLimit] = [(call.steps, call.max_steps)]

    def in_order(self, inputs: Input, loss: tf.Tensor, global_step: tf.Variable) -> Hooks:
        """Returns all hooks.

        Args:
          inputs: The input of the model.
          loss: The loss to report, a scalar.
          global_step: The global step.
        """
        config, is_chief = self._call.config, self._peers.is_chief
        _add_loss_summary(loss)
        hooks: Hooks = []
        hooks += self._peers.hooks_that_save(self._savers, self._saver_with_listeners)
        if is_chief:
            hooks += self._of_user(self._spec.training_chief_hooks)
        if config.log_step_count_steps is not None:
            counter = v1.train.StepCounterHook(
                every_n_steps=config.log_step_count_steps,
                output_dir=self._call.model_dir if is_chief else None,
            )
            set_steps_per_call(counter, self._call.iterations)
            hooks.append(counter)
        if config.save_summary_steps and is_chief:
            hooks.append(
                v1.train.SummarySaverHook(
                    scaffold=self._scaffold,
                    save_steps=config.save_summary_steps,
                    output_dir=self._call.model_dir,
                )
            )
        hooks += self._peers.hooks_of_input(inputs)
        hooks += self._of_user(self._call.hooks)
        hooks.append(v1.train.NanTensorHook(loss))
        if config.log_step_count_steps is not None:
            every = max(1, config.log_step_count_steps // self._call.iterations)
            hooks.append(
                v1.train.LoggingTensorHook({"loss": loss, "step": global_step}, every_n_iter=every)
            )
        hooks += self._of_user(self._spec.training_hooks)
        return [*hooks, *self._peers.last_hooks()]

    def _of_user(self, hooks: Iterable[v1.train.SessionRunHook]) -> Hooks:
        kept = []
        for hook in hooks:
            limit = limit_in_place_of(hook, self._call.iterations)
            if limit is not None:
                self.limits.append(limit)
                continue
            if self._call.iterations > 1:
                set_steps_per_call(hook, self._call.iterations)
            kept.append(hook)
        return self._peers.hooks_of_user(kept)

    def _savers(self) -> Hooks:
        """Returns tf.estimator's saver unless the user has one; adds the listeners to the first."""
        given = [
            hook
            for hook in (
                *self._call.hooks,
                *self._spec.training_hooks,
                *self._spec.training_chief_hooks,
            )
            if isinstance(hook, v1.train.CheckpointSaverHook)
        ]
        saves = self._peers.is_chief and self._call.saves_checkpoints
        own = []
        if saves and not given:
            own = [
                self._saver(
                    save_secs=self._call.config.save_checkpoints_secs,
                    save_steps=self._call.config.save_checkpoints_steps,
                )
            ]
        for hook in (given or own)[:1]:
            listeners_of(hook).extend(self._call.listeners)
        for hook in (*given, *own):
            SavingNotes(self._signals).add_to(hook)
        if self._call.listeners and not (given or own):
            raise ValueError(
                "There should be a CheckpointSaverHook to use saving_listeners. Please set one of "
                "the RunConfig.save_checkpoints_steps or RunConfig.save_checkpoints_secs."
            )
        return own

    def _saver_with_listeners(self, **timing: Any) -> v1.train.CheckpointSaverHook:
        saver = self._saver(**timing)
        listeners_of(saver).extend(self._call.listeners)
        SavingNotes(self._signals).add_to(saver)
        return saver

    def _saver(self, **timing: Any) -> v1.train.CheckpointSaverHook:
        saver = v1.train.CheckpointSaverHook(
            self._call.model_dir,
            scaffold=self._scaffold,
            save_graph_def=self._call.config.checkpoint_save_graph_def,
            **timing,
        )
        set_steps_per_call(saver, self._call.iterations)
        return saver


def _add_loss_summary(loss: tf.Tensor) -> None:
    """Adds the scalar summary 'loss' unless the model has one."""
    graph = v1.get_default_graph()
    names = {op.name for op in graph.get_operations() if op.type == "ScalarSummary"}
    if "loss" not in names:
        with tf.device(HOST):
            v1.summary.scalar("loss", loss)
