"""FitRun: one call of a model's `fit`, with the other workers and with the launcher.

Each step of `fit` is a call of its train function. In the message that combines the logs, each
worker also says whether it got a stop signal and whether its loss is NaN:

    worker 0                 worker 1
    train function           train function          gradients are reduced in it
    logs, no signal  ------  logs, SIGTERM           one message
    saves its backup, and leaves after this step, as all do
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from tfdist.process.endings import print_to_stderr
from tfdist.process.progress_file import find_progress_file, set_phase
from tfdist.strategies.eager.fit_profile import profile_of_run
from tfdist.strategies.eager.keras_step import examples_taken
from tfdist.strategies.eager.run import needs_all_workers, training
from tfdist.strategies.stop_signals import (
    NUM_REQUESTS,
    StopSignals,
    describe,
    listening,
    order_in,
    requests_of,
)


class FitRun:
    """One call of `fit`.

    Args:
      model: The model.
      strategy: Its strategy.
      signals: The stop signals of this process.
    """

    def __init__(self, model: Any, strategy: Any, signals: StopSignals) -> None:
        self._model = model
        self._signals = signals
        collectives = strategy.extended.collectives
        self._index, self._num_workers = collectives.worker_index, collectives.num_workers
        self._is_first = collectives.worker_index == 0
        self._file = find_progress_file()
        self._step = 0
        self._has_named_nan = False
        self._profile = profile_of_run(self._index)
        self.save_backup: Callable[[], bool] = lambda: False

    def begin(self, num_steps: int | None, num_epochs: int) -> None:
        """Notes the first step; called when the callbacks have restored a backup.

        Args:
          num_steps: The steps of this call of `fit`; None if they are not known.
          num_epochs: The epoch at which it ends.
        """
        iterations = getattr(getattr(self._model, "optimizer", None), "iterations", None)
        self._step = 0 if iterations is None else int(iterations)
        if self._file is not None:
            total = -1 if num_steps is None else self._step + num_steps
            self._file.write(step=self._step, total_steps=total, total_epochs=num_epochs)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Marks the call of a train function, which all workers make."""
        if self._file is not None:
            self._file.step_begins()
        recorded = nullcontext() if self._profile is None else self._profile.step()
        with recorded, needs_all_workers(self._signals.calls):
            yield

    def begin_epoch(self, epoch: int) -> None:
        """Notes an epoch, counted from 0."""
        if self._file is not None:
            self._file.write(epoch=epoch + 1)

    def end(self) -> None:
        """Writes the profile that was requested; called at the end of a training without error."""
        if self._profile is not None:
            self._profile.end()

    def own_requests(self) -> list[float]:
        """Returns what this worker says in the message of a step, before its loss."""
        return requests_of(self._signals.own, self._index)

    def end_step(self, num_steps: int, loss: float, sums: Sequence[float]) -> None:
        """Notes the end of a call, and leaves the training if a worker got a stop signal.

        Args:
          num_steps: The steps that the call has made.
          loss: The loss over all replicas.
          sums: The sums over the workers: NUM_WISHES numbers, then for each worker whether its loss
            is NaN.
        """
        self._step += num_steps
        if self._file is not None:
            self._file.step_ends(step=self._step, loss=loss, examples=examples_taken())
        if math.isnan(loss) and not self._has_named_nan and self._is_first:
            self._has_named_nan = True
            print_to_stderr(_nan_line(self._step, sums[NUM_REQUESTS:]))
        order = order_in(sums[:NUM_REQUESTS])
        if order is None:
            return
        set_phase("stopping")
        self._signals.order = order
        end = {"step": self._step, "num_workers": self._num_workers, "saves": self.save_backup()}
        if self._is_first:
            print_to_stderr(describe(order, **end, what="backup"))
        self._signals.leave_after_training(**end, worker_index=self._index)


_current: FitRun | None = None


def current_fit() -> FitRun | None:
    """Returns the call of `fit` that is running in this process."""
    return _current


@contextmanager
def fit_run(model: Any, strategy: Any) -> Iterator[None]:
    """Makes a FitRun the current one in the `with` block."""
    global _current
    if _current is not None:  # A model that is trained by a callback of another.
        yield
        return
    with listening() as signals:
        _current = FitRun(model, strategy, signals)
        try:
            with signals.noted(), training(signals.calls):
                yield
                _current.end()
        finally:
            _current = None


def _nan_line(step: int, flags: Sequence[float]) -> str:
    workers = [str(index) for index, flag in enumerate(flags) if flag]
    of = f" of worker {' and '.join(workers)}" if workers else ""
    return (
        f"After step {step} the loss{of} is NaN. Lower the learning rate, clip gradients "
        "(global_clipnorm), or scale the loss in mixed precision. keras.callbacks.TerminateOnNaN() "
        "ends the training."
    )
