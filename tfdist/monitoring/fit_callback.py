"""FitCallback: a hook of this package as a callback of Keras' `fit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfdist.strategies.graph.step_counter import crosses


class FitCallback:
    """Calls a hook's functions in `fit`, after steps that are multiples of its interval.

    Keras 3 and tf_keras both take it: it has the methods of their `Callback` class.

    Args:
      begin: Called before the first step, with the number of updates that the model has had.
      report: Called with the step and Keras' logs of all workers.
      end: Called when `fit` ends.
      every_n_steps: The interval.
    """

    def __init__(
        self,
        begin: Callable[[int], None],
        report: Callable[[int, dict[str, Any]], None],
        end: Callable[[], None],
        every_n_steps: int,
    ) -> None:
        self._begin, self._report, self._end = begin, report, end
        self._every_n_steps = every_n_steps
        self._step: int | None = None

    def set_model(self, model: Any) -> None:
        self._model = model

    def set_params(self, params: Any) -> None:
        pass

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._step is None:  # Here a backup has been restored.
            self._step = self._updates()
            self._begin(self._step)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        before, self._step = self._step or 0, self._updates()
        if crosses(before, self._step, self._every_n_steps):
            self._report(self._step, dict(logs or {}))

    def on_train_end(self, logs: Any = None) -> None:
        self._step = None
        self._end()

    def _updates(self) -> int:
        return int(self._model.optimizer.iterations)

    def __getattr__(self, name: str) -> Any:
        """Returns a method that does nothing, for all other events."""
        if name.startswith("on_"):
            return lambda *args, **kwargs: None
        if name.startswith("_implements_"):  # tf_keras asks for which batches to call it.
            return lambda: name == "_implements_train_batch_hooks"
        raise AttributeError(name)
