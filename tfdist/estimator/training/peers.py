"""Estimator.train with other workers or replicas: what differs from training alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster import Cluster, Task, WorkerLostError
from tfdist.estimator.graph import checkpoint_fit, sessions
from tfdist.estimator.graph.checkpoint_fit import CheckedScaffold, CheckpointMismatchError
from tfdist.estimator.graph.global_step import StopAtStep
from tfdist.estimator.graph.replicas import training_strategy
from tfdist.estimator.graph.step import Training, describe_host_call
from tfdist.estimator.inputs.batches import Input
from tfdist.estimator.spec import EstimatorSpec
from tfdist.estimator.training import stop_signals
from tfdist.estimator.training.agreement import (
    Agreement,
    LeaveTogether,
    SaveTogether,
    StartTogether,
    StopTogether,
    StopWish,
)
from tfdist.estimator.training.loop import FoundCheckpoint, TrainAlone, TrainCall, saves_checkpoints
from tfdist.estimator.training.model_check import check_models, describe_model
from tfdist.estimator.training.progress_report import SavingNotes
from tfdist.estimator.training.stop_signals import StopSignals
from tfdist.estimator.training.variable_inputs import find_variable_inputs
from tfdist.process import endings
from tfdist.strategies.multi_worker import MultiWorkerStrategy
from tfdist.strategies.values.gather_text import TextExchange

_ALWAYS = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
# Another worker's own error reaches us through the collective that it has left: over gRPC, MPI.
_SIGNS = ("information from remote target", "Horovod has been shut down")
_REMOTE = re.compile(
    r"^(?P<why>.*)\n.* remote target /job:(?P<job>\w+)/replica:0/task:(?P<i>\d+)", re.M
)

_NOISE = re.compile(r"^(?:Collective ops is aborted by: |\[_Derived_\]|recvmsg:)+")


def train(call: TrainCall) -> None:
    """Trains as the call says. Every worker calls it."""
    endings.tell_when_leaving()
    strategy = training_strategy(call.config)
    with stop_signals.listening() as signals:
        if strategy is not None and strategy.num_replicas_in_sync > 1:
            TrainTogether(call, strategy, signals).run()
        else:
            TrainAlone(call, strategy, signals).run()


class ExchangeDirectly(v1.train.SessionRunHook):  # type: ignore[misc]
    """Lets the workers talk directly, when all hooks before this one have added their ops.

    Each of a session call's collectives is exchanged then, or none.

    Args:
      strategy: The workers'.
      needed: What each step runs.
    """

    def __init__(
        self, strategy: MultiWorkerStrategy, needed: Sequence[tf.Tensor | tf.Operation]
    ) -> None:
        self._strategy = strategy
        self._needed = needed

    def begin(self) -> None:
        self._strategy.exchange_directly(self._needed)


class TrainTogether(TrainAlone):
    """Training in step with other workers; every worker makes one.

    Several replicas in one process are trained so, too.

    Args:
      call: What was asked for.
      strategy: A tfdist strategy with several replicas in sync.
      signals: What this process does when it is asked to stop.
    """

    def __init__(self, call: TrainCall, strategy: Any, signals: StopSignals) -> None:
        super().__init__(call, strategy, signals)
        self.num_workers = strategy.extended.collectives.num_workers
        asked = self.config.session_config
        self.exchanges = (
            isinstance(strategy, MultiWorkerStrategy)
            and self.iterations == 1
            # Such sessions have queues of their own on each worker.
            and not (asked is not None and asked.isolate_session_state)
        )
        self.worker_index = strategy.extended.collectives.worker_index
        self.is_chief = strategy.extended.should_checkpoint
        strategy.extended.start_counting_reductions()
        self.share_checkpoint = TextExchange(strategy)
        self.compare = TextExchange(strategy)
        self.share_mismatch = TextExchange(strategy)
        self.watch = strategy.watch_peers()
        self.agreement: Agreement | None = None
        self.needed: list[tf.Tensor | tf.Operation] = []

    def found_checkpoint(self) -> FoundCheckpoint:
        """Worker 0's: the others may have another model_dir, or none."""
        with lost_workers_named(self.strategy):
            found = self.share_checkpoint(json.dumps(asdict(self.call.found)))[0]
        return FoundCheckpoint(**json.loads(found))

    def input_rules(self) -> dict[str, Any]:
        look_ahead = self.iterations * self.placement.num_replicas
        return {"needs_dataset": True, "look_ahead": look_ahead}

    def combine(self, training: Training) -> tf.Tensor:
        extended = self.strategy.extended
        self.num_gradient_buckets = extended.reductions.num_buckets
        self.agreement = Agreement(self.strategy, training.loss, training.has_more)
        self.needed = [training.train_op, self.agreement.fetch()]
        features, labels, _ = training.batch
        self.combined_with = find_variable_inputs(
            training.spec.loss, v1.trainable_variables(), features, labels
        )
        return self.agreement.loss

    def stopping_hooks(self) -> list[v1.train.SessionRunHook]:
        assert self.agreement is not None
        exchanging = [ExchangeDirectly(self.strategy, self.needed)] if self.exchanges else []
        return [
            StopTogether(self.agreement, self.signals),
            *exchanging,
            LeaveTogether(self.strategy, self.signals),  # Not exchanged directly: others still may.
        ]

    def input_hooks(self, inputs: Input) -> list[v1.train.SessionRunHook]:
        assert inputs.is_enough is not None
        batches = self.iterations * self.placement.num_replicas
        return [*inputs.hooks, StartTogether(self.strategy, inputs.is_enough, batches)]

    def asked_hooks(
        self, hooks: Iterable[v1.train.SessionRunHook]
    ) -> list[v1.train.SessionRunHook]:
        assert self.agreement is not None
        # These stop every worker at the same step by themselves.
        alike = (StopAtStep, v1.train.StopAtStepHook)
        return [
            hook if isinstance(hook, alike) else StopWish(hook, self.agreement)
            for hook in super().asked_hooks(hooks)
            if self.is_chief or not isinstance(hook, v1.train.CheckpointSaverHook)
        ]

    def saver_hooks(self, spec: EstimatorSpec) -> list[v1.train.SessionRunHook]:
        synchronize = self.strategy.extended.synchronize_variables()
        if synchronize is None or not saves_checkpoints(self.config):
            # A listener of worker 0 may ask to stop.
            return self.asked_hooks(super().saver_hooks(spec)) if self.is_chief else []
        assert self.agreement is not None
        saver = timer = None
        if self.is_chief:
            timer = v1.train.SecondOrStepTimer(
                every_secs=self.config.save_checkpoints_secs,
                every_steps=self.config.save_checkpoints_steps,
            )
            saver = self.make_saver(save_steps=1)
            saver._listeners.extend(self.call.listeners)  # No public way to add one.
            SavingNotes(self.signals).add_to(saver)
        together = SaveTogether(self.agreement, synchronize, saver, timer, self.iterations)
        return self.asked_hooks([together])

    def say_where_things_are(self, training: Training) -> None:
        if training.spec.host_call is not None:
            line = describe_host_call(
                training.spec, self.placement, self.num_workers, self.num_gradient_buckets
            )
            v1.logging.info(line)
        if self.num_workers > 1:
            v1.logging.info("Reductions: %s", self.strategy.describe_reductions())

    def build(self, inputs: Input, global_step: tf.Variable) -> Training:
        if self.exchanges:
            self.strategy.note_collectives()
        return super().build(inputs, global_step)

    def session_config(self) -> v1.ConfigProto:
        config = sessions.with_defaults(self.config.session_config)
        if self.exchanges:
            return self.strategy.update_config_proto(config, sees_all_workers=True)
        return self.strategy.update_config_proto(config)

    def make_scaffold(self, spec: EstimatorSpec) -> v1.train.Scaffold:
        scaffold = super().make_scaffold(spec)
        broadcast = self.strategy.extended.broadcast_variables()
        checkpoint_dir = self.call.model_dir if self.is_chief else None
        return sessions.restored_by_worker_0(scaffold, broadcast, checkpoint_dir)

    def check_fit(self, saver: v1.train.Saver) -> None:
        """Worker 0, which restores, compares; every worker gets the error."""
        if self.found.path is None:
            return
        own = checkpoint_fit.mismatch(saver, self.found.path) if self.is_chief else None
        mismatch = json.loads(self.share_mismatch(json.dumps(own))[0])
        if mismatch is not None:
            raise CheckpointMismatchError(mismatch)

    def make_session(
        self, hooks: Sequence[v1.train.SessionRunHook]
    ) -> v1.train.SingularMonitoredSession:
        extended = self.strategy.extended
        model = describe_model(
            v1.global_variables(),
            extended.reductions.described,
            self.combined_with,
            self.iterations,
            self.placement.num_replicas,
        )
        check_models(self.compare(model))
        self.watch.start()
        session = sessions.training_session(
            hooks,
            CheckedScaffold(self.scaffold, self.check_fit),
            master=self.strategy.master,
            config=self.session_config(),
        )
        self.watch.interrupt = session.raw_session().close
        return session

    def run_session(self, *args: Any) -> float | None:
        try:
            with lost_workers_named(self.strategy), self.watch:
                return super().run_session(*args)
        except WorkerLostError:
            self.signals.leave_if_asked()  # The other one had been asked, too.
            raise


@contextmanager
def lost_workers_named(strategy: Any) -> Iterator[None]:
    """Turns TensorFlow's errors about other workers into a `WorkerLostError`."""
    try:
        yield
    except tf.errors.OpError as error:
        if not isinstance(error, _ALWAYS) and not any(sign in error.message for sign in _SIGNS):
            raise
        who, why = _read(error.message, getattr(strategy, "cluster", None))
        raise WorkerLostError(
            f"Lost {who} while training: {why}. See its output for the cause."
        ) from error


def _read(message: str, cluster: Cluster | None) -> tuple[str, str]:
    """Finds who is gone and what TensorFlow saw of it."""
    match = _REMOTE.search(message)
    if match is None or cluster is None:
        lines = [line.strip() for line in message.splitlines() if line.strip()]
        # Of Horovod's sentences the others explain what a shutdown is.
        telling = [line.split(". ")[0] for line in lines if any(sign in line for sign in _SIGNS)]
        others = [line for line in lines if line != "Graph execution error:"]
        why = next(iter([*telling, *others]), "no cause is known")
        return "another worker", why.rstrip(".")
    task = Task(type=match["job"], index=int(match["i"]))
    why = _NOISE.sub("", match["why"].strip()).rstrip(".")
    return f"{task.name} ({cluster.address(task)})", why
