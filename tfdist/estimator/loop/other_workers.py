"""The other workers and replicas of a training, for which every step needs an agreement."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster import WorkerLostError
from tfdist.cluster.environment import WEIGHT_CHECK, read_weight_check
from tfdist.estimator.checkpoints.scaffold import CheckedScaffold
from tfdist.estimator.graph import sessions
from tfdist.estimator.graph.global_step import StepLimit, last_step_of
from tfdist.estimator.graph.steady_timer import SteadyTimer
from tfdist.estimator.graph.step import Training, describe_host_call
from tfdist.estimator.inputs.batches import Input
from tfdist.estimator.loop.agreement import (
    Agreement,
    DeferredStop,
    LeaveTogether,
    NanTogether,
    SaveTogether,
    StartTogether,
)
from tfdist.estimator.loop.checkpoint_sharing import SharedCheckpoint
from tfdist.estimator.loop.model_check import (
    check_gradients_are_reduced,
    check_models,
    describe_model,
)
from tfdist.estimator.loop.peers import Peers
from tfdist.estimator.loop.snapshots import adopt_snapshot
from tfdist.estimator.loop.step_profile_hook import StepProfileHook
from tfdist.estimator.loop.train_call import Decision, FoundCheckpoint, Hooks, Model, TrainCall
from tfdist.estimator.loop.variable_inputs import find_variable_inputs
from tfdist.process.progress_file import in_phase
from tfdist.strategies.divided import pieces
from tfdist.strategies.lost_workers import describe_failure, lost_workers_named
from tfdist.strategies.placement import Placement
from tfdist.strategies.private_tensorflow import stop_limit_of
from tfdist.strategies.stop_signals import StopSignals
from tfdist.strategies.values.gather_text import TextExchange
from tfdist.strategies.values.weight_check import WeightCheck
from tfdist.strategies.worker_strategy import WorkerStrategy
from tfdist.training.wrappers.loss_scale import loss_scales_in


class OtherWorkers(Peers):
    """Other workers or replicas, which train in step with this one; every worker makes one."""

    def __init__(
        self, call: TrainCall, placement: Placement, signals: StopSignals, strategy: WorkerStrategy
    ) -> None:
        super().__init__(call, placement, signals)
        self._strategy = strategy
        self.num_workers = int(strategy.extended.collectives.num_workers)
        self.worker_index = int(strategy.extended.collectives.worker_index)
        self.is_chief = bool(strategy.extended.should_checkpoint)
        self._exchange = strategy.direct_exchange(
            call.config.session_config, steps_per_call=call.iterations
        )
        strategy.extended.reducer.start_counting()
        # Made before the graph, so that their keys are equal even where the graphs differ.
        self._checkpoint = SharedCheckpoint(strategy)
        self._compare_models = TextExchange(strategy)
        self._watch = strategy.watch_peers()
        self._have_all_come = False  # To the end of the training.

    def found_checkpoint(self) -> FoundCheckpoint:
        """Returns worker 0's checkpoint; LimitMismatchError for different steps or max_steps."""
        with self._naming_lost():
            start = self._checkpoint.share(self._call)
        self._strategy.extended.reducer.adds_equal_rows = start.most_threads > 1
        if start.snapshot is None:
            return start.found
        with self._naming_lost():
            path = adopt_snapshot(self._call, start.found, start.snapshot, self._strategy)
        return start.found if path is None else replace(start.found, path=path)

    def input_rules(self) -> dict[str, Any]:
        return {"look_ahead": self._num_batches}

    def begin_model(self) -> None:
        if self._exchange is not None:
            self._exchange.begin()

    def agree(self, training: Training) -> Decision:
        check_gradients_are_reduced(
            training.train_op,
            training.spec.loss,
            self._strategy.extended.reducer.built.num_values,
            self._strategy.num_replicas_in_sync,
        )
        # Counted before the agreement, which has a bucket of its own.
        self._num_gradient_buckets = self._strategy.extended.reducer.built.num_buckets
        agreement = Agreement(
            self._strategy, training.loss, training.has_more, training.weight, training.metrics
        )
        return SharedDecision(self._call, self._strategy, self._signals, agreement)

    def log_places(self, training: Training) -> None:
        if training.spec.host_call is not None:
            v1.logging.info(
                describe_host_call(
                    training.spec, self._placement, self.num_workers, self._num_gradient_buckets
                )
            )
        if self.num_workers > 1:
            v1.logging.info("Reductions: %s", self._strategy.describe_reductions())

    def make_scaffold(
        self, scaffold: v1.train.Scaffold, found: FoundCheckpoint
    ) -> v1.train.Scaffold:
        # Always: worker 0 alone may have an init_fn, and all workers must make the same messages.
        broadcast = self._strategy.extended.graph_variables.broadcast()
        made = pieces.GraphPieces(self._strategy.extended.reducer)
        restores = self.is_chief and found.path is not None
        checkpoint_dir = self._call.model_dir if restores else None
        tables = made if found.path is not None else None
        return sessions.restored_by_worker_0(scaffold, broadcast, checkpoint_dir, tables)

    def hooks_of_input(self, inputs: Input) -> Hooks:
        what = "a step" if self._call.iterations == 1 else "a session call"
        return [*inputs.hooks, StartTogether(self._strategy, inputs, self._num_batches, what)]

    def last_hooks(self, model: Model) -> Hooks:
        def complete_graph() -> None:
            if self._exchange is not None:
                self._exchange.complete([model.training.train_op, *model.decision.fetches])

        def end_watch() -> None:
            self._have_all_come = True
            self._watch.stop()

        return [LeaveTogether(self._strategy, self._signals, complete_graph, end_watch)]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watches the other workers in the `with` block, and tells them of a failure in it."""
        membership = self._watch.membership
        if membership is None:  # All replicas are in this process.
            yield
            return
        membership.calls = self._signals.calls
        membership.set_failure("")
        try:
            with self._naming_lost(), self._watch:
                yield
        except WorkerLostError:
            self._signals.leave_if_requested()  # The lost worker was asked to stop as well.
            raise
        except Exception as error:
            membership.set_failure(describe_failure(error))
            raise
        finally:
            membership.calls = None
            if self._have_all_come:
                with in_phase("waiting"):
                    self._watch.leave()

    def open_session(
        self,
        model: Model,
        hooks: Sequence[v1.train.SessionRunHook],
        scaffold: v1.train.Scaffold,
        found: FoundCheckpoint,
        limits: Sequence[StepLimit],
    ) -> v1.train.SingularMonitoredSession:
        limits_of_hooks = [
            stop_limit_of(hook) for hook in hooks if isinstance(hook, v1.train.StopAtStepHook)
        ]
        last_step = last_step_of([*limits, *limits_of_hooks], found.step)
        check_models(self._compare_models(self._describe(model, last_step)))
        self._watch.start()
        config = self._strategy.update_config_proto(
            sessions.with_defaults(self._call.config.session_config)
        )
        session = sessions.training_session(
            hooks,
            CheckedScaffold(
                scaffold,
                lambda saver: self._checkpoint.check_fit(saver, found, is_chief=self.is_chief),
            ),
            master=self._strategy.master,
            config=config if self._exchange is None else self._exchange.configure(config),
        )
        self._watch.interrupt = session.raw_session().close
        return session

    def _naming_lost(self) -> AbstractContextManager[None]:
        """Turns TensorFlow's errors about other workers into a `WorkerLostError`."""
        return lost_workers_named(self._strategy, self._watch.membership)

    def _describe(self, model: Model, last_step: int | None) -> str:
        call = self._call
        training = model.training
        features, labels, _ = training.batch
        variables = v1.trainable_variables()
        scales = loss_scales_in(v1.get_default_graph())
        return describe_model(
            v1.global_variables(),
            self._strategy.extended.reducer.built.described,
            find_variable_inputs(training.spec.loss, variables, features, labels),
            {
                "iterations_per_loop": call.iterations,
                "save_snapshot_steps": call.config.save_snapshot_steps,
                "the number of replicas": self._placement.num_replicas,
                "precision": call.precision.name,
                "stochastic_rounding": call.config.device.stochastic_rounding,
                "gradient_accumulation": call.accumulation.count,
                "accumulation_reduction": call.accumulation.reduction,
                "the step to stop at (steps, max_steps, StopAtStepHook)": last_step,
                "the loss scale": "; ".join(scale.settings for scale in scales) or "none",
                "the names of the training metrics": ", ".join(training.metrics) or "none",
                WEIGHT_CHECK: read_weight_check(os.environ),
            },
        )

    @property
    def _num_batches(self) -> int:
        """Batches that this worker takes in a session call, or in the calls of a step."""
        micro_batches = self._call.iterations * self._call.accumulation.count
        return micro_batches * self._placement.num_replicas


class SharedDecision(Decision):
    """The decision after each session call, from the sums over all workers."""

    def __init__(
        self,
        call: TrainCall,
        strategy: WorkerStrategy,
        signals: StopSignals,
        agreement: Agreement,
    ) -> None:
        super().__init__(agreement.loss, agreement.metrics, signals)
        self._call = call
        self._strategy = strategy
        self._agreement = agreement
        self._has_others = strategy.extended.collectives.num_workers > 1
        self._is_chief = bool(strategy.extended.should_checkpoint)
        self.fetches = [agreement.sums]
        self._synchronize: tf.Operation | None = None

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
        synchronize = self._synchronize = self._strategy.extended.graph_variables.synchronize()
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
