"""Events for TensorBoard: their kinds, tags and order are those of tf.estimator 2.15."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
from google.protobuf import text_format

import tfdist.estimator as tfe

Make = Callable[..., Any]


def _events(folder: Path) -> list[tuple[int, str, Any]]:
    """Reads a folder's one event file: step, kind, and what of it can be compared."""
    v1.summary.FileWriterCache.clear()
    (path,) = folder.glob("events.out.tfevents.*")
    found: list[tuple[int, str, Any]] = []
    for event in v1.train.summary_iterator(str(path)):
        kind = event.WhichOneof("what")
        content: Any = None
        if kind == "summary":
            content = [(value.tag, value.WhichOneof("value")) for value in event.summary.value]
        elif kind == "session_log":
            content = v1.SessionLog.SessionStatus.Name(event.session_log.status)
        elif kind == "graph_def":
            content = event.graph_def
        found.append((event.step, kind, content))
    return found


@pytest.fixture
def estimator(tmp_path: Path) -> tfe.Estimator:
    """An Estimator whose model has a summary of each kind."""

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        w = v1.get_variable("w", [], initializer=v1.zeros_initializer())
        output = features * w
        loss = tf.reduce_mean(tf.square(output - labels))
        v1.summary.scalar("rate", tf.constant(0.5))
        v1.summary.histogram("spread", output)
        v1.summary.image("picture", tf.zeros([1, 2, 2, 3]))
        v1.summary.text("words", tf.constant("hello"))
        if mode == tfe.ModeKeys.EVAL:
            metrics = {"mae": v1.metrics.mean_absolute_error(labels, output)}
            return tfe.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
        step = v1.train.get_global_step()
        train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
        return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

    config = tfe.RunConfig(save_summary_steps=2, log_step_count_steps=2, save_checkpoints_steps=3)
    return tfe.Estimator(model_fn, tmp_path, config)


def _input_fn() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors(([1.0, 2.0], [2.0, 4.0])).repeat()


def test_training_writes_graph_checkpoints_speed_and_all_summaries(
    estimator: tfe.Estimator, tmp_path: Path
) -> None:
    estimator.train(_input_fn, steps=4)
    events = _events(tmp_path)
    summaries = [
        ("rate", "simple_value"),
        ("spread", "histo"),
        ("picture/image/0", "image"),
        ("words", "tensor"),
        ("loss", "simple_value"),
    ]
    without_graph = [event for event in events if event[1] not in ("graph_def", "meta_graph_def")]
    assert without_graph == [
        (0, "file_version", None),
        (0, "session_log", "CHECKPOINT"),
        (1, "session_log", "START"),
        (1, "summary", summaries),
        (3, "session_log", "CHECKPOINT"),
        (3, "summary", [("global_step/sec", "simple_value")]),
        (3, "summary", summaries),
        (4, "session_log", "CHECKPOINT"),
    ]
    graph = tf.compat.v1.GraphDef.FromString([e[2] for e in events if e[1] == "graph_def"][-1])
    assert {"w", "loss", "global_step"} <= {node.name for node in graph.node}


class GraphFile(tfe.SessionRunHook):  # type: ignore[misc]
    """Looks for the graph before each step."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_there: list[bool] = []

    def before_run(self, run_context: Any) -> None:
        self.is_there.append(self._path.exists())


@pytest.mark.parametrize("is_async", [True, False])
def test_the_graph_is_written_once_and_does_not_hold_up_the_first_step(
    estimator: tfe.Estimator, tmp_path: Path, is_async: bool
) -> None:
    config = estimator.config.replace(save_checkpoints_async=is_async)
    hook = GraphFile(tmp_path / "graph.pbtxt")
    tfe.Estimator(estimator.model_fn, tmp_path, config).train(_input_fn, [hook], steps=2)
    assert hook.is_there[0] is not is_async
    graph = v1.GraphDef()
    text_format.Parse((tmp_path / "graph.pbtxt").read_text(), graph)
    written = [content for _, kind, content in _events(tmp_path) if kind == "graph_def"]
    nodes = [v1.GraphDef.FromString(content).node for content in written]
    assert list(nodes[-1]) == list(graph.node)
    assert {"w", "loss", "save/restore_all"} <= {node.name for node in graph.node}
    if is_async:
        assert [len(one) > 0 for one in nodes] == [False, True]


def test_a_resumed_training_writes_a_file_that_goes_on_at_its_step(
    estimator: tfe.Estimator, tmp_path: Path, read_events: Make
) -> None:
    estimator.train(_input_fn, steps=2)
    v1.summary.FileWriterCache.clear()
    (first,) = tmp_path.glob("events.out.tfevents.*")
    first.rename(tmp_path / "events.out.tfevents.0.first")
    estimator.train(_input_fn, steps=3)
    assert [step for step, _ in read_events(tmp_path)["loss"]] == [1, 3, 5]


def test_evaluations_within_one_second_are_all_kept(
    estimator: tfe.Estimator, tmp_path: Path, read_events: Make
) -> None:
    for _ in range(3):
        estimator.train(_input_fn, steps=1)
        estimator.evaluate(_input_fn, steps=1)
    assert [step for step, _ in read_events(tmp_path / "eval")["mae"]] == [1, 2, 3]
