"""The step id of each new call with collectives is there before worker 0 makes the call."""

from collections.abc import Iterator
from typing import Any

import pytest


def _make_calls() -> list[tuple[bytes, bytes]]:
    """Returns the answers of worker 0's server, to each question of this worker and at the end."""
    import tensorflow as tf
    import tensorflow.compat.v1 as v1

    from tfdist.strategies import MultiWorkerStrategy
    from tfdist.strategies.grpc import step_ids

    strategy = MultiWorkerStrategy()
    target, ask, answers = strategy.master, step_ids.ask_for_step_id, {}

    def note(target: str, number: int) -> bytes:
        answers[number] = ask(target, number)
        return answers[number]

    step_ids.ask_for_step_id = note
    with tf.Graph().as_default():
        collectives = strategy.extended.collectives
        [total] = collectives.sum([tf.constant(1.0)], "total")
        sent = collectives.broadcast(tf.constant(2.0), "sent")
        rows = collectives.gather(tf.ones([3]), "rows", same_rows=True)

        def in_a_loop(step: Any) -> Any:
            return step + collectives.sum([tf.constant(1)], "in_a_loop")[0]

        looped = tf.while_loop(lambda step: step < 5, in_a_loop, [0])
        config = strategy.update_config_proto(v1.ConfigProto())
        with v1.Session(target, config=config) as session:
            session.run(tf.constant(3.0))  # It has no collective.
            for _ in range(2):
                assert session.run([total, sent]) == [2.0, 2.0]
            prepared = session.make_callable([rows.op, total])
            assert [prepared() for _ in range(2)] == [[None, 2.0]] * 2
            assert [session.run(looped) for _ in range(2)] == [[6], [6]]
    return [(answer, ask(target, number)) for number, answer in answers.items()]


@pytest.fixture(scope="module")
def answers(fake_cluster_server: Any) -> Iterator[list[list[tuple[bytes, bytes]]]]:
    """The answers that two workers got."""
    from tfdist.testing.fake_cluster import FakeCluster

    cluster = FakeCluster(fake_cluster_server)
    yield cluster.run(_make_calls)
    cluster.close()


@pytest.mark.processes
def test_worker_0_has_the_id_that_its_first_call_takes(answers: Any) -> None:
    assert len(answers[0]) == 3
    for first, at_the_end in answers[0]:
        assert _next_id(at_the_end) == _next_id(first) + 2, "two calls were made"


@pytest.mark.processes
def test_other_workers_do_not_ask(answers: Any) -> None:
    assert answers[1] == []


def _next_id(answer: bytes) -> int:
    """Returns the last number of a message, as protobuf writes it: 7 bits in each byte."""
    *_, start = [i for i, byte in enumerate(answer[:-1]) if byte < 0x80]
    return sum((byte & 0x7F) << 7 * i for i, byte in enumerate(answer[start + 1 :]))
