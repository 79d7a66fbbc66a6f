"""FitRun: one call of a model's `fit`, with the other workers and with the launcher.

Each step of `fit` is a call of its train function. With its last gradients each worker also says
whether it got a stop signal, whether a callback wants to stop, and whether it needs the logs of the
next step:

    worker 0                 worker 1
    train function           train function
    gradients, logs  ------  gradients, SIGTERM      one message
    saves its backup, and leaves after this step, as all do

Logs are combined over all replicas in the first and the last step of an epoch, in each step if a
callback of a worker reads them, and else as often as the progress bar or the launcher shows them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from tfdist.process.endings import print_to_stderr
from tfdist.process.progress_file import find_progress_file, set_phase
from tfdist.strategies.eager.replica_variable import note_updates, synchronize
from tfdist.strategies.eager.run import needs_all_workers, training
from tfdist.strategies.eager.step import NOW, loss_in
from tfdist.strategies.keras.comparison import compare_compiled
from tfdist.strategies.keras.fit_profile import profile_of_run
from tfdist.strategies.keras.snapshots import FitSnapshots
from tfdist.strategies.saving.stop_limit import StopLimit
from tfdist.strategies.stop_signals import (
    NUM_REQUESTS,
    StopSignals,
    describe,
    listening,
    order_in,
    requests_of,
)

# What a worker says in each step: its stop signal, whether a callback wants to stop, and whether it
# needs the next step's logs.
_STOPS, _COMBINES = NUM_REQUESTS, NUM_REQUESTS + 1
NUM_OF_STEP = NUM_REQUESTS + 2
# Keras' bar is drawn every 50 ms at most, and the launcher's line every second.
BAR_INTERVAL_S, _LAUNCHER_INTERVAL_S = 0.1, 0.5


@dataclass(frozen=True, kw_only=True)
class FitPosition:
    """The position of a `fit`.

    Attributes:
      epoch: The epoch, from 0.
      steps: The steps that are done in it.
      iterations: The optimizer's number of steps.
      num_workers: The number of workers.
    """

    epoch: int
    steps: int
    iterations: int
    num_workers: int


class FitRun:
    """One call of `fit`, which begins at `first_epoch`, from 0, without a backup.

    Attributes:
      combines: Whether the coming step combines its logs; equal on all workers.
      logs: The last logs that were combined.
      loss: The loss in them; None if they have none.
      num_workers: The number of workers.
      is_first: Whether this is worker 0.
      resumed: Where an interrupted `fit` was: the epoch, from 0, and the steps done in it; None if
        this one begins, or the batches before have been read again.
      signals: The stop signals of this process.
      snapshots: The snapshots in memory; None if none are kept.
      wants_stop: Whether a callback of this worker has set `stop_training`, and others go on.
      stops: Whether all workers stop after this step, as a callback wants to.
      save_backup: Saves what BackupAndRestore would; returns whether there is one.
    """

    def __init__(
        self, model: Any, strategy: Any, signals: StopSignals, first_epoch: int = 0
    ) -> None:
        self._model = model
        self.first_epoch = first_epoch
        self.signals = signals
        collectives = strategy.extended.collectives
        self._index, self.num_workers = collectives.worker_index, collectives.num_workers
        self.is_first = collectives.worker_index == 0
        self._file = find_progress_file()
        self._step = 0
        self._has_named_nan = False
        self._profile = profile_of_run(self._index)
        self._steps_left: int | None = None  # In the epoch.
        self._steps_in_epoch: int | None = None
        self._epoch = self._steps_done = 0
        self.resumed: tuple[int, int] | None = None
        self._steps_before = 0  # In the epoch in which it goes on.
        self._log_interval_s = 0.0  # Until `begin` says how often logs are read.
        self._logs_at_s = time.monotonic()  # The first step combines its logs.
        self.combines = True
        self.logs: Any = None
        self.loss: float | None = None
        self.snapshots: FitSnapshots | None = None
        self.stop_limit = StopLimit()
        self.wants_stop = self.stops = False
        self.save_backup: Callable[[], bool] = lambda: False
        before = None if self._file is None else self._file.read()
        self._examples_before = 0.0 if before is None else before.examples

    def begin(
        self, steps: int | None, first_epoch: int, num_epochs: int, log_interval_s: float
    ) -> None:
        """Notes the first step; called when the callbacks have restored a backup.

        Args:
          steps: The steps of an epoch; None if they are not known.
          first_epoch: The epoch, from 0, at which it begins.
          num_epochs: The epoch at which it ends.
          log_interval_s: Seconds after which this worker's callbacks read logs; 0 for each step.
        """
        self._steps_in_epoch = steps
        of_launcher = math.inf if self._file is None else _LAUNCHER_INTERVAL_S
        self._log_interval_s = min(log_interval_s, of_launcher)
        num_steps = None if steps is None else steps * max(0, num_epochs - first_epoch)
        iterations = getattr(getattr(self._model, "optimizer", None), "iterations", None)
        self._step = 0 if iterations is None else int(iterations)
        if self._file is not None:
            total = -1 if num_steps is None else self._step + num_steps - self._steps_before
            self._file.write(step=self._step, total_steps=total, total_epochs=num_epochs)

    def resume(self, epoch: int, steps: int) -> None:
        """Notes the epoch, from 0, and its steps after which the input goes on; before `begin`."""
        self.resumed, self._steps_before = (epoch, steps), steps

    def take_resumed(self) -> tuple[int, int] | None:
        """Returns what `resume` got, once: the caller reads the batches before it again."""
        taken, self.resumed = self.resumed, None
        return taken

    @property
    def position(self) -> FitPosition:
        """The position; after the last step of an epoch, the start of the next one."""
        is_over = self._steps_in_epoch is not None and self._steps_done >= self._steps_in_epoch
        return FitPosition(
            epoch=self._epoch + is_over,
            steps=0 if is_over else self._steps_done,
            iterations=int(self._model.optimizer.iterations),
            num_workers=self.num_workers,
        )

    def synchronize_in_epoch(self) -> None:
        """Gives all replicas the mean of each statistic, between two steps of an epoch.

        A collective. The end of an epoch, and a stop by a signal, have done so already.
        """
        if self._steps_done and self.signals.order is None:
            with needs_all_workers("a backup within an epoch"):
                synchronize()
            note_updates()

    def take_snapshot(self, *, is_in_epoch: bool) -> None:
        """Takes a snapshot if one is due: before the next step, or after all of an epoch's end."""
        if self.snapshots is not None and self.snapshots.is_due:
            self.synchronize_in_epoch()
            may_end = is_in_epoch and self._steps_in_epoch is None
            self.snapshots.take(asdict(self.position), may_end=may_end)

    @contextmanager
    def step(self, num_steps: int) -> Iterator[None]:
        """Marks the call of a train function, which makes so many steps on all workers."""
        self.take_snapshot(is_in_epoch=True)
        if self._file is not None:
            self._file.step_begins()
        recorded = nullcontext() if self._profile is None else self._profile.step(num_steps)
        with recorded, needs_all_workers("step of fit", self._place_of_step, self.signals.calls):
            yield

    def _place_of_step(self) -> str:
        return f"step {self._steps_done + 1} of epoch {self._epoch + 1} of fit"

    def begin_epoch(self, epoch: int) -> None:
        """Notes an epoch, counted from 0."""
        self._epoch = epoch
        self._steps_done, self._steps_before = self._steps_before, 0
        steps = self._steps_in_epoch
        self._steps_left = None if steps is None else steps - self._steps_done
        if self._file is not None:
            self._file.write(epoch=epoch + 1)

    def end_epoch(self, logs: Any = None) -> None:
        """Notes the end of an epoch, before callbacks save.

        In an epoch of unknown length its logs alone tell of its last step, which has not combined
        them.
        """
        self._epoch, self._steps_done = self._epoch + 1, 0
        loss = loss_in(logs)
        if loss is not None and math.isnan(float(loss)):
            self._name_nan(self._step, ())

    def _name_nan(self, step: int, flags: Sequence[float]) -> None:
        if self.is_first and not self._has_named_nan:
            self._has_named_nan = True
            print_to_stderr(_nan_line(step, flags))

    def end(self) -> None:
        """Writes the profile that was requested; called at the end of a training without error."""
        if self._profile is not None:
            self._profile.end()

    def own_requests(self, num_steps: int) -> list[float]:
        """Returns what this worker says in the message of a call that makes so many steps."""
        is_late = time.monotonic() - self._logs_at_s >= self._log_interval_s
        # A request that is answered in the coming step is not made again.
        is_due = self._log_interval_s == 0 or (is_late and not self.combines)
        is_last_next = self._steps_left is not None and self._steps_left <= 2 * num_steps
        of_signal = requests_of(self.signals.own, self._index)
        return [*of_signal, float(self.wants_stop), float(is_due or is_last_next)]

    def note_logs(self, logs: Any) -> Any:
        """Notes the logs of a step that has combined them; returns the last that were combined."""
        if self.combines:
            self.logs, self._logs_at_s = logs, time.monotonic()
            loss = loss_in(logs)
            self.loss = None if loss is None else float(loss)
        return self.logs

    def end_step(self, num_steps: int, sums: Sequence[float], examples: float) -> None:
        """Notes the end of a call, and leaves the training if a worker got a stop signal.

        Args:
          num_steps: The steps that the call has made.
          sums: The sums over the workers: NUM_OF_STEP numbers, then for each worker whether its
            loss is NaN: in this step if it has combined its logs, else in the step before.
          examples: The rows that this worker has trained on in this `fit`.
        """
        self._step += num_steps
        self._steps_done += num_steps
        if self.snapshots is not None:
            self.snapshots.count(self._step - num_steps, self._step)
        if self._steps_left is not None:
            self._steps_left -= num_steps
        flags = sums[NUM_OF_STEP:]
        flagged_step = self._step if self.combines else self._step - 1
        self.combines = sums[_COMBINES] > 0
        if sums[_STOPS] > 0:
            self._model.stop_training = self.stops = True
        if self._file is not None:
            shown = math.nan if self.loss is None else self.loss
            examples += self._examples_before
            self._file.step_ends(step=self._step, loss=shown, examples=examples)
        if any(flags) or (self.loss is not None and math.isnan(self.loss)):
            self._name_nan(flagged_step, flags)
        order = order_in(sums[:NUM_REQUESTS])
        if order is None:
            return
        set_phase("stopping")
        self.signals.order = order
        saves = self.save_backup()
        if self.is_first:
            workers = self.num_workers
            print_to_stderr(
                describe(order, step=self._step, num_workers=workers, saves=saves, what="backup")
            )
        self.signals.leave()


def current_fit() -> FitRun | None:
    """Returns the call of `fit` that is running in this process."""
    run: FitRun | None = NOW.fit
    return run


@contextmanager
def fit_run(model: Any, strategy: Any, first_epoch: int = 0) -> Iterator[None]:
    """Makes a FitRun the current one in the `with` block; the arguments are those of FitRun.

    A model that a callback of another trains has a FitRun of its own, in the other's training.
    """
    outer = current_fit()
    with listening() as signals:
        run = FitRun(model, strategy, signals, first_epoch)
        try:
            with NOW.having(fit=run), ExitStack() as stack:
                if outer is None:
                    stack.enter_context(signals.noted())
                    stack.enter_context(training(signals.calls))
                with needs_all_workers("the start of fit"):
                    compare_compiled(model, strategy.extended.collectives)
                yield
                run.end()
        finally:
            if run.snapshots is not None:
                run.snapshots.wait()


def _nan_line(step: int, flags: Sequence[float]) -> str:
    workers = [str(index) for index, flag in enumerate(flags) if flag]
    of = f" of worker {' and '.join(workers)}" if workers else ""
    return (
        f"After step {step} the loss{of} is NaN. Lower the learning rate, clip gradients "
        "(global_clipnorm), or scale the loss in mixed precision. keras.callbacks.TerminateOnNaN() "
        "ends the training."
    )
