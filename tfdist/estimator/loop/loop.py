"""Estimator.train: from an input_fn to a trained checkpoint.

Every worker calls `train`, with the same program. These are the parts of a training, in order:

    checkpoint    the checkpoint that worker 0 has found                       peers.py
    graph         input_fn, model_fn on the device, host_call on the host,     ../graph/step.py
                  and the sums by which the workers agree                      agreement.py
    hooks         the user's and TensorFlow's, in tf.estimator's order         session_hooks.py
    session       equal models on all workers; hooks' begin; first values      peers.py
                  from worker 0; hooks' after_create_session
    steps         `TrainingLoop.step`, until all workers stop after the same one
    end           hooks' end: the last checkpoint; the session closes; then
                  all workers leave together                                   peers.py

One step is one session call (of several weight updates with `iterations_per_loop`). With
`gradient_accumulation`, calls for the earlier micro-batches come right before it, without hooks:

    Python                       host                            device            other workers

    hooks' before_run
    requests: stop? save? ---->  batch  --------------------->   forward
                                                                 backward
                                 reductions  <----------------   gradients  <--->  reductions
                                 weights, slots, global step
                                 sums of losses and requests  <----------------->  sums
    loss, step, sums  <--------  end of the call
    progress report
    hooks' after_run
    stop? agreed sums, signal,
    hooks, last step

A worker that left the loop alone would leave the others waiting in a reduction. So with other
workers each reason to stop is the same on all of them (the last step, the sums), or becomes a
request that is summed in the next step (of a hook, or a signal).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.checkpoints.background import BackgroundSaves
from tfdist.estimator.checkpoints.input_progress import InputProgress
from tfdist.estimator.graph import sessions
from tfdist.estimator.graph.global_step import is_last_call, last_step_of
from tfdist.estimator.graph.hooked_call import after_run, before_run
from tfdist.estimator.graph.precision import ModelPrecision
from tfdist.estimator.graph.replicas import each_replica, in_first_replica, training_strategy
from tfdist.estimator.graph.step import StepBuilder, build_training
from tfdist.estimator.inputs.batches import Batch, Input, call_input_fn, make_input, start_of
from tfdist.estimator.inputs.position import InputPosition, batching_of, write_position
from tfdist.estimator.loop.agreement import NanLossElsewhereError
from tfdist.estimator.loop.decision import Model
from tfdist.estimator.loop.model_check import (
    check_half_weights,
    log_half_precision,
    log_if_it_comes_again,
    warn_if_nothing_is_learnt,
    warn_of_random_ops,
)
from tfdist.estimator.loop.other_workers import OtherWorkers
from tfdist.estimator.loop.peers import Peers
from tfdist.estimator.loop.progress_report import NoReport, make_report
from tfdist.estimator.loop.session_hooks import Savers, add_metrics_to_report, all_hooks
from tfdist.estimator.loop.snapshots import Snapshots
from tfdist.estimator.loop.train_call import FoundCheckpoint, Hooks, TrainCall
from tfdist.estimator.pipelined.spec import in_steps
from tfdist.estimator.spec import EstimatorSpec, ModeKeys
from tfdist.process import endings
from tfdist.strategies import stop_signals
from tfdist.strategies.placement import Placement, place
from tfdist.strategies.private_tensorflow import loss_scaled_by_optimizer, seeds_of_run
from tfdist.strategies.saving.checkpoint_files import CheckpointDamagedError
from tfdist.strategies.saving.disk_space import refuse_full_disk
from tfdist.strategies.stop_signals import StopSignals
from tfdist.strategies.worker_strategy import WorkerStrategy
from tfdist.training.stochastic_rounding import stochastic_rounding


def train(call: TrainCall) -> None:
    """Trains, unless `max_steps` has been reached already. Every worker calls it."""
    endings.tell_when_leaving()
    _check_pipeline(call)
    strategy = training_strategy(call.config)
    with stop_signals.listening() as signals:
        placement = _placement(call, strategy)
        peers: Peers = (
            OtherWorkers(call, placement, signals, strategy)
            if strategy is not None and strategy.num_replicas_in_sync > 1
            else Peers(call, placement, signals)
        )
        found = peers.found_checkpoint()
        if found.problem is not None:
            raise CheckpointDamagedError(found.problem)
        if call.max_steps is not None and found.step >= call.max_steps:
            v1.logging.info("Skipping training since max_steps has already saved.")
            if found.step == call.max_steps and peers.is_chief and found.path is not None:
                write_position(found.path, None)  # It was interrupted after its last step.
            return
        report = make_report(
            signals,
            steps_per_call=call.iterations,
            batches_per_step=placement.num_replicas * call.accumulation.count,
            in_micro_batches=call.pipeline is not None,
        )
        with tf.Graph().as_default():
            v1.set_random_seed(call.config.tf_random_seed)
            with ExitStack() as scopes:
                for scope in _scopes(call, strategy, placement):
                    scopes.enter_context(scope)
                model = _build(call, strategy, placement, peers, report, found)
            check_half_weights(v1.get_default_graph())
            # Savers and summaries are built outside the strategy's scope.
            log_half_precision(call.precision, placement, model.training.spec.loss)
            peers.log_places(model)
            if call.iterations == 1:  # The ops inside a loop cannot be seen from outside.
                warn_if_nothing_is_learnt(model.training.train_op)
                if found.input is not None and found.input.batches:
                    warn_of_random_ops(model.training.train_op, model.training.batch[:2])
            spec = model.training.spec
            sessions.add_saver(spec.scaffold, call.config)
            scaffold = peers.make_scaffold(spec.scaffold, found)
            saves = BackgroundSaves(signals)
            snapshots = Snapshots(call, found, model.decision, scaffold, model.progress, signals)
            savers = Savers(
                call=call, scaffold=scaffold, signals=signals, saves=saves, progress=model.progress
            )
            hooks, limits = all_hooks(call, model, peers, savers, snapshots)
            with peers.watched(), snapshots, saves:
                session = peers.open_session(model, hooks, scaffold, found, limits)
                first_step = int(session.raw_session().run(model.global_step))
                loop = TrainingLoop(
                    call=call,
                    model=model,
                    hooks=hooks,
                    peers=peers,
                    signals=signals,
                    report=report,
                    first_step=first_step,
                    last_step=last_step_of(limits, first_step),
                )
                try:
                    loss = loop.run(session)
                except v1.train.NanLossDuringTrainingError as error:
                    # The ops inside a loop cannot be seen from outside.
                    if call.iterations == 1 and not isinstance(error, NanLossElsewhereError):
                        log_if_it_comes_again(model.training, has_input=call.config.save_input)
                    raise
        v1.logging.info("Loss for final step: %s.", loss)


@dataclass(frozen=True, kw_only=True)
class TrainingLoop:
    """The steps of one training, from an open session to its end.

    `last_step` is the global step to stop at; None if only the input ends the training.
    """

    call: TrainCall
    model: Model
    hooks: Hooks
    peers: Peers
    signals: StopSignals
    report: NoReport
    first_step: int
    last_step: int | None

    def run(self, session: v1.train.SingularMonitoredSession) -> float | None:
        """Runs steps until all workers stop. Then the hooks end, and the session closes.

        Ends the process after a stop signal. Returns the last loss; None if no step ran.
        """
        raw_session = session.raw_session()
        loss: float | None = None
        is_over = False
        self.report.start(raw_session, self.first_step, self.last_step)
        with self.signals.noted(), self.report.training(), session:
            try:
                while not (is_over or session.should_stop()):
                    loss, is_over = self.step(raw_session)
            except tf.errors.OutOfRangeError as error:  # The end of the input.
                refuse_full_disk(error, self.call.model_dir)
            except StopIteration:  # A hook may raise it.
                pass
            step = int(raw_session.run(self.model.global_step))
            self.report.end(raw_session)
            if not self.signals.is_stopping:
                self.model.progress.begin_end()
        self.model.progress.end()
        self.signals.leave_after_training(
            step=step,
            num_workers=self.peers.num_workers,
            worker_index=self.peers.worker_index,
            saves=self.call.saves_checkpoints,
        )
        if loss is None:
            v1.logging.warning(
                "Training with estimator made no steps. Perhaps input is empty or misspecified."
            )
        return loss

    def step(self, session: v1.Session) -> tuple[float, bool]:
        """Makes a session call, with the hooks around it, after those for earlier micro-batches.

        Returns the loss, and whether the training ends here.
        """
        decision = self.model.decision
        own = [self.model.training.train_op, decision.loss]
        context = v1.train.SessionRunContext(v1.train.SessionRunArgs(own), session)
        requested = before_run(self.hooks, context)
        fetches = [*own, self.model.global_step, *decision.fetches, *self.report.fetches()]
        feeds = {**requested.feeds, **decision.feeds()}
        metadata = v1.RunMetadata()

        self.signals.calls.begin()
        self.report.call_begins()
        for op in self.model.training.earlier:
            session.run(op, requested.feeds or None)
        outputs = session.run(
            {"loop": fetches, **requested.fetches}, feeds, requested.options, metadata
        )
        self.signals.calls.end()

        _, loss, step, *others = outputs["loop"]
        num_of_decision = len(decision.fetches)
        self.report.call_ends(session, loss, others[num_of_decision:])
        decision.receive(others[:num_of_decision])
        self.model.progress.call_ends()
        after_run(self.hooks, context, outputs, requested.options, metadata)

        is_last = self.last_step is not None and is_last_call(
            session, self.model.global_step, int(step), self.call.iterations, self.last_step
        )
        is_agreed = decision.ends_training()
        return loss, is_agreed or is_last or context.stop_requested


def _build(
    call: TrainCall,
    strategy: WorkerStrategy | None,
    placement: Placement,
    peers: Peers,
    report: NoReport,
    found: FoundCheckpoint,
) -> Model:
    graph = v1.get_default_graph()
    global_step = call.create_global_step(graph)
    inputs, progress = _make_input(call, strategy, placement, peers, found.input)
    peers.begin_model()
    on_each = each_replica(strategy, placement)

    def build_models(
        batches: Sequence[Batch], precision: ModelPrecision
    ) -> Sequence[EstimatorSpec]:
        given = [batch[:2] for batch in batches]
        if call.pipeline is None:
            return on_each(lambda replica: precision.call(call.model_fn, *given[replica]))
        return in_first_replica(
            strategy, placement, lambda: precision.call_pipeline(call.pipeline_fn, given)
        )

    with (
        strategy.extended.graph_variables.steps_in_a_loop()
        if strategy and call.iterations > 1
        else nullcontext(),
        stochastic_rounding(call.config.device.stochastic_rounding),
    ):
        step = StepBuilder(
            models_fn=build_models,
            inputs=inputs,
            global_step=global_step,
            each_replica=on_each,
            placement=placement,
            accumulation=call.accumulation,
            precision=call.precision,
            weighted=None if strategy is None else strategy.extended.reducer.weighted,
            count_input=report.count_input,
        )
        training = build_training(step, call.iterations)
    if found.path is None:
        call.warm_start()
    if not any(x is training.loss for x in graph.get_collection(v1.GraphKeys.LOSSES)):
        graph.add_to_collection(v1.GraphKeys.LOSSES, training.loss)
    decision = peers.agree(training)
    add_metrics_to_report(decision.metrics)
    return Model(
        inputs=inputs,
        training=training,
        decision=decision,
        global_step=global_step,
        progress=progress,
    )


def _make_input(
    call: TrainCall,
    strategy: WorkerStrategy | None,
    placement: Placement,
    peers: Peers,
    position: InputPosition | None,
) -> tuple[Input, InputProgress]:
    """Calls the input_fn. The input begins at the position; at its start if there is none."""
    # Each worker has seeds of its own, as it would without any.
    seeded = seeds_of_run(position.seed + peers.worker_index) if position else nullcontext()
    with seeded:
        result = call_input_fn(
            call.input_fn,
            mode=ModeKeys.TRAIN,
            params=call.params,
            config=call.config,
            input_context=None if strategy is None else strategy.extended.input_context(),
        )
    if call.pipeline is not None:
        count = call.pipeline.gradient_accumulation_count or 1
        result = in_steps(result, count, placement.num_replicas)
    start = start_of(position, peers.num_workers, result) if position else None
    inputs = make_input(result, read_again=start.batches if start else 0, **peers.input_rules())
    return inputs, InputProgress(
        start,
        batches_per_call=call.iterations * call.accumulation.count * placement.num_replicas,
        num_workers=peers.num_workers,
        batching=batching_of(result),
    )


def _check_pipeline(call: TrainCall) -> None:
    if call.pipeline is not None and call.accumulation.count > 1:
        raise ValueError(
            f"gradient_accumulation of DeviceConfig is {call.accumulation.count}, and a pipeline "
            "has its own: leave it out, and set gradient_accumulation_count of "
            f"PipelineEstimatorSpec, which is {call.pipeline.gradient_accumulation_count}."
        )


def _scopes(
    call: TrainCall, strategy: WorkerStrategy | None, placement: Placement
) -> list[AbstractContextManager[Any]]:
    """Returns the scopes of everything that the user's functions add to the graph."""
    if strategy is not None:
        return [
            strategy.scope(),
            loss_scaled_by_optimizer(strategy),
            strategy.extended.graph_variables.initial_values_sent_later(),
        ]
    inside_loop = call.iterations > 1

    def create(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        return placement.create_variable(next_creator, inside_loop=inside_loop, **kwargs)

    return [tf.variable_creator_scope(create)]


def _placement(call: TrainCall, strategy: WorkerStrategy | None) -> Placement:
    """Returns the devices of the training, from the strategy or the config; more for a pipeline."""
    device = call.config.device
    placement: Placement = (
        strategy.extended.placement
        if strategy is not None
        else place(device.device, variables_on_host=device.variables_on_host)
    )
    if call.pipeline is not None:
        placement = placement.with_devices(call.pipeline.num_devices)
        placement.divide_threads(call.config.session_config)
        if strategy is not None:
            strategy.extended.placement = placement
    return placement
