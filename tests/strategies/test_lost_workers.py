"""Messages for the user when another worker is gone."""

import socket
import threading
from types import SimpleNamespace

import pytest
import tensorflow as tf

import tfdist.estimator as tfe
from tfdist.cluster import Cluster
from tfdist.cluster.rendezvous.membership import Membership
from tfdist.cluster.rendezvous.peer_state import PeerState
from tfdist.cluster.rendezvous.protocol import Member
from tfdist.cluster.rendezvous.state_lines import encode_states
from tfdist.strategies.lost_workers import describe_failure, lost_workers_named

OVER_GRPC = SimpleNamespace(
    cluster=Cluster(jobs={"chief": ("one:3737",), "worker": ("two:3737", "three:3737")})
)
OVER_MPI = SimpleNamespace()
FROM_REMOTE = (
    "Graph execution error:\n\nCollective ops is aborted by: {why}\n"
    "Additional GRPC error information from remote target /job:worker/replica:0/task:1 while "
    "calling /tensorflow.WorkerService/RecvBuf:"
)


@pytest.mark.parametrize(
    ("kind", "message", "strategy", "expected"),
    [
        (
            tf.errors.UnavailableError,
            FROM_REMOTE.format(why="recvmsg:Connection reset by peer"),
            OVER_GRPC,
            "worker 1 (three:3737) while training: Connection reset by peer.",
        ),
        (
            tf.errors.InvalidArgumentError,
            FROM_REMOTE.format(why="Its own error."),
            OVER_GRPC,
            "worker 1 (three:3737) while training: Its own error.",
        ),
        (
            tf.errors.UnknownError,
            "Graph execution error:\n\nDetected at x\nHorovod has been shut down. A rank ended.",
            OVER_MPI,
            "another worker while training: Horovod has been shut down.",
        ),
    ],
)
def test_an_error_about_another_worker_names_it_and_the_cause(
    kind: type[tf.errors.OpError], message: str, strategy: object, expected: str
) -> None:
    with pytest.raises(tfe.WorkerLostError) as caught, lost_workers_named(strategy):
        raise kind(None, None, message)
    assert str(caught.value) == f"Lost {expected} See its output for the cause."


@pytest.mark.parametrize("failure", ["KeyError: 'age'", ""])
def test_the_connections_name_the_worker_where_the_error_does_not(failure: str) -> None:
    members = [Member(name=f"worker {i}", address=f"host{i}") for i in range(2)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = socket.create_connection(listener.getsockname())
        own = Membership(members, 0, {1: listener.accept()[0]})
    ends = threading.Timer(0.1, other.close)
    if failure:
        other.sendall(encode_states({1: PeerState(failure=failure)}))
    else:
        ends.start()
    try:
        with pytest.raises(tfe.WorkerLostError) as caught, lost_workers_named(OVER_MPI, own):
            raise tf.errors.UnknownError(None, None, "Horovod has been shut down.")
    finally:
        own.close()
        other.close()
    why = f"its training has failed: {failure}" if failure else "its process has ended"
    line = f"Lost worker 1 (host1) while training: {why}. See its output for the cause."
    assert str(caught.value) == line


def test_a_failed_training_that_is_known_says_more_than_the_error_of_a_closed_connection() -> None:
    members = [Member(name=f"worker {i}", address=f"host{i}") for i in range(2)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = socket.create_connection(listener.getsockname())
        own = Membership(members, 0, {1: listener.accept()[0]})
    try:
        other.sendall(encode_states({1: PeerState(failure="KeyError: 'age'")}))
        assert own.find_loss(10.0) is not None
        message = "Socket closed\nAdditional GRPC error information from remote target /job:worker/"
        known = pytest.raises(tfe.WorkerLostError, match="has failed: KeyError: 'age'")
        with known, lost_workers_named(OVER_GRPC, own):
            raise tf.errors.UnavailableError(None, None, f"{message}replica:0/task:1:")
    finally:
        own.close()
        other.close()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("no such file.\nLook again"), "ValueError: no such file"),
        (ArithmeticError(), "ArithmeticError"),
        (
            tf.errors.InvalidArgumentError(
                None,
                None,
                "Graph execution error:\n\nFrom /job:worker/replica:0/task:0:\n"
                "2 root error(s) found.\n  (0) INVALID_ARGUMENT: assertion failed: [x]",
            ),
            "InvalidArgumentError: assertion failed: [x]",
        ),
        (
            tf.errors.NotFoundError(
                None, None, "Graph execution error:\n\nDetected at node 'a'\nNode: 'a'\nno file"
            ),
            "NotFoundError: no file",
        ),
    ],
)
def test_a_failure_is_told_in_one_line(error: Exception, expected: str) -> None:
    assert describe_failure(error) == expected


def test_a_workers_own_errors_stay_as_they_are() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError), lost_workers_named(OVER_GRPC):
        raise tf.errors.InvalidArgumentError(None, None, "Incompatible shapes")
