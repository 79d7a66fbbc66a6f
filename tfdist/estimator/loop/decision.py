"""The decision after each session call: to stop, to save, or to go on.

`Decision` is a lone worker's. `SharedDecision` is the same on all workers of a training: it follows
from the sums of agreement.py. Hooks that depend on the other workers are made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.checkpoints.input_progress import InputProgress
from tfdist.estimator.graph.steady_timer import SteadyTimer
from tfdist.estimator.graph.step import Training
from tfdist.estimator.inputs.batches import Input
from tfdist.estimator.loop.agreement import Agreement, DeferredStop, NanTogether, SaveTogether
from tfdist.estimator.loop.step_profile_hook import StepProfileHook
from tfdist.estimator.loop.train_call import Hooks, TrainCall
from tfdist.process.progress_file import in_phase
from tfdist.strategies.divided import pieces
from tfdist.strategies.stop_signals import StopSignals
from tfdist.strategies.values.weight_check import WeightCheck
from tfdist.strategies.worker_strategy import WorkerStrategy


class Decision:
    """The decision after each session call: to stop, to save, or to go on. The same on all workers.

    This is the one of a worker that is alone: it follows its own hooks and signals at once.

    Attributes:
      loss: Scalar: the loss to report, the same on all workers.
      metrics: The training metrics to report, a scalar each, the same on all workers.
      fetches: The tensors that each session call fetches; `receive` gets their values.
      num_gradient_buckets: The number of messages with gradients in a step.
    """

    fetches: Sequence[tf.Tensor] = ()
    num_gradient_buckets = 0

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


class SharedDecision(Decision):
    """The decision after each session call, from the sums over all workers."""

    def __init__(
        self,
        call: TrainCall,
        strategy: WorkerStrategy,
        signals: StopSignals,
        agreement: Agreement,
        num_gradient_buckets: int = 0,
    ) -> None:
        super().__init__(agreement.loss, agreement.metrics, signals)
        self._call = call
        self._strategy = strategy
        self._agreement = agreement
        self._has_others = strategy.extended.collectives.num_workers > 1
        self._is_chief = bool(strategy.extended.should_checkpoint)
        self.fetches = [agreement.sums]
        self.num_gradient_buckets = num_gradient_buckets

    def hooks_of_user(self, hooks: Iterable[v1.train.SessionRunHook]) -> Hooks:
        """Defers the hooks' requests to stop; only worker 0 gets hooks that save checkpoints."""
        hooks = list(hooks)
        for hook in hooks:
            if isinstance(hook, StepProfileHook) and self._has_others:
                hook.strategy = self._strategy
        return [
            # TensorFlow's StopAtStepHook stops every worker after the same step by itself.
            hook
            if isinstance(hook, v1.train.StopAtStepHook)
            else DeferredStop(hook, self._agreement)
            for hook in hooks
            if self._is_chief or not isinstance(hook, v1.train.CheckpointSaverHook)
        ]

    def hooks_that_save(
        self, make_hooks: Callable[[], Hooks], make_saver: Callable[..., Any]
    ) -> Hooks:
        synchronize = self._synchronize
        hooks = make_hooks() if self._is_chief else []
        if synchronize is None and not self._has_others:
            return self.hooks_of_user(hooks)  # A listener may ask to stop.
        saver_and_timer = None
        saves = self._is_chief and self._call.saves_checkpoints
        if saves and (hooks or synchronize is not None):  # Without hooks: the user has a saver.
            config = self._call.config
            timer = SteadyTimer(config.save_checkpoints_secs, config.save_checkpoints_steps)
            hooks, saver_and_timer = [], (make_saver(save_steps=1), timer)
        check = WeightCheck(self._strategy)
        tables = pieces.GraphPieces(self._strategy.extended.reducer)
        folder = self._call.model_dir if saver_and_timer is not None else None
        together = SaveTogether(
            self._agreement,
            check,
            synchronize,
            saver_and_timer,
            self._call.iterations,
            (tables, folder) if tables.variables else None,
        )
        return self.hooks_of_user([*hooks, together])

    @cached_property
    def _synchronize(self) -> tf.Operation | None:
        """The op that combines the sync-on-read variables of all workers; None without any."""
        return self._strategy.extended.graph_variables.synchronize()

    def prepare_snapshot(self, session: v1.Session) -> None:
        # Twice would round twice: the training goes on as one that resumes from the checkpoint.
        if self._synchronize is not None and not self._agreement.agreed.save:
            with in_phase("waiting"):
                session.run(self._synchronize)

    def hooks_against_nan(self) -> Hooks:
        if self._has_others:
            return [NanTogether(self._strategy, self.loss, self._agreement.own_loss)]
        return super().hooks_against_nan()

    def feeds(self) -> dict[tf.Tensor, Any]:
        return self._agreement.feeds(self._signals.own)

    def receive(self, values: Sequence[Any]) -> None:
        self._agreement.receive(values[0])

    def ends_training(self) -> bool:
        self._agreement.log_why_all_stop()
        self._signals.order = self._agreement.agreed.order
        return self._agreement.agreed.ends_training


@dataclass(frozen=True, kw_only=True)
class Model:
    """The graph of a training: its input, the ops of a session call, and what comes after it."""

    inputs: Input
    training: Training
    decision: Decision
    global_step: tf.Variable
    progress: InputProgress
