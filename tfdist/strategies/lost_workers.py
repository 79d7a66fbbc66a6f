"""TensorFlow's and Horovod's errors about a lost worker, and the error that names it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from tfdist.cluster import Cluster, Task, WorkerLostError
from tfdist.cluster.rendezvous.membership import Membership
from tfdist.cluster.rendezvous.peer_watch import loss_error
from tfdist.process.endings import OneLineError
from tfdist.strategies.worker_strategy import WorkerStrategy

_ALWAYS = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
# The error of another worker arrives through the collective that it left: over gRPC, over MPI.
_SIGNS = ("information from remote target", "Horovod has been shut down")
_REMOTE = re.compile(
    r"^(?P<why>.*)\n.* remote target /job:(?P<job>\w+)/replica:0/task:(?P<i>\d+)", re.M
)

# Horovod's error comes before the news that the process of the lost worker has ended.
_NEWS_LIMIT_S = 2.0

# The queue of a worker's gradients, which a failed step leaves closed (`grpc.function_exchange`).
OWN_GRADIENTS = "tfdist-gradients"
_IS_ABANDONED = f"FIFOQueue '{OWN_GRADIENTS}"

_CODE = re.compile(r"^\(\d+\) [A-Z_]+: ")  # "(0) INVALID_ARGUMENT: ..."
_NOISE = re.compile(
    r"^(?:assertion failed: \[|Collective ops is aborted by: |\[_Derived_\]|recvmsg:)+"
)


class StepAbandonedError(OneLineError, RuntimeError):
    """A function is called again although a step that sent gradients has failed."""


@contextmanager
def lost_workers_named(
    strategy: WorkerStrategy | None, membership: Membership | None = None
) -> Iterator[None]:
    """Turns TensorFlow's errors about other workers into a `WorkerLostError`, or its like.

    The connections to the other workers name the lost one where the error does not, as over
    Horovod.
    """
    try:
        yield
    except tf.errors.OpError as error:
        lost = translate(error, strategy, membership)
        if lost is None:
            raise
        raise lost from error


def describe_failure(error: Exception) -> str:
    """Returns an error in one line, for the other workers: its type, and what it is about.

    TensorFlow's begin with words of every error, and where the op was made.
    """
    lines = [line.strip() for line in str(error).splitlines()]
    nodes = [number for number, line in enumerate(lines) if line.startswith("Node: ")]
    lines = lines[nodes[-1] + 1 :] if nodes else lines
    what = next((x for x in lines if x and not x.endswith((":", "root error(s) found."))), "")
    return f"{type(error).__name__}: {_CODE.sub('', what)}".rstrip(". :")


def translate(
    error: BaseException, strategy: WorkerStrategy | None, membership: Membership | None
) -> OneLineError | None:
    """Returns an error that names the lost worker of which another one comes; None for others."""
    if not isinstance(error, tf.errors.OpError):
        return None
    message = error.message.replace("\\n", "\n")  # As tf.Assert writes the end of a line.
    if _IS_ABANDONED in message:
        return StepAbandonedError(
            "a step has failed before, and other workers may still have its gradients. End the "
            "program after the error of a step, or make another tf.function."
        )
    if not isinstance(error, _ALWAYS) and not any(sign in message for sign in _SIGNS):
        return None
    match = _REMOTE.search(message)
    loss = membership.find_loss(_NEWS_LIMIT_S if match is None else 0.0) if membership else None
    if loss is not None and (match is None or loss.is_failure or loss.is_difference):
        return loss_error(loss)
    who, why = _read(message, match, getattr(strategy, "cluster", None))
    return WorkerLostError(f"Lost {who} while training: {why}. See its output for the cause.")


def _read(message: str, match: re.Match[str] | None, cluster: Cluster | None) -> tuple[str, str]:
    if match is None or cluster is None:
        lines = [line.strip() for line in message.splitlines() if line.strip()]
        # The first of Horovod's sentences; the others explain shutdowns in general.
        telling = [line.split(". ")[0] for line in lines if any(sign in line for sign in _SIGNS)]
        others = [line for line in lines if line != "Graph execution error:"]
        why = next(iter([*telling, *others]), "no cause is known")
        return "another worker", why.rstrip(".")
    task = Task(type=match["job"], index=int(match["i"]))
    why = _NOISE.sub("", match["why"].strip()).rstrip(".")
    return f"{task.name} ({cluster.address(task)})", why
