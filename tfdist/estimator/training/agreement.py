"""How workers stay in step: what one of them wants, all of them do after the same step.

A worker that left the loop alone would leave the others waiting in a collective for ever. So each
step sums a few numbers over the workers, beside the loss: who wants to stop, who has input left,
whether worker 0 wants to save, which signals have come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.training.stop_signals import (
    NUM_WISHES,
    StopOrder,
    StopSignals,
    order_in,
    wishes_of,
)
from tfdist.process.progress_file import in_phase


@dataclass(kw_only=True)
class Wishes:
    """What this worker wants after the coming step."""

    stop: bool = False
    save: bool = False
    signal: int | None = None


class Agreement:
    """The sums of one step over all workers.

    Built in cross-replica context, by every worker.

    Args:
      strategy: A tfdist strategy.
      loss: This worker's loss, a scalar.
      has_more: 1.0 while this worker has input for another session call; None if not known.

    Attributes:
      loss: float32 scalar, the mean over the workers; read it each step, as the others do.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, loss: tf.Tensor, has_more: tf.Tensor | None
    ) -> None:
        self.num_workers = int(strategy.extended.collectives.num_workers)
        self._worker_index = int(strategy.extended.collectives.worker_index)
        self.wishes = Wishes()
        with tf.device("/device:CPU:0"):
            self._wishes = v1.placeholder_with_default(
                tf.zeros([2 + NUM_WISHES]), [2 + NUM_WISHES], name="wishes"
            )
            more = tf.constant(1.0) if has_more is None else has_more
            own = tf.concat([[tf.cast(loss, tf.float32), more], self._wishes], axis=0)
            self._sums = strategy.extended.reduce_to(
                tf.distribute.ReduceOp.SUM, own, destinations="/device:CPU:0"
            )
            self.loss = self._sums[0] / self.num_workers

    def ask(self) -> v1.train.SessionRunArgs:
        """Asks all workers; give this to a session call."""
        wishes = [float(self.wishes.stop), float(self.wishes.save)]
        wishes += wishes_of(self.wishes.signal, self._worker_index)
        # Without a feed the call is prepared once for all steps.
        return v1.train.SessionRunArgs(
            self._sums, feed_dict={self._wishes: wishes} if any(wishes) else None
        )

    def fetch(self) -> tf.Tensor:
        return self._sums

    def num_with_input(self, sums: Any) -> int:
        return round(float(sums[1]))

    def wants_stop(self, sums: Any) -> bool:
        return float(sums[2]) > 0

    def wants_save(self, sums: Any) -> bool:
        return float(sums[3]) > 0

    def signalled(self, sums: Any) -> StopOrder | None:
        return order_in(sums[4:])


class StartTogether(v1.train.SessionRunHook):  # type: ignore[misc]
    """Refuses to start, on all workers, if the input of one is too short for a session call.

    Args:
      strategy: A tfdist strategy.
      is_enough: 1.0 if this worker's input, initialised before this hook runs, is long enough.
      batches_per_call: How many batches that is.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, is_enough: tf.Tensor, batches_per_call: int
    ) -> None:
        self._strategy = strategy
        self._is_enough = is_enough
        self._batches_per_call = batches_per_call

    def begin(self) -> None:
        collectives = self._strategy.extended.collectives
        with tf.device("/device:CPU:0"):
            own = self._is_enough * tf.one_hot(collectives.worker_index, collectives.num_workers)
            self._enough = self._strategy.extended.reduce_to(
                tf.distribute.ReduceOp.SUM, own, destinations="/device:CPU:0"
            )

    def after_create_session(self, session: Any, coord: Any) -> None:
        with in_phase("waiting"):
            enough = session.run(self._enough)
        short = [str(worker) for worker, one in enumerate(enough) if one == 0]
        if short:
            raise ValueError(
                f"The input of worker {' and '.join(short)} is too short: a session call takes "
                f"{self._batches_per_call} batch(es) from each of {len(enough)} workers. Give each "
                "worker some input (its shard may be empty), or use fewer workers."
            )


class StopTogether(v1.train.SessionRunHook):  # type: ignore[misc]
    """Ends training on all workers after the same step."""

    def __init__(self, agreement: Agreement, signals: StopSignals) -> None:
        self._agreement = agreement
        self._signals = signals

    def before_run(self, run_context: Any) -> v1.train.SessionRunArgs:
        self._agreement.wishes.signal = self._signals.own
        return self._agreement.ask()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        sums = run_values.results
        agreement = self._agreement
        missing = agreement.num_workers - agreement.num_with_input(sums)
        if missing > 0:
            v1.logging.info(
                "The input of %d of %d workers has ended: all stop after this step.",
                missing,
                agreement.num_workers,
            )
        if agreement.wants_stop(sums):
            v1.logging.info("A hook asked to stop: all workers stop after this step.")
        self._signals.order = agreement.signalled(sums)
        if missing > 0 or agreement.wants_stop(sums) or self._signals.order is not None:
            run_context.request_stop()


class StopWish(v1.train.SessionRunHook):  # type: ignore[misc]
    """Runs a hook whose request to stop is put to all workers; they stop one step later.

    Args:
      hook: The hook; it may run on this worker only.
      agreement: Carries the request.
    """

    def __init__(self, hook: v1.train.SessionRunHook, agreement: Agreement) -> None:
        self._hook = hook
        self._agreement = agreement

    def begin(self) -> None:
        self._hook.begin()

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._hook.after_create_session(session, coord)

    def before_run(self, run_context: Any) -> Any:
        own = v1.train.SessionRunContext(run_context.original_args, run_context.session)
        request = self._hook.before_run(own)
        self._agreement.wishes.stop |= own.stop_requested
        return request

    def after_run(self, run_context: Any, run_values: Any) -> None:
        own = v1.train.SessionRunContext(run_context.original_args, run_context.session)
        self._hook.after_run(own, run_values)
        self._agreement.wishes.stop |= own.stop_requested

    def end(self, session: Any) -> None:
        self._hook.end(session)


class SaveTogether(v1.train.SessionRunHook):  # type: ignore[misc]
    """Combines the sync-on-read variables of all workers before worker 0 saves them.

    Args:
      agreement: Carries worker 0's wish to save.
      synchronize: The op that combines them; a collective.
      saver: On worker 0 a `CheckpointSaverHook` that would save after every step; else None.
      timer: On worker 0, says at which steps it shall.
      steps_per_call: Steps in one session call.
    """

    def __init__(
        self,
        agreement: Agreement,
        synchronize: tf.Operation,
        saver: v1.train.CheckpointSaverHook | None,
        timer: v1.train.SecondOrStepTimer | None,
        steps_per_call: int,
    ) -> None:
        self._agreement = agreement
        self._synchronize = synchronize
        self._saver = saver
        self._timer = timer
        self._steps_per_call = steps_per_call
        self._step = 0

    def begin(self) -> None:
        if self._saver is not None:
            self._saver.begin()
        self._global_step = v1.train.get_global_step()

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._step = int(session.run(self._global_step))
        if self._timer is not None:
            self._timer.update_last_triggered_step(self._step)
        if self._saver is not None:
            self._saver.after_create_session(session, coord)

    def before_run(self, run_context: Any) -> v1.train.SessionRunArgs:
        if self._timer is not None:
            coming = self._step + self._steps_per_call
            self._agreement.wishes.save = self._timer.should_trigger_for_step(coming)
        return v1.train.SessionRunArgs(self._agreement.fetch())

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._step += self._steps_per_call
        if not self._agreement.wants_save(run_values.results):
            return
        with in_phase("waiting"):
            run_context.session.run(self._synchronize)
        if self._saver is not None and self._timer is not None:
            self._timer.update_last_triggered_step(self._step)
            stale = v1.train.SessionRunValues(
                self._step, run_values.options, run_values.run_metadata
            )
            self._saver.after_run(run_context, stale)

    def end(self, session: Any) -> None:
        with in_phase("waiting"):
            session.run(self._synchronize)
        if self._saver is not None:
            self._saver.end(session)


class LeaveTogether(v1.train.SessionRunHook):  # type: ignore[misc]
    """Waits at the end until every worker is there, worker 0's last checkpoint included.

    A worker that left early would look like a failure to the others. A signal that came too late
    for another step is passed on here.
    """

    def __init__(self, strategy: tf.distribute.Strategy, signals: StopSignals) -> None:
        self._strategy = strategy
        self._signals = signals

    def begin(self) -> None:
        with tf.device("/device:CPU:0"):
            self._own = v1.placeholder(tf.float32, [NUM_WISHES])
            self._all = self._strategy.extended.reduce_to(
                tf.distribute.ReduceOp.SUM, tf.identity(self._own), destinations="/device:CPU:0"
            )

    def end(self, session: Any) -> None:
        index = self._strategy.extended.collectives.worker_index
        own = wishes_of(self._signals.own, int(index))
        with in_phase("waiting"):
            sums = session.run(self._all, {self._own: own})
        self._signals.order = self._signals.order or order_in(sums)
