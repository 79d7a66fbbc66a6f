"""A barrier: instances wait for each other, outside of any training graph.

Over gRPC, after TensorFlow's servers have started (before that, the rendezvous is the barrier):

    worker 0 (has the list on its server)     worker 1                    worker 2
    list: [0, 0, 0]
    signs 1: [1, 0, 0], waits                 signs 1: [1, 1, 0], waits
                                                                          signs 1: [1, 1, 1]
    sees that all have signed 1               sees it                     sees it
    signs 2, waits for all 2s, at most 5 s    signs 2, returns            signs 2, returns

The second signature keeps worker 0's server until the others have seen the first ones. The next
barrier uses 3 and 4.
"""

from __future__ import annotations

import itertools
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster import Cluster, PeerWatch, Task, WorkerLostError, find_cluster, meet
from tfdist.cluster.rendezvous.membership import Membership
from tfdist.cluster.rendezvous.protocol import (
    AbsentWorkerError,
    Member,
    members_of,
    name_missing,
    waiting_line,
)
from tfdist.cluster.rendezvous.sockets import Patience
from tfdist.process.endings import print_to_stderr
from tfdist.strategies.placement import HOST
from tfdist.strategies.reductions.engine import Collectives

_POLL_S = 0.05
_REPORT_EVERY_S = 30.0
_RPC_LIMIT_S = 5.0
_NO_ANSWER = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError, tf.errors.AbortedError)

# The number of barriers that each group has passed, equal in all members of the group.
_numbers: defaultdict[tuple[int, ...], Iterator[int]] = defaultdict(lambda: itertools.count(1))


def meet_over_grpc(
    instances: tuple[int, ...],
    timeout_s: float,
    find_membership: Callable[[Cluster, Task], Membership | None],
) -> None:
    """Returns when all these workers of the cluster have called it as often as this one.

    Before TensorFlow's servers are started, when this worker has no connections yet, it is the
    rendezvous on their ports. Afterwards each worker signs a list on the first one's server, and
    reads it until all have signed.

    Raises:
      RendezvousError: If a worker is missing after `timeout_s` seconds.
      WorkerLostError: If the process of another worker has ended.
    """
    found = find_cluster()
    assert found is not None
    cluster, task = found
    membership = find_membership(cluster, task)
    if membership is None:
        meet(cluster, task, timeout_s=timeout_s, report_every_s=_REPORT_EVERY_S)
        return
    own = instances.index(cluster.worker_index(task))
    members = [members_of(cluster)[index] for index in instances]
    number = next(_numbers[instances])
    with (
        _SignedList(cluster, instances) as signed,
        PeerWatch(membership, among=instances) as watch,
    ):
        worker_is_lost = threading.Event()
        watch.start(worker_is_lost.set)
        patience = Patience(timeout_s, _REPORT_EVERY_S)
        while late := signed.sign_and_list_late(own, 2 * number - 1):
            _wait_for([members[index] for index in late], patience, worker_is_lost)
        # The first worker's server must stay until all workers have seen all signatures.
        patience = Patience(_RPC_LIMIT_S, _RPC_LIMIT_S)
        while signed.sign_and_list_late(own, 2 * number) and own == 0 and not patience.is_over():
            time.sleep(_POLL_S)


def meet_over_horovod(collectives: Collectives, timeout_s: float) -> None:
    """Returns when all these ranks of the MPI job have called it as often as this one.

    Raises:
      RendezvousError: If a rank is missing after `timeout_s`. After a minute of waiting Horovod's
        own warning on rank 0 names the missing ranks.
      WorkerLostError: If another rank has ended Horovod.
    """
    errors: list[Exception] = []

    def reduce() -> None:
        try:
            with tf.Graph().as_default(), tf.device(HOST):
                [total] = collectives.sum([tf.constant(1)], "synchronize")
                with v1.Session() as session:
                    session.run(total)
        except Exception as error:
            errors.append(error)

    # An operation of Horovod cannot be interrupted, but its thread can be abandoned.
    thread = threading.Thread(target=reduce, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise _absent(f"some of the {collectives.num_workers} instances", timeout_s)
    if errors and isinstance(errors[0], tf.errors.OpError):
        why = errors[0].message.split(". ")[0]
        raise WorkerLostError(
            f"Lost another instance in synchronize(): {why}. See its output for the cause."
        ) from errors[0]
    if errors:
        raise errors[0]


class _SignedList:
    """A list on the server of the first worker: the last number that each worker signed with."""

    def __init__(self, cluster: Cluster, instances: tuple[int, ...]) -> None:
        first = cluster.workers[instances[0]]
        device = f"/job:{first.type}/task:{first.index}"
        name = f"tfdist_signed_list_{zlib.crc32(repr(instances).encode())}"
        with (
            tf.Graph().as_default() as graph,
            graph.container("tfdist-between-workers"),  # Not the graph's own.
            tf.device(f"{device}/device:CPU:0"),
        ):
            table = tf.raw_ops.MutableHashTableV2(
                shared_name=name, key_dtype=tf.int64, value_dtype=tf.int64
            )
            self._own = v1.placeholder(tf.int64, [1])  # this worker's place in the list
            self._number = v1.placeholder(tf.int64, [1])
            sign = tf.raw_ops.LookupTableInsertV2(
                table_handle=table, keys=self._own, values=self._number
            )
            with tf.control_dependencies([sign]):
                self._numbers = tf.raw_ops.LookupTableFindV2(  # [instances]
                    table_handle=table,
                    keys=tf.range(len(instances), dtype=tf.int64),
                    default_value=tf.constant(0, tf.int64),
                )
        config = v1.ConfigProto(
            device_filters=[device], operation_timeout_in_ms=int(1000 * _RPC_LIMIT_S)
        )
        self._session = v1.Session(f"grpc://{cluster.address(first)}", graph, config)

    def sign_and_list_late(self, own: int, number: int) -> list[int]:
        """Signs with a number, and returns the places of the workers that have signed less.

        If the server does not answer, that is the first worker.
        """
        try:
            numbers = self._session.run(self._numbers, {self._own: [own], self._number: [number]})
        except _NO_ANSWER:
            return [0]
        return [place for place, signed in enumerate(numbers) if signed < number]

    def __enter__(self) -> _SignedList:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()


def _wait_for(late: Sequence[Member], patience: Patience, worker_is_lost: threading.Event) -> None:
    missing = name_missing(late)
    if patience.is_over():
        raise _absent(missing, patience.limit_s)
    if patience.report_is_due():
        print_to_stderr(waiting_line(missing, patience.waited_s, patience.limit_s))
    if worker_is_lost.wait(_POLL_S):
        raise _absent(missing, patience.waited_s)


def _absent(missing: str, limit_s: float) -> AbsentWorkerError:
    return AbsentWorkerError(
        f"{missing} did not call synchronize() within {limit_s:g} s. Every instance must call it "
        "as often as the others; give it a larger timeout_s if they need longer."
    )
