"""Base classes of hooks that report every n steps: chosen scalars, or a measurement of theirs."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.environment import find_instance
from tfdist.cluster.tasks import checked_count
from tfdist.monitoring.fit_callback import FitCallback
from tfdist.strategies.graph.step_counter import StepCounter, crosses

Chosen = Mapping[str, Any] | Sequence[str]


class ScalarsHook(v1.train.SessionRunHook):  # type: ignore[misc]
    """Calls `report` with the step and the scalars, after steps that are multiples of the interval.

    Subclass it to report elsewhere: each worker that has the hook calls its own `report`. With
    several steps in a session call, the call that reaches a multiple reports once. A resumed
    training therefore reports at the same steps as one that was not interrupted.

    Args:
      scalars: Names of scalar summaries or, if there is no such summary, of tensors; or a dict from
        any name to such a name or a tensor. "loss" is the loss that is reported, over all workers.
      every_n_steps: Steps between two reports.

    Raises:
      ValueError: If there are no scalars, or the interval is below 1. When training starts: if
        the graph has no tensor of that name, or it is not a scalar.
    """

    def __init__(self, scalars: Chosen, every_n_steps: int) -> None:
        if isinstance(scalars, str):
            scalars = [scalars]
        if not isinstance(scalars, (Mapping, Sequence)):
            raise ValueError(f"scalars must be a list of names or a dict, got {scalars!r}.")
        named = dict(scalars) if isinstance(scalars, Mapping) else {name: name for name in scalars}
        if not named:
            raise ValueError("No scalars are chosen. Name one at least: ['loss'].")
        self.names = tuple(named)
        self._chosen = named
        self._every_n_steps = checked_count("every_n_steps", every_n_steps)
        self._counter = StepCounter()
        self._is_due = False

    def as_callback(self) -> FitCallback:
        """Returns a callback of Keras' `fit`, for Keras 3 and tf_keras.

        The scalars are Keras' logs, such as "loss" and the names of metrics, over all workers. The
        step is the number of the optimizer's updates.

        Raises:
          ValueError: In the first report, if Keras has no log of a name.
        """

        def report(step: int, logs: dict[str, Any]) -> None:
            unknown = [name for name in self._chosen.values() if name not in logs]
            if unknown:
                raise ValueError(
                    f"fit has no log called {unknown[0]!r}. Its logs: {', '.join(sorted(logs))}."
                )
            self.report(step, {name: float(logs[log]) for name, log in self._chosen.items()})

        return FitCallback(self.start, report, lambda: self.end(None), self._every_n_steps)

    def start(self, step: int) -> None:
        """Called once the session is there; does nothing unless a subclass replaces it.

        Args:
          step: The global step from which the session starts.
        """

    def report(self, step: int, scalars: dict[str, float]) -> None:
        """Called after a session call that is due; a subclass says what it does.

        Args:
          step: The global step after the call.
          scalars: The value of each name, after the call's last step.
        """
        raise NotImplementedError

    def begin(self) -> None:
        graph = v1.get_default_graph()
        self._tensors = {name: find_scalar(graph, x) for name, x in self._chosen.items()}
        self._counter.begin()

    def after_create_session(self, session: v1.Session, coord: v1.train.Coordinator) -> None:
        self._counter.start(session)
        self.start(self._counter.step)

    def before_run(self, run_context: Any) -> v1.train.SessionRunArgs | None:
        self._is_due = self._counter.may_cross(self._every_n_steps)
        return v1.train.SessionRunArgs(self._tensors) if self._is_due else None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        before = self._counter.step
        self._counter.count(run_context.session)
        after = self._counter.step
        if self._is_due and crosses(before, after, self._every_n_steps):
            self.report(after, {name: float(x) for name, x in run_values.results.items()})


class MeasuringHook(v1.train.SessionRunHook):  # type: ignore[misc]
    """Logs a measurement of this worker, and writes it as summaries.

    Args:
      every_n_steps: Steps between two reports.
      output_dir: Folder of the event file of worker 0; other workers write into its folder
        "worker_<index>". None writes no summaries.

    Raises:
      ValueError: If the interval is below 1.
    """

    def __init__(self, every_n_steps: int, output_dir: str | os.PathLike[str] | None) -> None:
        self._every_n_steps = checked_count("every_n_steps", every_n_steps)
        self._output_dir = None if output_dir is None else _own_folder(output_dir)
        self._counter = StepCounter()

    def begin(self) -> None:
        self._counter.begin()
        self._writer = self._output_dir and v1.summary.FileWriterCache.get(self._output_dir)

    def after_create_session(self, session: v1.Session, coord: v1.train.Coordinator) -> None:
        self._counter.start(session)

    def end(self, session: v1.Session) -> None:
        if self._writer:
            self._writer.flush()

    def _publish(self, line: str, tags: Mapping[str, float]) -> None:
        """Logs a line, and writes the summaries, tag to value."""
        v1.logging.info("%s", line)
        if self._writer:
            summaries = [v1.Summary.Value(tag=tag, simple_value=x) for tag, x in tags.items()]
            self._writer.add_summary(v1.Summary(value=summaries), self._counter.step)


def load_package(user: str, name: str, requirement: str) -> ModuleType:
    """Imports a package that a hook needs and tfdist does not; ImportError if it is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise ImportError(
            f"{user} needs {name}, which is not installed. Run: pip install '{requirement}'"
        ) from None


def find_scalar(graph: tf.Graph, chosen: Any) -> tf.Tensor:
    """Finds a scalar in a graph by a tensor, or the name of a scalar summary or of a tensor.

    If the graph does not have it, or it is not a scalar, it raises a ValueError.
    """
    tensor = chosen
    if isinstance(chosen, str):
        summaries = _scalar_summaries(graph)
        tensor = summaries[chosen] if chosen in summaries else _tensor_of(graph, chosen, summaries)
    if not tf.is_tensor(tensor):
        raise ValueError(f"A scalar must be a tensor or the name of one, got {tensor!r}.")
    if tensor.shape.rank not in (None, 0):
        raise ValueError(f"{tensor.name} has shape {tensor.shape}; a scalar is needed. Reduce it.")
    return tensor


def _scalar_summaries(graph: tf.Graph) -> dict[str, tf.Tensor]:
    """Returns the tensors of the graph's scalar summaries, by tag."""
    found: dict[str, tf.Tensor] = {}
    for operation in graph.get_operations():
        if operation.type == "ScalarSummary":
            tag = tf.get_static_value(operation.inputs[0])
            if tag is not None:
                found.setdefault(tag.item().decode(), operation.inputs[1])
    return found


def _tensor_of(graph: tf.Graph, name: str, summaries: Mapping[str, tf.Tensor]) -> tf.Tensor:
    try:
        return graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
    except (KeyError, ValueError):
        raise ValueError(
            f"The graph has neither a scalar summary nor a tensor called {name!r}. Its scalar "
            f"summaries: {', '.join(sorted(summaries)) or 'none'}."
        ) from None


def own_worker_index() -> int:
    """Returns this process's index among the workers; 0 if it is alone, as an evaluator is."""
    return find_instance().index


def _own_folder(output_dir: str | os.PathLike[str]) -> str:
    """Returns the folder of this worker's event file: another one for each worker but worker 0."""
    worker, folder = own_worker_index(), os.fspath(output_dir)
    return folder if worker == 0 else os.path.join(folder, f"worker_{worker}")
