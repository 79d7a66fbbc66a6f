"""The agreement of all workers on the action after a step.

A worker that left the loop alone would leave the others waiting in a reduction. So each step sums a
few numbers over the workers, in one small reduction together with the loss:

    worker 0    [weight * loss, weight, has_more, stop, save, SIGTERM, SIGUSR1, index] ──┐
    worker 1    [weight * loss, weight, has_more, stop, save, SIGTERM, SIGUSR1, index] ──┴─ sum ──>

Training metrics follow, each times the weight.

All workers get the same sums in the same step. So they make the same decision: to stop, to save, or
to continue. A request is part of the next step's sums. So if one worker has a request after a step,
all workers follow it after the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1
from tensorflow.compat.v1.train import SessionRunContext, SessionRunValues

from tfdist.estimator.inputs.batches import Input
from tfdist.process.endings import OneLineError
from tfdist.process.exit_codes import LOST_WORKER
from tfdist.process.progress_file import in_phase
from tfdist.strategies.divided.pieces import GraphPieces, forget
from tfdist.strategies.graph.step_counter import StepCounter
from tfdist.strategies.placement import HOST
from tfdist.strategies.stop_signals import (
    NUM_REQUESTS,
    StopOrder,
    StopSignals,
    order_in,
    requests_of,
)
from tfdist.strategies.values.weight_check import WeightCheck

# The sums of every step; those of the training metrics come after them.
_NUM_SUMS = 5 + NUM_REQUESTS


@dataclass(frozen=True, kw_only=True)
class Agreed:
    """The same decisions on all workers after a step.

    Attributes:
      num_ended: The number of workers without further input.
      stop: Whether a worker's hook has asked to stop.
      save: Whether worker 0 saves a checkpoint.
      order: The stop signal that all workers follow; None without one.
    """

    num_ended: int = 0
    stop: bool = False
    save: bool = False
    order: StopOrder | None = None

    @property
    def ends_training(self) -> bool:
        return self.num_ended > 0 or self.stop or self.order is not None


def read_sums(sums: Sequence[float], num_workers: int) -> Agreed:
    """Returns the meaning of a step's sums over so many workers, listed above."""
    return Agreed(
        num_ended=num_workers - round(float(sums[2])),
        stop=float(sums[3]) > 0,
        save=float(sums[4]) > 0,
        order=order_in(sums[_NUM_SUMS - NUM_REQUESTS : _NUM_SUMS]),
    )


class Agreement:
    """The sums of one step over all workers; built by each of them in cross-replica context.

    The arguments are this worker's, with the shapes of `Training`: loss, has_more, weight, metrics.

    Attributes:
      loss: float32 scalar, the mean over the workers; 0 if all weights are 0.
      own_loss: float32 scalar, this worker's loss.
      metrics: The training metrics, means like `loss`.
      sums: The tensor to fetch in each session call. A collective: every worker must fetch it.
      wants_stop: Whether one of this worker's hooks asks to stop after the coming step.
      wants_save: On worker 0, whether a checkpoint is due after it.
      agreed: The decisions after the last step.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        loss: tf.Tensor,
        has_more: tf.Tensor | None,
        weight: tf.Tensor | None,
        metrics: Mapping[str, tf.Tensor],
    ) -> None:
        self._num_workers = int(strategy.extended.collectives.num_workers)
        self._worker_index = int(strategy.extended.collectives.worker_index)
        self.wants_stop = self.wants_save = False
        self.agreed = Agreed()
        with tf.device(HOST):
            self._requests = v1.placeholder_with_default(
                tf.zeros([2 + NUM_REQUESTS]), [2 + NUM_REQUESTS], name="requests"
            )  # [stop, save, SIGTERM, SIGUSR1, index]
            more = tf.constant(1.0) if has_more is None else has_more
            self.own_loss = tf.cast(loss, tf.float32)
            counts = tf.constant(1.0) if weight is None else weight  # []
            values = tf.stack([self.own_loss, *metrics.values()])  # [1 + metrics]
            shares = values if weight is None else values * weight  # [1 + metrics]
            own = tf.concat([shares[:1], [counts, more], self._requests, shares[1:]], axis=0)
            self.sums = strategy.extended.reduce_to(
                tf.distribute.ReduceOp.SUM, own, destinations=HOST
            )  # [3 + 2 + NUM_REQUESTS + metrics]

            def mean(total: tf.Tensor) -> tf.Tensor:
                if weight is None:
                    return total / self._num_workers
                return tf.math.divide_no_nan(total, self.sums[1])

            self.loss = mean(self.sums[0])
            self.metrics = {
                name: mean(self.sums[i]) for i, name in enumerate(metrics, start=_NUM_SUMS)
            }

    def feeds(self, signal: int | None) -> dict[tf.Tensor, list[float]]:
        """Returns this worker's requests, with a stop signal's, as feeds of the coming call."""
        requests = [float(self.wants_stop), float(self.wants_save)]
        requests += requests_of(signal, self._worker_index)
        # A call without feeds is prepared once for all steps.
        return {self._requests: requests} if any(requests) else {}

    def receive(self, sums: Any) -> None:
        """Takes the sums of the call that has just ended."""
        self.agreed = read_sums(sums, self._num_workers)

    def log_why_all_stop(self) -> None:
        if self.agreed.num_ended:
            v1.logging.info(
                "The input of %d of %d workers has ended: all stop after this step.",
                self.agreed.num_ended,
                self._num_workers,
            )
        if self.agreed.stop:
            v1.logging.info("A hook asked to stop: all workers stop after this step.")


def flag_of_each_worker(strategy: tf.distribute.Strategy, own: tf.Tensor) -> tf.Tensor:
    """Returns what each worker gives, a float32 scalar on the host, as [num_workers].

    A collective: every worker must fetch it.
    """
    collectives = strategy.extended.collectives
    with tf.device(HOST):
        flags = own * tf.one_hot(collectives.worker_index, collectives.num_workers)
        return strategy.extended.reduce_to(tf.distribute.ReduceOp.SUM, flags, destinations=HOST)


class StartTogether(v1.train.SessionRunHook):  # type: ignore[misc]
    """Raises an error on all workers if the input of one is too short for a session call.

    If it has been read again, it was long enough and has ended: the training ends without a step.

    Args:
      strategy: A tfdist strategy.
      inputs: This worker's input.
      num_batches: The number of batches that training takes at once.
      what: What takes them, for the message: "a step" or "a session call".
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, inputs: Input, num_batches: int, what: str
    ) -> None:
        self._strategy = strategy
        self._inputs = inputs
        self._num_batches = num_batches
        self._what = what

    def begin(self) -> None:
        assert self._inputs.is_enough is not None
        self._enough = flag_of_each_worker(self._strategy, self._inputs.is_enough)

    def after_create_session(self, session: v1.Session, coord: v1.train.Coordinator) -> None:
        with in_phase("waiting"):
            enough = session.run(self._enough)
        short = [str(worker) for worker, one in enumerate(enough) if one == 0]
        if short and self._inputs.is_resumed:
            v1.logging.info("The input had ended where the interrupted training was.")
            coord.request_stop()
        elif short:
            raise ValueError(
                f"The input of worker {' and '.join(short)} is too short: {self._what} takes "
                f"{self._num_batches} batch(es) from each of {len(enough)} workers. Give each "
                "worker some input (its shard may be empty), or use fewer workers."
            )


class NanLossElsewhereError(OneLineError, v1.train.NanLossDuringTrainingError):  # type: ignore[misc]
    """The loss of another worker became NaN; this worker did nothing wrong."""

    exit_code: ClassVar[int] = LOST_WORKER

    def __init__(self, workers: Sequence[int]) -> None:
        names = " and ".join(str(worker) for worker in workers)
        super().__init__(f"NaN loss during training: the loss of worker {names} became NaN.")

    def __str__(self) -> str:
        return str(self.args[0])


class NanTogether(v1.train.SessionRunHook):  # type: ignore[misc]
    """Ends the training after a NaN, as `NanTensorHook` does, and tells whose loss it was.

    The reported loss is the mean over the workers, so all of them see the NaN of one in the same
    step. Only then one small reduction tells all whose it was. In a later step it would be too
    late: then all weights are NaN.

    Args:
      strategy: A tfdist strategy.
      loss: float32 scalar, the mean over the workers.
      own_loss: float32 scalar, the loss of this worker, on the host.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, loss: tf.Tensor, own_loss: tf.Tensor
    ) -> None:
        self._strategy = strategy
        self._losses = [loss, own_loss]

    def begin(self) -> None:
        with tf.device(HOST):
            self._is_own = v1.placeholder(tf.float32, [])
        self._flags = flag_of_each_worker(self._strategy, self._is_own)

    def before_run(self, run_context: SessionRunContext) -> v1.train.SessionRunArgs:
        return v1.train.SessionRunArgs(self._losses)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        loss, own_loss = run_values.results
        if not np.isnan(loss):
            return
        # Two losses of opposite infinity make a NaN, too.
        is_own = not np.isfinite(own_loss)
        flags = run_context.session.run(self._flags, {self._is_own: float(is_own)})
        workers = [int(worker) for worker in np.flatnonzero(flags)]
        if workers and not is_own:
            raise NanLossElsewhereError(workers)
        v1.logging.error("Model diverged with loss = NaN.")
        raise v1.train.NanLossDuringTrainingError


class DeferredStop(v1.train.SessionRunHook):  # type: ignore[misc]
    """Passes a hook's request to stop on to all workers, which stop one step later."""

    def __init__(self, hook: v1.train.SessionRunHook, agreement: Agreement) -> None:
        self._hook = hook
        self._agreement = agreement

    def begin(self) -> None:
        self._hook.begin()

    def after_create_session(self, session: v1.Session, coord: v1.train.Coordinator) -> None:
        self._hook.after_create_session(session, coord)

    def before_run(self, run_context: SessionRunContext) -> Any:
        own = SessionRunContext(run_context.original_args, run_context.session)
        request = self._hook.before_run(own)
        self._agreement.wants_stop |= own.stop_requested
        return request

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        own = SessionRunContext(run_context.original_args, run_context.session)
        self._hook.after_run(own, run_values)
        self._agreement.wants_stop |= own.stop_requested

    def end(self, session: v1.Session) -> None:
        self._hook.end(session)


class SaveTogether(v1.train.SessionRunHook):  # type: ignore[misc]
    """Compares the workers' weights, and combines their sync-on-read variables, before a save.

    It has the position of tf.estimator's saver among the hooks.

    Args:
      agreement: Carries worker 0's request to save.
      weight_check: Compares the weights; a collective.
      synchronize: The op that combines the sync-on-read variables, a collective; None without any.
      saver_and_timer: On worker 0, a `CheckpointSaverHook` that would save after every step, and
        what decides after which steps to save; else None.
      steps_per_call: Steps in one session call.
      tables: What collects the rows of divided tables, and on worker 0 the folder for their files;
        None without such tables.
    """

    def __init__(
        self,
        agreement: Agreement,
        weight_check: WeightCheck,
        synchronize: tf.Operation | None,
        saver_and_timer: tuple[v1.train.CheckpointSaverHook, v1.train.SecondOrStepTimer] | None,
        steps_per_call: int,
        tables: tuple[GraphPieces, str | None] | None = None,
    ) -> None:
        self._tables = tables
        self._agreement = agreement
        self._weight_check = weight_check
        self._synchronize = synchronize
        self._saver: v1.train.CheckpointSaverHook | None = None
        if saver_and_timer is not None:
            self._saver, self._timer = saver_and_timer
        self._steps_per_call = steps_per_call
        self._counter = StepCounter()

    def begin(self) -> None:
        if self._saver is not None:
            self._saver.begin()
        self._counter.begin()

    def after_create_session(self, session: v1.Session, coord: v1.train.Coordinator) -> None:
        self._counter.start(session)
        self._collect(session)
        if self._saver is not None:
            self._timer.update_last_triggered_step(self._counter.step)
            self._saver.after_create_session(session, coord)

    def before_run(self, run_context: SessionRunContext) -> None:
        if self._saver is not None:
            coming = self._counter.step + self._steps_per_call
            self._agreement.wants_save = self._timer.should_trigger_for_step(coming)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        self._counter.count(run_context.session)
        if not self._agreement.agreed.save:
            return
        self._prepare(run_context.session)
        if self._saver is not None:
            step = self._counter.step
            self._timer.update_last_triggered_step(step)
            stale = SessionRunValues(step, run_values.options, run_values.run_metadata)
            self._saver.after_run(run_context, stale)

    def end(self, session: v1.Session) -> None:
        self._prepare(session)
        if self._saver is not None:
            self._saver.end(session)
        if self._tables is not None:
            forget(session.graph)

    def _collect(self, session: v1.Session) -> None:
        if self._tables is not None:
            pieces, folder = self._tables
            with in_phase("waiting"):
                pieces.collect(session, folder)

    def _prepare(self, session: v1.Session) -> None:
        self._weight_check(session, self._counter.step)
        if self._synchronize is not None:
            with in_phase("waiting"):
                session.run(self._synchronize)
        self._collect(session)


class LeaveTogether(v1.train.SessionRunHook):  # type: ignore[misc]
    """Waits at the end for every worker, and for worker 0's last checkpoint.

    To the others, a worker that left early would look like a failure. A signal that came too late
    for another step is passed on here. It is the last hook.

    Args:
      strategy: A tfdist strategy.
      signals: The stop signals of this process.
      complete_graph: Called when all other hooks have added their ops to the graph.
      all_are_there: Called when no worker waits for another one any more. Closing a session takes
        seconds for a large model, so others may have ended before.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        signals: StopSignals,
        complete_graph: Callable[[], None],
        all_are_there: Callable[[], None],
    ) -> None:
        self._strategy = strategy
        self._signals = signals
        self._complete_graph = complete_graph
        self._all_are_there = all_are_there

    def begin(self) -> None:
        self._complete_graph()
        # Added later, as a collective of the engine: a direct exchange needs a worker that remains.
        with tf.device(HOST):
            self._own = v1.placeholder(tf.float32, [NUM_REQUESTS])
            self._all = self._strategy.extended.reduce_to(
                tf.distribute.ReduceOp.SUM, tf.identity(self._own), destinations=HOST
            )  # [NUM_REQUESTS]

    def end(self, session: v1.Session) -> None:
        index = self._strategy.extended.collectives.worker_index
        own = requests_of(self._signals.own, int(index))
        with in_phase("waiting"):
            sums = session.run(self._all, {self._own: own})
        self._all_are_there()
        self._signals.order = self._signals.order or order_in(sums)
