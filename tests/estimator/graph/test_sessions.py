"""Prepared session calls give what `Session.run` gives; a session that does not close."""

import logging
import threading
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.graph import sessions
from tfdist.estimator.graph.sessions import prepare_calls

Pair = namedtuple("Pair", ["first", "second"])


@pytest.fixture
def session(graph: tf.Graph) -> Iterator[v1.Session]:
    """A session whose calls are prepared; each step adds 1 to `step`."""
    step = v1.get_variable("step", [], initializer=v1.zeros_initializer())
    with tf.control_dependencies([step.assign_add(1.0)]):
        tf.identity(step.read_value(), name="now")
    tf.multiply(v1.placeholder_with_default(2.0, [], name="fed"), 3.0, name="tripled")
    tf.constant([1.0, 2.0], name="two")
    # Fails after the second step.
    left = 2.5 - graph.get_tensor_by_name("now:0")
    tf.debugging.check_numerics(tf.math.log(left), "too far", name="limit")
    with v1.Session() as session:
        prepare_calls(session)
        session.run(step.initializer)
        yield session


FETCHES: dict[str, Callable[[Any, Any], Any]] = {
    "one": lambda two, step: two,
    "an operation": lambda two, step: two.op,
    "a variable": lambda two, step: step,
    "a list": lambda two, step: [two, two, [two.op, step]],
    "a tuple": lambda two, step: (two, [two]),
    "a dict": lambda two, step: {"b": two, "a": [step]},
    "an ordered one": lambda two, step: OrderedDict([("b", two), ("a", step)]),
    "a namedtuple": lambda two, step: Pair(two, (step,)),
    "nothing": lambda two, step: [],
    "nothing inside": lambda two, step: {"a": two, "b": []},
    "a name": lambda two, step: "two:0",
    "names": lambda two, step: {"x": ["two:0", two]},
}


@pytest.mark.parametrize("make", FETCHES.values(), ids=FETCHES.keys())
def test_results_have_the_structure_and_values_of_an_ordinary_call(
    session: v1.Session, graph: tf.Graph, make: Callable[[Any, Any], Any]
) -> None:
    fetches = make(graph.get_tensor_by_name("two:0"), v1.global_variables()[0])
    ordinary = v1.Session.run(session, fetches)
    for _ in range(3):
        prepared = session.run(fetches)
        assert type(prepared) is type(ordinary)
        assert repr(prepared) == repr(ordinary)


def test_each_call_runs_the_graph_again(session: v1.Session, graph: tf.Graph) -> None:
    now = graph.get_tensor_by_name("now:0")
    assert [session.run([now])[0] for _ in range(3)] == [1.0, 2.0, 3.0]
    assert session.run({"now": now}) == {"now": 4.0}
    assert session.run((now, now.op)) == (5.0, None)


def test_the_same_values_under_other_names_are_not_mixed_up(
    session: v1.Session, graph: tf.Graph
) -> None:
    two, fed = graph.get_tensor_by_name("two:0"), graph.get_tensor_by_name("fed:0")
    for _ in range(2):
        assert session.run({"a": fed, "b": two.op}) == {"a": 2.0, "b": None}
        assert session.run({"b": fed, "a": two.op}) == {"b": 2.0, "a": None}
        assert session.run([fed, [fed]]) == [2.0, [2.0]]
        assert session.run([[fed], fed]) == [[2.0], 2.0]
        assert session.run((fed, [fed])) == (2.0, [2.0])


def test_a_list_that_is_changed_between_calls_is_fetched_as_it_is_then(
    session: v1.Session, graph: tf.Graph
) -> None:
    fetches = [graph.get_tensor_by_name("fed:0")]
    assert session.run(fetches) == [2.0]
    fetches[0] = graph.get_tensor_by_name("tripled:0")
    assert session.run(fetches) == [6.0]
    fetches[0] = graph.get_tensor_by_name("fed:0")
    assert session.run(fetches) == [2.0]


def test_feeds_and_traces_still_work(session: v1.Session, graph: tf.Graph) -> None:
    tripled = graph.get_tensor_by_name("tripled:0")
    assert session.run(tripled) == 6.0
    assert session.run(tripled, {"fed:0": 5.0}) == 15.0
    assert session.run(tripled, feed_dict={graph.get_tensor_by_name("fed:0"): 1.0}) == 3.0
    metadata = v1.RunMetadata()
    options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE, output_partition_graphs=True)
    assert session.run(tripled, options=options, run_metadata=metadata) == 6.0
    assert metadata.step_stats.dev_stats
    assert metadata.partition_graphs
    assert session.run([tripled], options=v1.RunOptions(), run_metadata=metadata) == [6.0]


def test_errors_are_those_of_an_ordinary_call(session: v1.Session, graph: tf.Graph) -> None:
    now, limit = graph.get_tensor_by_name("now:0"), graph.get_operation_by_name("limit")
    session.run([now, limit])
    session.run([now, limit])
    errors = []
    for run in (session.run, lambda fetches: v1.Session.run(session, fetches)):
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            run([now, limit])
        errors.append(caught.value)
    prepared, ordinary = errors
    assert prepared.message == ordinary.message
    assert "too far" in prepared.message
    assert f'File "{__file__}", line ' in prepared.message  # Where the op was made.
    assert prepared.op is ordinary.op is limit


def test_a_closed_session_says_so(session: v1.Session, graph: tf.Graph) -> None:
    sessions.limit_close(session)
    two = graph.get_tensor_by_name("two:0")
    session.run(two)
    session.close()
    session.close()
    errors = []
    for run in (session.run, lambda fetches: v1.Session.run(session, fetches)):
        with pytest.raises(RuntimeError) as caught:
            run(two)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_what_cannot_be_fetched_is_refused_as_before(session: v1.Session) -> None:
    with tf.Graph().as_default():
        elsewhere = tf.constant(1.0)
    for fetches in (elsewhere, [elsewhere]):
        with pytest.raises(ValueError, match="is not an element of this graph"):
            session.run(fetches)
    for none in (None, [None], {"a": None}):
        with pytest.raises(TypeError, match="None"):
            session.run(none)


def test_only_so_many_calls_are_kept(
    session: v1.Session, graph: tf.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_MOST_PREPARED", 3)
    kept: dict[Any, Any] = session.run._prepared
    kept.clear()
    fed = graph.get_tensor_by_name("fed:0")
    for count in (1, 2, 3, 4, 5, 4, 2):
        assert session.run([fed] * count) == [2.0] * count
    assert len(kept) == 3


def test_what_a_step_fetches_is_prepared_once(
    make: Any, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    real_make = v1.Session.make_callable

    def make_callable(session: v1.Session, fetches: Any, *args: Any, **kwargs: Any) -> Any:
        made.append(fetches)
        return real_make(session, fetches, *args, **kwargs)

    monkeypatch.setattr(v1.Session, "make_callable", make_callable)
    counts = []
    for steps in (2, 30):
        made.clear()
        make(folder=str(steps)).train(numbers(), steps=steps)
        counts.append(len(made))
    assert counts[0] == counts[1]


# Closing.


class _StuckSession:
    """A session whose workers do not answer."""

    def __init__(self) -> None:
        self.may_close = threading.Event()
        self.is_closed = threading.Event()

    def close(self) -> None:
        assert self.may_close.wait(20.0)
        self.is_closed.set()


def test_a_session_that_does_not_close_is_left_with_a_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sessions, "_CLOSE_LIMIT_S", 0.1)
    stuck = _StuckSession()
    sessions.limit_close(stuck)
    with caplog.at_level(logging.DEBUG, logger="tensorflow"):
        stuck.close()
    assert not stuck.is_closed.is_set()
    assert "The session was not closed within 0 s" in caplog.text
    stuck.may_close.set()
    assert stuck.is_closed.wait(20.0)


class Beats:
    """A progress file that counts what is written, and lets a session close after that."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.phases: list[str] = []

    def write(self, phase: str) -> None:
        self.phases.append(phase)
        if len(self.phases) == 3:
            self.session.set()


def test_the_wait_for_a_session_at_the_programs_end_is_no_stall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_close = threading.Event()
    beats = Beats(may_close)
    monkeypatch.setattr(sessions, "_CLOSE_LIMIT_S", 0.0)
    monkeypatch.setattr(sessions, "_CLOSE_BEAT_S", 0.01)
    monkeypatch.setattr(sessions, "find_progress_file", lambda: beats)
    closing = threading.Thread(target=may_close.wait, args=[20.0])
    closing.start()
    sessions._wait_for_close(closing)
    assert not closing.is_alive()
    assert set(beats.phases) == {"leaving"} and len(beats.phases) >= 3


_PROGRAM = """
import sys
import time

from tfdist.estimator.graph import sessions

sessions._CLOSE_LIMIT_S = 0.3


class Slow:
    def close(self):
        time.sleep(float(sys.argv[1]))
        print("closed", flush=True)


slow = Slow()
sessions.limit_close(slow)
slow.close()
print("the end", flush=True)
"""


@pytest.mark.processes
@pytest.mark.parametrize(("lasts_s", "is_said"), [("1.2", True), ("0.4", False)])
def test_a_program_waits_at_its_end_for_a_session_that_closes_slowly(
    tmp_path: Path, fake_cluster: Any, lasts_s: str, is_said: bool
) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    [ended] = fake_cluster.run_script([str(program), lasts_s], engine="none", forked=True)
    assert ended.stdout.split("\n") == ["the end", "closed", ""]
    said = "Waiting for TensorFlow to close a session, for 75 s at most."
    assert (said in ended.stderr) == is_said
