"""Hooks around a call of the training loop get what `MonitoredSession.run` gives them."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.graph.hooked_call import after_run, before_run

FULL = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)


class Ask(v1.train.SessionRunHook):  # type: ignore[misc]
    """Makes a request, and keeps what it gets."""

    def __init__(self, *request: Any, stop: bool = False) -> None:
        self.request = request
        self.stop = stop
        self.got: list[Any] = []

    def before_run(self, run_context: Any) -> Any:
        self.got.append(run_context.original_args.fetches)
        return v1.train.SessionRunArgs(*self.request) if self.request else None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.got += [
            run_values.results,
            run_values.options,
            bool(run_values.run_metadata.step_stats.dev_stats),
        ]
        self.got.append(run_context.stop_requested)
        if self.stop:
            run_context.request_stop()


def _ours(session: v1.Session, hooks: list[Any], fetches: Any) -> Any:
    context = v1.train.SessionRunContext(v1.train.SessionRunArgs(fetches), session)
    requested = before_run(hooks, context)
    metadata = v1.RunMetadata()
    outputs = session.run(
        {"own": fetches, **requested.fetches}, requested.feeds, requested.options, metadata
    )
    after_run(hooks, context, outputs, requested.options, metadata)
    return outputs["own"], context.stop_requested


def _tensorflows(session: v1.Session, hooks: list[Any], fetches: Any) -> Any:
    with v1.train.SingularMonitoredSession(hooks=hooks) as monitored:
        return monitored.run(fetches), monitored.should_stop()


def _hooks(graph: tf.Graph) -> list[Any]:
    one, two, sum_of_both = (
        graph.get_tensor_by_name(f"{name}:0") for name in ("one", "two", "sum")
    )
    return [
        Ask(),
        Ask({"a": [sum_of_both]}, {one: 5.0}),
        Ask(two, {two: 7.0}, v1.RunOptions(timeout_in_ms=60_000)),
        Ask([], None, v1.RunOptions(timeout_in_ms=50_000)),
        Ask(sum_of_both, None, FULL, stop=True),
        Ask(two),
    ]


@pytest.fixture
def graph() -> tf.Graph:
    with tf.Graph().as_default() as graph:
        one = v1.placeholder_with_default(1.0, [], name="one")
        two = v1.placeholder_with_default(2.0, [], name="two")
        tf.add(one, two, name="sum")
    return graph


def _seen(call: Callable[..., Any], graph: tf.Graph) -> Any:
    with graph.as_default(), v1.Session() as session:
        hooks = _hooks(graph)
        result = call(session, hooks, [graph.get_tensor_by_name("sum:0")])
    return result, [hook.got for hook in hooks]


def test_requests_values_options_and_stops_are_those_of_a_monitored_session(
    graph: tf.Graph,
) -> None:
    ours, theirs = _seen(_ours, graph), _seen(_tensorflows, graph)
    assert ours == theirs
    assert ours[0] == ([12.0], True)


def test_two_hooks_that_feed_the_same_tensor_are_refused(graph: tf.Graph) -> None:
    one = graph.get_tensor_by_name("one:0")
    messages = []
    for call in (_ours, _tensorflows):
        with (
            graph.as_default(),
            v1.Session() as session,
            pytest.raises(RuntimeError, match="Same tensor is fed by two hooks") as caught,
        ):
            call(session, [Ask(None, {one: 1.0}), Ask(None, {one: 2.0})], one)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
