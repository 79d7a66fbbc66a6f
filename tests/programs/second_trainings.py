"""Several trainings, and sessions of one's own, one after the other in a process over gRPC."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.strategies import MultiWorkerStrategy

_MEGABYTES = 32  # of a graph that is one of many


def run_all(folder: str) -> dict[str, Any]:
    """Returns what each training and each session has found."""
    strategy = MultiWorkerStrategy()
    return {
        "averages": [_train(strategy, 2), _train(strategy, 2), _train(strategy, 3)],
        "words": [_train_words(strategy, folder, words) for words in ("a b c", "b d")],
        **_in_turn(strategy),
        **_in_one_another(strategy),
        "grown_mb": _many_graphs(strategy),
    }


def _train(strategy: Any, width: int) -> list[float]:
    """Trains with moving averages of the weights; returns the averages at the end."""
    found = []

    class Read(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
        def begin(self) -> None:
            [self.average] = [v for v in v1.global_variables() if "Average" in v.name]

        def end(self, session: Any) -> None:
            found.extend(session.run(self.average).ravel().tolist())

    def input_fn() -> tf.data.Dataset:
        rows = np.linspace(0, 1, 4 * width).reshape(4, width).astype(np.float32)
        return tf.data.Dataset.from_tensors((rows, rows.sum(axis=1, keepdims=True))).repeat()

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        weight = v1.get_variable("weight", [width, 1], initializer=v1.ones_initializer())
        loss = tf.reduce_mean(tf.square(tf.matmul(features, weight) - 3 * labels))
        optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
        [(gradient, _)] = optimizer.compute_gradients(loss)

        def update(gradient: Any) -> Any:
            with tf.control_dependencies([optimizer.apply_gradients([(gradient, weight)])]):
                return v1.train.ExponentialMovingAverage(0.5).apply([weight])

        return tfe.EstimatorSpec(mode, loss=loss, host_call=(update, [gradient]))

    config = tfe.RunConfig(train_distribute=strategy, save_checkpoints_steps=None)
    tfe.Estimator(model_fn, config=config).train(input_fn, hooks=[Read()], max_steps=2)
    return found


def _train_words(strategy: Any, folder: str, words: str) -> list[int]:
    """Trains on words of a vocabulary that is in the same file each time; returns their ids."""
    index = strategy.extended.collectives.worker_index
    vocabulary = Path(folder) / f"words-{index}.txt"
    vocabulary.write_text("\n".join(words.split()) + "\n")
    found: list[int] = []

    class Read(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
        def before_run(self, run_context: Any) -> Any:
            return v1.train.SessionRunArgs("ids:0")

        def after_run(self, run_context: Any, run_values: Any) -> None:
            found[:] = run_values.results.tolist()

    def input_fn() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors({"words": ["a", "b", "c", "d"]}).repeat()

    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        table = tf.lookup.StaticVocabularyTable(
            tf.lookup.TextFileInitializer(
                str(vocabulary),
                tf.string,
                tf.lookup.TextFileIndex.WHOLE_LINE,
                tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
            ),
            num_oov_buckets=1,
        )
        ids = tf.identity(table.lookup(features["words"]), "ids")
        weight = v1.get_variable("weight", [4], initializer=v1.zeros_initializer())
        loss = tf.reduce_mean(tf.square(tf.gather(weight, tf.minimum(ids, 3)) - 1))
        step = v1.train.get_global_step()
        train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
        return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

    config = tfe.RunConfig(train_distribute=strategy, save_checkpoints_steps=None)
    tfe.Estimator(model_fn, config=config).train(input_fn, hooks=[Read()], max_steps=1)
    return found


def _graph(strategy: Any, value: float) -> tuple[Callable[[], Any], dict[str, Any]]:
    """Returns a function that opens a session of a graph, and the graph's ops by name.

    The ops outside the strategy's scope are those of the input.
    """
    with tf.Graph().as_default() as graph:
        iterator = v1.data.make_initializable_iterator(tf.data.Dataset.range(10))
        with strategy.scope():
            variable = v1.get_variable("value", initializer=value)
        ops = {
            "next": iterator.get_next(),
            "start": tf.group(variable.initializer, iterator.initializer),
            "value": variable.read_value(),
            "uninitialized": v1.report_uninitialized_variables(),
        }
    config = strategy.update_config_proto(v1.ConfigProto())
    return lambda: v1.Session(strategy.master, graph, config), ops


def _in_turn(strategy: Any) -> dict[str, Any]:
    """Opens sessions of two graphs in turn."""
    found: dict[str, Any] = {}
    open_first, first = _graph(strategy, 1.0)
    with open_first() as session:
        session.run(first["start"])
        session.run(first["next"])
    with open_first() as session:
        found["value in the same graph"] = session.run(first["value"])
    open_second, second = _graph(strategy, 2.0)
    with open_second() as session:
        found["uninitialized in another one"] = session.run(second["uninitialized"]).tolist()
        try:
            session.run(second["next"])
        except tf.errors.FailedPreconditionError as error:
            found["iterator"] = type(error).__name__
    return found


def _in_one_another(strategy: Any) -> dict[str, Any]:
    """Opens a session while one of another graph is open."""
    (open_first, first), (open_second, second) = _graph(strategy, 1.0), _graph(strategy, 2.0)
    with open_first() as outer:
        outer.run(first["start"])
        for _ in range(2):
            with open_second() as inner:
                inner.run(second["start"])
                values = [*inner.run([second["value"], second["next"]])]
        values += outer.run([first["value"], first["next"]])
    return {"each has its own": values}


def _many_graphs(strategy: Any) -> float:
    """Opens sessions of 16 graphs; returns by how many MB the last eight grow the process."""
    process, used = psutil.Process(), []
    for number in range(16):
        with tf.Graph().as_default(), strategy.scope():
            variable = v1.get_variable(
                f"of_graph_{number}", [_MEGABYTES << 18], initializer=v1.zeros_initializer()
            )
            config = strategy.update_config_proto(v1.ConfigProto())
            with v1.Session(strategy.master, config=config) as session:
                session.run(variable.initializer)
        used.append(process.memory_info().rss / (1 << 20))
    return used[-1] - used[7]
