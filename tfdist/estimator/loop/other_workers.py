"""The other workers and replicas of a training, for which every step needs an agreement."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import tensorflow.compat.v1 as v1

from tfdist.cluster import WorkerLostError
from tfdist.cluster.environment import WEIGHT_CHECK, read_weight_check
from tfdist.estimator.checkpoints.scaffold import CheckedScaffold
from tfdist.estimator.graph import sessions
from tfdist.estimator.graph.global_step import StepLimit, last_step_of
from tfdist.estimator.graph.step import Training
from tfdist.estimator.inputs.batches import Input
from tfdist.estimator.loop.agreement import Agreement, LeaveTogether, StartTogether
from tfdist.estimator.loop.checkpoint_sharing import SharedCheckpoint
from tfdist.estimator.loop.decision import Decision, Model, SharedDecision
from tfdist.estimator.loop.model_check import (
    check_gradients_are_reduced,
    check_models,
    describe_model,
)
from tfdist.estimator.loop.peers import Peers
from tfdist.estimator.loop.snapshots import adopt_snapshot
from tfdist.estimator.loop.train_call import FoundCheckpoint, Hooks, TrainCall
from tfdist.estimator.loop.variable_inputs import find_variable_inputs
from tfdist.process.progress_file import in_phase
from tfdist.strategies.divided import pieces
from tfdist.strategies.lost_workers import describe_failure, lost_workers_named
from tfdist.strategies.placement import Placement
from tfdist.strategies.private_tensorflow import stop_limit_of
from tfdist.strategies.stop_signals import StopSignals
from tfdist.strategies.values.gather_text import TextExchange
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
        num_gradient_buckets = self._strategy.extended.reducer.built.num_buckets
        agreement = Agreement(
            self._strategy, training.loss, training.has_more, training.weight, training.metrics
        )
        return SharedDecision(
            self._call, self._strategy, self._signals, agreement, num_gradient_buckets
        )

    def log_places(self, model: Model) -> None:
        super().log_places(model)
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

        return [LeaveTogether(self._strategy, self._signals, complete_graph, self._watch.release)]

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
            if self._watch.is_released:
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
