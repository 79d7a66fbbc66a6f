"""Estimator.train: from an input_fn to a trained checkpoint.

Every worker runs `train`, with the same program. `TrainingLoop.run` is a training from top to
bottom:

    checkpoint    the one that worker 0 has found                              peers.py
    graph         input_fn, model_fn on the device, host_call on the host,     ../graph/step.py
                  and the sums by which the workers agree                      agreement.py
    hooks         the user's and TensorFlow's, in tf.estimator's order         session_hooks.py
    session       equal models on all workers; hooks' begin; first values      peers.py
                  from worker 0; hooks' after_create_session
    steps         `_step`, until all workers stop after the same one
    end           hooks' end: the last checkpoint; all workers leave together

One step is one session call (of several weight updates with `iterations_per_loop`):

    Python                       host                            device            other workers

    hooks' before_run
    wishes: stop? save? ------>  batch  --------------------->   forward
                                                                 backward
                                 reductions  <----------------   gradients  <--->  reductions
                                 weights, slots, global step
                                 sums of losses and wishes  <------------------->  sums
    loss, step, sums  <--------  end of the call
    progress report
    hooks' after_run
    stop? agreed sums, signal,
    hooks, last step

A worker that left the loop alone would leave the others waiting in a reduction. So with other
workers each reason to stop is the same on all of them (the last step, the sums), or becomes a wish
that is summed in the next step (a hook's request, a signal).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.graph import sessions
from tfdist.estimator.graph.global_step import is_last_call, last_step_of
from tfdist.estimator.graph.hooked_call import ask_hooks, tell_hooks
from tfdist.estimator.graph.replicas import each_replica, training_strategy
from tfdist.estimator.graph.step import Training, build_training
from tfdist.estimator.inputs.batches import Input, call_input_fn, make_input
from tfdist.estimator.pipelined import in_steps
from tfdist.estimator.spec import ModeKeys
from tfdist.estimator.training import stop_signals
from tfdist.estimator.training.model_check import warn_if_nothing_is_learnt
from tfdist.estimator.training.peers import Hooks, find_peers
from tfdist.estimator.training.progress_report import make_report, refuse_too_large
from tfdist.estimator.training.session_hooks import SessionHooks
from tfdist.estimator.training.stop_signals import StopSignals
from tfdist.estimator.training.train_call import FoundCheckpoint, TrainCall
from tfdist.process import endings
from tfdist.strategies.placement import Placement, place
from tfdist.strategies.private_tensorflow import loss_scaled_by_optimizer


def train(call: TrainCall) -> None:
    """Trains, unless `max_steps` has been reached already. Every worker calls it."""
    endings.tell_when_leaving()
    strategy = training_strategy(call.config)
    with stop_signals.listening() as signals:
        TrainingLoop(call, strategy, signals).run()


class TrainingLoop:
    """One training of an Estimator; see the drawings at the top of this file.

    Args:
      call: The arguments of the training.
      strategy: The strategy; None for one replica of stock TensorFlow.
      signals: The stop signals of this process.
    """

    def __init__(self, call: TrainCall, strategy: Any, signals: StopSignals) -> None:
        self.call = call
        self.strategy = strategy
        self.signals = signals
        self.placement = _placement(call, strategy)
        self.peers = find_peers(call, self.placement, signals, strategy)
        self.report = make_report(
            signals,
            steps_per_call=call.iterations,
            batches_per_step=self.placement.num_replicas,
            in_micro_batches=call.pipeline is not None,
        )
        self.last_loss: float | None = None  # None while no step has run.

    def run(self) -> None:
        call, peers = self.call, self.peers
        found = peers.found_checkpoint()
        if call.max_steps is not None and found.step >= call.max_steps:
            v1.logging.info("Skipping training since max_steps has already saved.")
            return
        with tf.Graph().as_default() as graph:
            v1.set_random_seed(call.config.tf_random_seed)
            with ExitStack() as scopes:
                for scope in self._scopes():
                    scopes.enter_context(scope)
                inputs = self._build(graph, found)
            # Savers and summaries are built outside the strategy's scope.
            peers.log_places(self.training)
            if call.iterations == 1:  # The ops inside a loop cannot be seen from outside.
                warn_if_nothing_is_learnt(self.training.train_op)
            sessions.add_saver(self.training.spec.scaffold, call.config)
            scaffold = peers.make_scaffold(self.training.spec.scaffold)
            hooks = SessionHooks(call, self.training.spec, peers, self.signals, scaffold)
            self.hooks: Hooks = hooks.in_order(inputs, self.loss, self.global_step)
            with peers.watched():
                session = peers.open_session(self.hooks, scaffold, found)
                first_step = int(session.raw_session().run(self.global_step))
                self.last_step = last_step_of(hooks.limits, first_step)
                self._run_steps(session, first_step)
        v1.logging.info("Loss for final step: %s.", self.last_loss)

    def _build(self, graph: tf.Graph, found: FoundCheckpoint) -> Input:
        """Adds the training to the graph; returns its input."""
        self.global_step = self.call.create_global_step(graph)  # int64 []
        inputs = self._make_input()
        self.peers.begin_model()
        has_loop = self.strategy is not None and self.call.iterations > 1
        with self.strategy.extended.steps_in_a_loop() if has_loop else nullcontext():
            self.training: Training = build_training(
                self.call.model_fn,
                inputs,
                self.global_step,
                each_replica=each_replica(self.strategy, self.placement),
                placement=self.placement,
                iterations=self.call.iterations,
                count_input=self.report.count_input,
            )
        if found.path is None:
            self.call.warm_start()
        if not any(x is self.training.loss for x in graph.get_collection(v1.GraphKeys.LOSSES)):
            graph.add_to_collection(v1.GraphKeys.LOSSES, self.training.loss)
        self.loss = self.peers.agree(self.training)  # float32 []
        return inputs

    def _scopes(self) -> list[AbstractContextManager[Any]]:
        """Returns the scopes of everything that the user's functions add to the graph."""
        if self.strategy is not None:
            return [self.strategy.scope(), loss_scaled_by_optimizer(self.strategy)]
        inside_loop = self.call.iterations > 1

        def create(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
            return self.placement.create_variable(next_creator, inside_loop=inside_loop, **kwargs)

        return [tf.variable_creator_scope(create)]

    def _make_input(self) -> Input:
        result = call_input_fn(
            self.call.input_fn,
            mode=ModeKeys.TRAIN,
            params=self.call.params,
            config=self.call.config,
            input_context=None if self.strategy is None else self.strategy.extended.input_context(),
        )
        if self.call.pipeline is not None:
            result = in_steps(result, self.call.pipeline.gradient_accumulation_count or 1)
        return make_input(result, **self.peers.input_rules())

    def _run_steps(self, session: v1.train.SingularMonitoredSession, first_step: int) -> None:
        """Runs steps until all workers stop; then the hooks end, and the session closes."""
        raw_session = session.raw_session()
        self.report.start(raw_session, first_step, self.last_step)
        with self.signals.noted(), self.report.training(), session:
            is_over = False
            try:
                while not (is_over or session.should_stop()):
                    is_over = self._step(raw_session)
            except tf.errors.OutOfRangeError as error:  # The end of the input.
                refuse_too_large(error, self.signals, self.call.model_dir)
            except StopIteration:  # A hook may raise it.
                pass
            step = int(raw_session.run(self.global_step))
            self.report.end(raw_session)
        self.signals.leave_after_training(
            step=step,
            num_workers=self.peers.num_workers,
            worker_index=self.peers.worker_index,
            saves=self.call.saves_checkpoints,
        )
        if self.last_loss is None:
            v1.logging.warning(
                "Training with estimator made no steps. Perhaps input is empty or misspecified."
            )

    def _step(self, session: v1.Session) -> bool:
        """Makes one session call, with the hooks around it; returns whether it is the last one."""
        own = [self.training.train_op, self.loss]
        context = v1.train.SessionRunContext(v1.train.SessionRunArgs(own), session)
        asked = ask_hooks(self.hooks, context)
        fetches = [*own, self.global_step, *self.peers.fetches, *self.report.fetches()]
        feeds = {**asked.feeds, **self.peers.feeds()}
        metadata = v1.RunMetadata()

        self.signals.calls.begin()
        self.report.call_begins()
        outputs = session.run({"loop": fetches, **asked.fetches}, feeds, asked.options, metadata)
        self.signals.calls.end()

        _, loss, step, *others = outputs["loop"]
        num_of_peers = len(self.peers.fetches)
        self.report.call_ends(session, loss, others[num_of_peers:])
        self.peers.receive(others[:num_of_peers])
        tell_hooks(self.hooks, context, outputs, asked.options, metadata)
        self.last_loss = loss

        is_last = self.last_step is not None and is_last_call(
            session, self.global_step, int(step), self.call.iterations, self.last_step
        )
        return self.peers.agreed_to_stop() or context.stop_requested or is_last


def _placement(call: TrainCall, strategy: Any) -> Placement:
    """Returns the devices of the training: the strategy's, or the config's; a pipeline has more."""
    device = call.config.device
    placement: Placement = (
        strategy.extended.placement
        if strategy is not None
        else place(device.device, variables_on_host=device.variables_on_host)
    )
    if call.pipeline is not None:
        placement = placement.with_devices(call.pipeline.num_devices)
        if strategy is not None:
            strategy.extended.placement = placement
    return placement
