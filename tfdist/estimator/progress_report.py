"""A training tells the launcher how far it is and, while a step hangs, what it waits for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.progress import ProgressFile
from tfdist.estimator.input_counter import InputCounter
from tfdist.estimator.step_counter import StepCounter
from tfdist.estimator.stop_signals import StopSignals

# A call that takes longer is asked what it waits for.
_LONG_CALL_S = 2.0
_LOOK_EVERY_S = 0.5


class ProgressReport(v1.train.SessionRunHook):  # type: ignore[misc]
    """Writes the progress file: the first of a training's hooks.

    Args:
      file: Where to.
      loss: The loss to report, a scalar.
      counter: Counts the input in the graph, which is built already.
      steps: How many steps to make from the present one; None if `last_step` says.
      last_step: The global step at which training ends; None if nobody knows.
      steps_per_call: Steps in one session call.
      batches_per_step: Batches that this worker takes in each step.
      signals: What this process has been asked to do, and the times of its calls.
    """

    def __init__(
        self,
        file: ProgressFile,
        loss: tf.Tensor,
        counter: InputCounter,
        *,
        steps: int | None,
        last_step: int | None,
        steps_per_call: int,
        batches_per_step: int,
        signals: StopSignals,
    ) -> None:
        self._file = file
        self._counter = counter
        self._steps = steps
        self._last_step = last_step
        self._steps_per_call = steps_per_call
        self._batches_per_step = batches_per_step
        self._signals = signals
        self._progress = StepCounter()
        self._calls = 0
        self._is_stopping = False
        size = counter.examples_per_batch
        self._examples_per_call = (size or 0.0) * batches_per_step * steps_per_call
        self._request = v1.train.SessionRunArgs([loss, counter.counts] if size is None else [loss])

    def begin(self) -> None:
        self._progress.begin()
        self._global_step = v1.train.get_global_step()

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self._counter.reset)
        self._session = session
        self._progress.start(session)
        self._first_step = self._progress.step
        last = self._last_step if self._steps is None else self._first_step + self._steps
        before = self._file.read()
        self._examples_before = 0.0 if before is None else before.examples
        self._file.write(step=self._first_step, total_steps=-1 if last is None else last)

    def before_run(self, run_context: Any) -> v1.train.SessionRunArgs:
        return self._request

    def call_begins(self) -> None:
        """Is to be told so right before each session call."""
        self._file.step_begins()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._progress.count(run_context.session)
        self._calls += 1
        loss, *counts = run_values.results
        # Fetched beside the step, the counts may be those before it.
        examples = counts[0][1] if counts else self._calls * self._examples_per_call
        self._file.step_ends(
            step=self._progress.step, loss=loss, examples=self._examples_before + examples
        )
        self._say_stopping()

    def end(self, session: Any) -> None:
        self._say_stopping()
        counted = float(session.run(self._counter.counts)[1])
        self._file.write(examples=self._examples_before + counted)

    def _say_stopping(self) -> None:
        if self._signals.is_stopping and not self._is_stopping:
            self._is_stopping = True
            self._file.write(phase="stopping")

    @contextmanager
    def training(self) -> Iterator[None]:
        """Says that the session runs, and looks after calls that take long, in a thread."""
        is_over = threading.Event()
        watcher = threading.Thread(target=self._watch_calls, args=(is_over,), daemon=True)
        with self._file.during("training"):
            watcher.start()
            try:
                yield
            finally:
                is_over.set()
                watcher.join(_LOOK_EVERY_S)  # Not longer: the session may hang.

    def _watch_calls(self, is_over: threading.Event) -> None:
        while not is_over.wait(_LOOK_EVERY_S):
            number = self._calls
            if (self._signals.calls.lasting_s(0.0) or 0.0) < _LONG_CALL_S:
                continue
            try:
                counts, step = self._session.run([self._counter.counts, self._global_step])
            except (tf.errors.OpError, RuntimeError):  # The session is closed.
                return
            if number == self._calls:
                self._file.note_input(waits=self._waits_for_input(int(counts[0]), int(step)))

    def _waits_for_input(self, batches: int, step: int) -> bool:
        """Says whether all batches that have come are used up: a step is short of one."""
        steps_done = step - self._first_step
        if self._calls:  # A model may count its steps in another way.
            steps_done *= self._calls * self._steps_per_call
            steps_done //= max(1, self._progress.step - self._first_step)
        return batches - steps_done * self._batches_per_step < self._batches_per_step
