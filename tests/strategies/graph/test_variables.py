"""Initial values: each is sent by itself, or worker 0's values together after the initializers."""

import json

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies import MultiWorkerStrategy
from tfdist.strategies.grpc import strategy as multi_worker


@pytest.fixture
def strategy(monkeypatch: pytest.MonkeyPatch) -> MultiWorkerStrategy:
    """One of two workers, which starts no server."""
    config = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    monkeypatch.setattr(multi_worker, "check_port", lambda cluster, task: None)
    monkeypatch.setattr(multi_worker, "keep_memory", lambda environ: False)
    return MultiWorkerStrategy()


def _make_variables(name: str) -> None:
    v1.get_variable(f"{name}_global", [2])
    v1.get_variable(f"{name}_local", [2], collections=[v1.GraphKeys.LOCAL_VARIABLES])
    collections = [v1.GraphKeys.GLOBAL_VARIABLES, "own"]
    v1.get_variable(f"{name}_in_two_collections", [2], collections=collections)


def _sent(graph: tf.Graph) -> set[str]:
    """Returns the names of the messages of worker 0."""
    return {op.name for op in graph.get_operations() if op.type == "CollectiveBcastSend"}


def test_global_variables_are_sent_once_where_all_are_sent_later(
    strategy: MultiWorkerStrategy,
) -> None:
    with tf.Graph().as_default() as graph, strategy.scope():
        with strategy.extended.graph_variables.initial_values_sent_later():
            _make_variables("later")
        assert _sent(graph) == {"later_local/from_worker_0"}  # No broadcast of all includes it.
        strategy.extended.graph_variables.broadcast()
        together = {"later_global", "later_in_two_collections"}
        assert _sent(graph) == {
            "later_local/from_worker_0",
            *(f"broadcast_variables/{name}" for name in together),
        }


def test_each_initial_value_is_sent_otherwise(strategy: MultiWorkerStrategy) -> None:
    with tf.Graph().as_default() as graph, strategy.scope():
        with strategy.extended.graph_variables.initial_values_sent_later():
            pass
        _make_variables("now")
        assert _sent(graph) == {
            f"now_{name}/from_worker_0" for name in ("global", "local", "in_two_collections")
        }
