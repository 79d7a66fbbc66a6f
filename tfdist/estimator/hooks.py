"""Session hooks: TensorFlow's under the names of tf.estimator, and a hook that logs on the device.

The classes are TensorFlow's own or derived from them: hooks written for `tf.compat.v1.train` work.

`tf.compat.v1.train.LoggingTensorHook` fetches tensors, which is not possible inside a loop of
steps. In `DeviceLoggingTensorHook` an op in the step passes them to the hook, on the host.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.arguments import check_flag, check_number, check_that, check_whole
from tfdist.estimator.graph.steady_timer import SteadyTimer
from tfdist.estimator.graph.step import RUN_WITH_EACH_STEP
from tfdist.strategies.base import is_tfdist_strategy
from tfdist.strategies.placement import HOST

CheckpointSaverHook = v1.train.CheckpointSaverHook
CheckpointSaverListener = v1.train.CheckpointSaverListener
FeedFnHook = v1.train.FeedFnHook
FinalOpsHook = v1.train.FinalOpsHook
GlobalStepWaiterHook = v1.train.GlobalStepWaiterHook
LoggingTensorHook = v1.train.LoggingTensorHook
NanLossDuringTrainingError = v1.train.NanLossDuringTrainingError
NanTensorHook = v1.train.NanTensorHook
SecondOrStepTimer = v1.train.SecondOrStepTimer
SessionRunArgs = v1.train.SessionRunArgs
SessionRunContext = v1.train.SessionRunContext
SessionRunHook = v1.train.SessionRunHook
SessionRunValues = v1.train.SessionRunValues
StepCounterHook = v1.train.StepCounterHook
StopAtStepHook = v1.train.StopAtStepHook
SummarySaverHook = v1.train.SummarySaverHook


class ProfilerHook(v1.train.ProfilerHook):  # type: ignore[misc]
    """Writes a timeline of a step every n steps or seconds; may be made anywhere in a program.

    TensorFlow's own opens an event file when it is made, which fails where no graph is the default.

    Args:
      save_steps: Steps between two timelines; either this or `save_secs` is given.
      save_secs: Seconds between two timelines.
      output_dir: The folder for `timeline-STEP.json`.
      show_dataflow: Whether to show the tensors that operations pass on.
      show_memory: Whether to show the memory of tensors.
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str = "",
        show_dataflow: bool = True,
        show_memory: bool = False,
    ) -> None:
        if save_steps is not None:
            check_whole("save_steps", save_steps)
        if save_secs is not None:
            check_number("save_secs", save_secs)
        check_flag("show_dataflow", show_dataflow)
        check_flag("show_memory", show_memory)
        with tf.Graph().as_default():
            super().__init__(save_steps, save_secs, output_dir, show_dataflow, show_memory)


class DeviceLoggingTensorHook(v1.train.SessionRunHook):  # type: ignore[misc]
    """Logs tensors every n session calls, every n seconds, or at the end.

    Call `log` once in model_fn, and give the hook to `training_hooks` (or to the hooks of another
    method). A line reads "name = value, name2 = value2 (x.xxx sec)". The tensors are copied to the
    host in every step. With several replicas in a worker, the tensors of the first one are logged.

    Args:
      every_n_iter: Session calls between two lines; the first call is logged.
      every_n_secs: Seconds between two lines.
      at_end: Whether to log at the end of the session.
      formatter: Makes the line from a dict of name to value; None is the format above.
      logging_mode: `LoggingMode.LAST`, or `LoggingMode.ALL` for arrays [values, ...].

    Raises:
      ValueError: If both intervals are given, or none and not `at_end`, or one is not positive.
    """

    class LoggingMode(enum.Enum):
        """The values to log of those since the last line: the last one, or all, stacked."""

        LAST = "LAST"
        ALL = "ALL"

    def __init__(
        self,
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Callable[[dict[str, Any]], str] | None = None,
        logging_mode: LoggingMode = LoggingMode.LAST,
    ) -> None:
        if every_n_iter is not None and every_n_secs is not None:
            raise ValueError("Cannot provide both every_n_iter and every_n_secs. Give one of them.")
        check_flag("at_end", at_end)
        has_interval = every_n_iter is not None or every_n_secs is not None
        if not (has_interval or at_end):
            raise ValueError("Either every_n_iter, every_n_secs or at_end should be provided.")
        if every_n_iter is not None:
            check_whole("every_n_iter", every_n_iter)
        if every_n_secs is not None:
            check_number("every_n_secs", every_n_secs)
        is_mode = isinstance(logging_mode, self.LoggingMode)
        check_that(is_mode, "logging_mode", logging_mode, "must be LoggingMode.LAST or ALL")
        self._timer = (
            SteadyTimer(every_secs=every_n_secs, every_steps=every_n_iter) if has_interval else None
        )
        self._at_end = at_end
        self._formatter = formatter
        self._mode = logging_mode
        self._graph: tf.Graph | None = None
        self._op: tf.Operation | None = None
        self._names: list[str] = []
        self._received: list[list[Any]] = []
        self._calls = 0

    def log(self, tensors: Any) -> tf.Operation:
        """Sets the tensors to log; must be called once in a model.

        Args:
          tensors: A tensor, a list of tensors, or a dict of name to tensor.

        Returns:
          The op that passes the values to the hook. A training step runs it, and so does a session
          that has the hook. Inside a loop in the user's code it must be a control dependency.

        Raises:
          TypeError: If something is not a tensor.
          RuntimeError: If it has been called before in this graph.
        """
        named = _by_name(tensors)
        if not _is_first_replica():
            return tf.no_op()
        graph = _outermost_graph()
        if self._graph is graph:
            raise RuntimeError(
                "Cannot use this hook object's log function more than once. Give all tensors in "
                "one list or dict, or make another hook."
            )
        self._graph = graph
        self._names = list(named)
        with tf.device(HOST):
            handed = tf.numpy_function(self._receive, list(named.values()), [])
        # Without outputs this is an operation or, in some versions, an empty list.
        self._op = handed if isinstance(handed, tf.Operation) else tf.group(handed)
        v1.add_to_collection(RUN_WITH_EACH_STEP, self._op)
        return self._op

    def begin(self) -> None:
        if self._graph is not _outermost_graph():
            raise RuntimeError(
                "This logging hook has no tensors in this graph. Did you forget to call the log "
                "function? Call it in model_fn."
            )
        self._received = []
        self._calls = 0
        if self._timer is not None:
            self._timer.reset()

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs | None:
        is_fetchable = self._op is not None and self._op.graph is self._graph
        return v1.train.SessionRunArgs(self._op) if is_fetchable else None

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        if self._timer is not None and self._timer.should_trigger_for_step(self._calls):
            elapsed_s, _ = self._timer.update_last_triggered_step(self._calls)
            self._log_received(elapsed_s)
        self._calls += 1

    def end(self, session: v1.Session) -> None:
        if self._at_end:
            elapsed_s = None
            if self._timer is not None:
                elapsed_s, _ = self._timer.update_last_triggered_step(self._calls)
            self._log_received(elapsed_s)

    def _receive(self, *values: Any) -> None:
        if self._mode == self.LoggingMode.LAST:
            self._received.clear()
        self._received.append(list(values))

    def _log_received(self, elapsed_s: float | None) -> None:
        if not self._received:
            return
        if self._mode == self.LoggingMode.LAST:
            values = self._received[-1]
        else:
            values = [_stacked(column) for column in zip(*self._received, strict=True)]
            self._received = []
        named = dict(zip(self._names, values, strict=True))
        with np.printoptions(suppress=True):
            if self._formatter is not None:
                v1.logging.info("%s", self._formatter(named))
                return
            line = ", ".join(f"{name} = {value}" for name, value in named.items())
        v1.logging.info("%s", line if elapsed_s is None else f"{line} ({elapsed_s:.3f} sec)")


def _by_name(tensors: Any) -> dict[str, tf.Tensor]:
    if isinstance(tensors, dict):
        named = list(tensors.items())
    else:
        listed = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
        named = [(getattr(tensor, "name", ""), tensor) for tensor in listed]
    for _, tensor in named:
        if not isinstance(tensor, (tf.Tensor, tf.Variable)):
            raise TypeError(f"Expected `tf.Tensor`, got {type(tensor)}. Log tensors of the model.")
    return {name: tf.convert_to_tensor(tensor) for name, tensor in named}


def _outermost_graph() -> tf.Graph:
    graph = v1.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    return graph


def _is_first_replica() -> bool:
    if not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context():
        return True
    strategy = tf.distribute.get_strategy()
    return not is_tfdist_strategy(strategy) or strategy.extended.replica_in_worker() == 0


def _stacked(column: tuple[Any, ...]) -> Any:
    """Stacks values of equal shape; others stay a list, for example with a smaller last batch."""
    shapes = {np.shape(value) for value in column}
    return np.stack(column) if len(shapes) == 1 else list(column)
