"""Messages for the user when another worker is gone."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

import tfdist.estimator as tfe
from tfdist.cluster import Cluster
from tfdist.estimator.training.lost_workers import lost_workers_named

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


def test_a_workers_own_errors_stay_as_they_are() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError), lost_workers_named(OVER_GRPC):
        raise tf.errors.InvalidArgumentError(None, None, "Incompatible shapes")
