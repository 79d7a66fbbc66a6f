"""The other workers and replicas of a training, for which every step needs an agreement."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster import WorkerLostError
from tfdist.cluster.environment import WEIGHT_CHECK, read_num_threads, read_weight_check
from tfdist.estimator.checkpoints import fit
from tfdist.estimator.checkpoints.fit import CheckedScaffold, CheckpointMismatchError
from tfdist.estimator.graph import sessions
from tfdist.estimator.graph.global_step import StepLimit, last_step_of
from tfdist.estimator.graph.step import Training
from tfdist.estimator.inputs.batches import Input
from tfdist.estimator.loop.agreement import (
    Agreement,
    DeferredStop,
    LeaveTogether,
    SaveTogether,
    StartTogether,
)
from tfdist.estimator.loop.model_check import (
    check_limits,
    check_models,
    describe_model,
)
from tfdist.estimator.loop.nan_loss import NanTogether
from tfdist.estimator.loop.peers import Peers
from tfdist.estimator.loop.reduction_check import check_gradients_are_reduced
from tfdist.estimator.loop.step_profile_hook import StepProfileHook
from tfdist.estimator.loop.train_call import FoundCheckpoint, Hooks, TrainCall
from tfdist.estimator.loop.variable_inputs import find_variable_inputs
from tfdist.process.progress_file import in_phase
from tfdist.strategies.lost_workers import lost_workers_named
from tfdist.strategies.multi_worker import MultiWorkerStrategy
from tfdist.strategies.placement import Placement
from tfdist.strategies.private_tensorflow import stop_limit_of
from tfdist.strategies.stop_signals import StopSignals
from tfdist.strategies.values.gather_text import TextExchange
from tfdist.strategies.values.weight_check import WeightCheck
from tfdist.training.wrappers.loss_scale import loss_scales_in


class OtherWorkers(Peers):
    """Other workers or replicas, which train in step with this one; every worker makes one."""

    def __init__(
        self, call: TrainCall, placement: Placement, signals: StopSignals, strategy: Any
    ) -> None:
        super().__init__(call, placement, signals)
        self._strategy = strategy
        self.num_workers = strategy.extended.collectives.num_workers
        self.worker_index = strategy.extended.collectives.worker_index
        self.is_chief = strategy.extended.should_checkpoint
        given = call.config.session_config
        self._exchanges_directly = (
            isinstance(strategy, MultiWorkerStrategy)
            and call.iterations == 1
            # Such sessions have their own queues on each worker.
            and not (given is not None and given.isolate_session_state)
        )
        strategy.extended.reducer.start_counting()
        # Made before the graph, so that their keys are equal even where the graphs differ.
        self._share_checkpoint = TextExchange(strategy)
        self._compare_models = TextExchange(strategy)
        self._share_mismatch = TextExchange(strategy)
        self._watch = strategy.watch_peers()
        self._is_over = False

    # While the graph is built.

    def found_checkpoint(self) -> FoundCheckpoint:
        """Returns worker 0's checkpoint: the others may have another model_dir, or none.

        Raises:
          LimitMismatchError: If the workers were given different steps or max_steps.
        """
        call = self._call
        own = {
            "found": asdict(call.found),
            "limit": (call.steps, call.max_steps),
            "threads": _num_threads(call.config.session_config),
        }
        with lost_workers_named(self._strategy, self._watch.membership):
            shared = [json.loads(text) for text in self._share_checkpoint(json.dumps(own))]
        check_limits([one["limit"] for one in shared])
        self._strategy.extended.reducer.adds_equal_rows = max(one["threads"] for one in shared) > 1
        self._found = FoundCheckpoint(**shared[0]["found"])
        return self._found

    def input_rules(self) -> dict[str, Any]:
        return {"look_ahead": self._num_batches}

    def begin_model(self) -> None:
        if self._exchanges_directly:
            self._strategy.note_collectives()

    def agree(self, training: Training) -> tuple[tf.Tensor, Mapping[str, tf.Tensor]]:
        check_gradients_are_reduced(
            training.train_op,
            training.spec.loss,
            self._strategy.extended.reducer.built.num_values,
            self._strategy.num_replicas_in_sync,
        )
        self._num_gradient_buckets = self._strategy.extended.reducer.built.num_buckets
        self._agreement = Agreement(
            self._strategy, training.loss, training.has_more, training.weight, training.metrics
        )
        self.fetches = [self._agreement.sums]
        self._run_in_each_step = [training.train_op, self._agreement.sums]
        features, labels, _ = training.batch
        self._combined_with = find_variable_inputs(
            training.spec.loss, v1.trainable_variables(), features, labels
        )
        return self._agreement.loss, self._agreement.metrics

    def log_places(self, training: Training) -> None:
        super().log_places(training)
        if self.num_workers > 1:
            v1.logging.info("Reductions: %s", self._strategy.describe_reductions())

    def make_scaffold(self, scaffold: v1.train.Scaffold) -> v1.train.Scaffold:
        # Always: worker 0 alone may have an init_fn, and all workers must make the same messages.
        broadcast = self._strategy.extended.graph_variables.broadcast()
        restores = self.is_chief and self._found.path is not None
        checkpoint_dir = self._call.model_dir if restores else None
        return sessions.restored_by_worker_0(scaffold, broadcast, checkpoint_dir)

    # The hooks.

    def hooks_of_input(self, inputs: Input) -> Hooks:
        assert inputs.is_enough is not None
        what = "a step" if self._call.iterations == 1 else "a session call"
        start = StartTogether(self._strategy, inputs.is_enough, self._num_batches, what)
        return [*inputs.hooks, start]

    def hooks_of_user(self, hooks: Iterable[v1.train.SessionRunHook]) -> Hooks:
        """Defers the hooks' requests to stop; only worker 0 gets hooks that save checkpoints."""
        hooks = list(hooks)
        for hook in hooks:
            if isinstance(hook, StepProfileHook) and self.num_workers > 1:
                hook.strategy = self._strategy
        return [
            # TensorFlow's StopAtStepHook stops every worker after the same step by itself.
            hook
            if isinstance(hook, v1.train.StopAtStepHook)
            else DeferredStop(hook, self._agreement.requests)
            for hook in hooks
            if self.is_chief or not isinstance(hook, v1.train.CheckpointSaverHook)
        ]

    def hooks_that_save(
        self, make_hooks: Callable[[], Hooks], make_saver: Callable[..., Any]
    ) -> Hooks:
        synchronize = self._strategy.extended.graph_variables.synchronize()
        hooks = make_hooks() if self.is_chief else []
        if synchronize is None and self.num_workers == 1:
            return self.hooks_of_user(hooks)  # A listener may ask to stop.
        saver = timer = None
        saves = self.is_chief and self._call.saves_checkpoints
        if saves and (hooks or synchronize is not None):  # Without hooks: the user has a saver.
            hooks, saver = [], make_saver(save_steps=1)
            timer = v1.train.SecondOrStepTimer(
                every_secs=self._call.config.save_checkpoints_secs,
                every_steps=self._call.config.save_checkpoints_steps,
            )
        check = WeightCheck(self._strategy)
        together = SaveTogether(
            self._agreement, check, synchronize, saver, timer, self._call.iterations
        )
        return self.hooks_of_user([*hooks, together])

    def hooks_against_nan(self, loss: tf.Tensor) -> Hooks:
        if self.num_workers == 1:
            return [v1.train.NanTensorHook(loss)]
        return [NanTogether(self._strategy, loss, self._agreement.own_loss)]

    def last_hooks(self) -> Hooks:
        return [
            LeaveTogether(
                self._strategy,
                self._signals,
                complete_graph=self._complete_graph,
                all_are_there=self._end_watch,
            )
        ]

    def _end_watch(self) -> None:
        self._is_over = True
        self._watch.stop()

    def _complete_graph(self) -> None:
        """Replaces all collectives of a session call with a direct exchange, or none of them."""
        if self._exchanges_directly:
            self._strategy.exchange_directly(self._run_in_each_step)

    # While the session runs.

    @contextmanager
    def watched(self) -> Iterator[None]:
        membership = self._watch.membership
        if membership is None:  # All replicas are in this process.
            yield
            return
        membership.calls = self._signals.calls
        membership.set_failure("")
        try:
            with lost_workers_named(self._strategy, membership), self._watch:
                yield
        except WorkerLostError:
            self._signals.leave_if_requested()  # The lost worker was asked to stop as well.
            raise
        except Exception as error:
            membership.set_failure(f"{type(error).__name__}: {error}")
            raise
        finally:
            membership.calls = None
            if self._is_over:
                with in_phase("waiting"):
                    self._watch.leave()

    def open_session(
        self,
        hooks: Sequence[v1.train.SessionRunHook],
        scaffold: v1.train.Scaffold,
        found: FoundCheckpoint,
        limits: Sequence[StepLimit],
    ) -> v1.train.SingularMonitoredSession:
        limits_of_hooks = [
            stop_limit_of(hook) for hook in hooks if isinstance(hook, v1.train.StopAtStepHook)
        ]
        model = describe_model(
            v1.global_variables(),
            self._strategy.extended.reducer.built.described,
            self._combined_with,
            {
                "iterations_per_loop": self._call.iterations,
                "the number of replicas": self._placement.num_replicas,
                "precision": self._call.precision.name,
                "stochastic_rounding": self._call.config.device.stochastic_rounding,
                "gradient_accumulation": self._call.accumulation.count,
                "accumulation_reduction": self._call.accumulation.reduction,
                "the step to stop at (steps, max_steps, StopAtStepHook)": last_step_of(
                    [*limits, *limits_of_hooks], found.step
                ),
                "the loss scale": "; ".join(
                    scale.settings for scale in loss_scales_in(v1.get_default_graph())
                )
                or "none",
                "the names of the training metrics": ", ".join(self._agreement.metrics) or "none",
                WEIGHT_CHECK: read_weight_check(os.environ),
            },
        )
        check_models(self._compare_models(model))
        self._watch.start()
        session = sessions.training_session(
            hooks,
            CheckedScaffold(scaffold, lambda saver: self._check_fit(saver, found)),
            master=self._strategy.master,
            config=self._session_config(),
        )
        self._watch.interrupt = session.raw_session().close
        return session

    def feeds(self) -> dict[tf.Tensor, Any]:
        return self._agreement.feeds(self._signals.own)

    def receive(self, values: Sequence[Any]) -> None:
        self._agreement.receive(values[0])

    def agreed_to_stop(self) -> bool:
        self._agreement.log_why_all_stop()
        self._signals.order = self._agreement.agreed.order
        return self._agreement.agreed.ends_training

    @property
    def _num_batches(self) -> int:
        """Batches that this worker takes in a session call, or in the calls of a step."""
        micro_batches = self._call.iterations * self._call.accumulation.count
        return micro_batches * self._placement.num_replicas

    def _session_config(self) -> v1.ConfigProto:
        config = sessions.with_defaults(self._call.config.session_config)
        if self._exchanges_directly:
            return self._strategy.update_config_proto(config, sees_all_workers=True)
        return self._strategy.update_config_proto(config)

    def _check_fit(self, saver: v1.train.Saver, found: FoundCheckpoint) -> None:
        """Checks the checkpoint on worker 0, which restores it; every worker gets the error."""
        if found.path is None:
            return
        own = fit.mismatch(saver, found.path) if self.is_chief else None
        mismatch = json.loads(self._share_mismatch(json.dumps(own))[0])
        if mismatch is not None:
            raise CheckpointMismatchError(mismatch)


def _num_threads(config: v1.ConfigProto | None) -> int:
    """Returns how many threads may compute inside an operation of this process, at most."""
    of_session = 0 if config is None else config.intra_op_parallelism_threads
    of_process = tf.config.threading.get_intra_op_parallelism_threads()
    return max(of_session, of_process, read_num_threads())
