"""Large sums of tf.functions, exchanged directly by sessions in place of TensorFlow's ring.

A tf.function has no ops on other workers. It can send by TensorFlow's ring alone, which copies what
it sends about six times. A session on the same server can exchange directly (`direct_exchange`),
and shares the server's queues with functions. So a thread of each worker runs a session that takes
a function's gradients from queues, adds those of all workers, and gives the sums back:

    function of worker 0       server's queues         session of worker 0       worker 1
    --------------------       ---------------         -------------------       --------
    g0 is computed  -------->  own: g0  ------------>  g0 is offered  ~~~~~~~~>  does the same
    backward pass goes on                              g1 is taken    <~~~~~~~~
    update  <----------------  total: g0 + g1  <-----  g0 + g1

Queues let functions and sessions wait without holding one of TensorFlow's threads. The gradients
that a function reduces in one place are a *group*, which has a thread; one call of its session
exchanges them once. Before the call the thread waits for the first gradient, on its own server
alone. So no call to another worker is on its way between two steps:

    function    | backward pass              | update |          | backward pass
    thread      | waits   | exchanges                 | waits            | exchanges

A session's error comes out of the function that waits for the sums. What a failed function leaves
in the queues would be taken for gradients of the next step: `abandon_step` closes them then, so
that a later call fails, and a function that is traced later takes the ring.
"""

from __future__ import annotations

import atexit
import hashlib
import itertools
import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakSet

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.process.endings import ending_error
from tfdist.strategies.grpc.direct_exchange import DirectExchange
from tfdist.strategies.lost_workers import OWN_GRADIENTS
from tfdist.strategies.private_tensorflow import run_independently
from tfdist.strategies.reductions import early_reduction
from tfdist.strategies.reductions.contents import graphs_around

# A smaller message takes as long in the ring.
LEAST_BYTES = 2 << 20

_CONTAINER = "tfdist-functions"
_QUEUE_CAPACITY = 4  # At most two places are used at once, so that none waits for one.
_STEP, _END = 0, 1  # What the thread finds in its queue.
_CLOSE_LIMIT_S = 10.0
_SETTLE_LIMIT_S = 1.0  # In which an exchange ends whose sums have all come.

_numbers = itertools.count(1)


@dataclass(frozen=True)
class _Queue:
    """A queue of this worker's server; eagerly, in a function and in a graph."""

    name: str
    dtypes: tuple[tf.DType, ...]

    def put(self, *tensors: tf.Tensor) -> tf.Operation:
        return tf.raw_ops.QueueEnqueueV2(handle=self._handle(), components=tensors)

    def take(self) -> list[tf.Tensor]:
        taken: list[tf.Tensor] = tf.raw_ops.QueueDequeueV2(
            handle=self._handle(), component_types=self.dtypes
        )
        return taken

    def close(self) -> None:
        """Makes those fail who put something into it, or wait for something."""
        tf.raw_ops.QueueCloseV2(handle=self._handle(), cancel_pending_enqueues=True)

    def size(self) -> int:
        return int(tf.raw_ops.QueueSizeV2(handle=self._handle()))

    def _handle(self) -> tf.Tensor:
        handle = tf.raw_ops.FIFOQueueV2(
            component_types=self.dtypes,
            capacity=_QUEUE_CAPACITY,
            container=_CONTAINER,
            shared_name=self.name,
        )
        if not tf.executing_eagerly():
            run_independently(handle.op)
        return handle


class FunctionExchange:
    """The exchange of this worker's functions. Every worker makes one.

    Args:
      endpoint: This worker's endpoint of the exchange.
      target: The target of sessions on this worker's server.
      filters: The device filter of each worker.
    """

    def __init__(self, endpoint: DirectExchange, target: str, filters: Sequence[str]) -> None:
        self._endpoint = endpoint
        self._target = target
        self._filters = filters
        self._groups: dict[Hashable, _Group] = {}
        self._is_abandoned = False

    def sums(self, tensors: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
        """Sums tensors over the workers in the function that is being traced.

        Args:
          tensors: The tensor of each message by the message's name, of known shapes, those first
            that are computed first. Names, shapes and dtypes are equal on all workers.

        Returns:
          The sum of each, of the same shape and dtype; empty once a step has been abandoned.
        """
        if self._is_abandoned:
            return []
        with tf.device(self._endpoint.hosts[self._endpoint.index]):
            return self._group_of(tensors).sums(tensors)

    def abandon_step(self) -> None:
        """Makes the functions fail that are called later, if one that has failed had sent."""
        if any(group.is_on_the_way() for group in self._groups.values()):
            self._is_abandoned = True
            for group in self._groups.values():
                group.abandon()

    def _group_of(self, tensors: Mapping[str, tf.Tensor]) -> _Group:
        """Returns the group of these messages; another trace of a function has the same."""
        if not self._groups:
            atexit.register(self._end)  # Before the watch over the workers lets them leave.
        key = frozenset((name, t.dtype.name, tuple(t.shape)) for name, t in tensors.items())
        if key not in self._groups:
            for unused in [k for k, group in self._groups.items() if not group.users]:
                self._groups.pop(unused).end()
            self._groups[key] = _Group(self._endpoint, self._target, self._filters, tensors)
        self._groups[key].users.update(graphs_around(v1.get_default_graph()))
        return self._groups[key]

    def _end(self) -> None:
        """Closes the sessions while the other workers are there."""
        if ending_error() is not None or self._is_abandoned:
            return
        for group in self._groups.values():
            group.end()
        for group in self._groups.values():
            group.join(_CLOSE_LIMIT_S)


class _Group:
    """The gradients that a function reduces in one place, and the thread that exchanges them.

    Args:
      endpoint: This worker's endpoint of the exchange.
      target: The target of sessions on this worker's server.
      filters: The device filter of each worker.
      tensors: One tensor of each message, by the message's name.

    Attributes:
      users: The graphs of the functions that reduce these gradients.
    """

    def __init__(
        self,
        endpoint: DirectExchange,
        target: str,
        filters: Sequence[str],
        tensors: Mapping[str, tf.Tensor],
    ) -> None:
        self.users: WeakSet[tf.Graph] = WeakSet()
        self._endpoint = endpoint
        self._target = target
        self._filters = filters
        self._shapes = {name: tensor.shape for name, tensor in tensors.items()}
        # Its queues are of this worker alone, and no later group has them.
        group = next(_numbers)
        self._begin = _Queue(f"tfdist-begin-{group}", (tf.int32,))
        self._own, self._totals = {}, {}
        for number, (name, tensor) in enumerate(tensors.items()):
            self._own[name] = _Queue(f"{OWN_GRADIENTS}-{group}-{number}", (tensor.dtype,))
            total_name = f"tfdist-total-{group}-{number}"
            self._totals[name] = _Queue(total_name, (tf.string, tensor.dtype))
        self._is_abandoned = False
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._thread = threading.Thread(target=self._serve, name="tfdist-exchange", daemon=True)
        self._thread.start()

    def sums(self, tensors: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
        """Adds the ops of one exchange to the function that is being traced."""
        results: list[tf.Tensor] = []
        for name, tensor in tensors.items():
            offer = self._own[name].put(tensor)
            early_reduction.wait_for_offers(tensor, [offer])
            independent = [offer]
            with tf.control_dependencies([offer]):
                if not results:
                    independent.append(self._begin.put(tf.constant(_STEP)))
                error, total = self._totals[name].take()
            is_sum = tf.equal(error, "")
            independent += [error.op, tf.raw_ops.Assert(condition=is_sum, data=[error])]
            for op in independent:
                run_independently(op)
            with tf.control_dependencies(independent[-1:]):
                results.append(tf.identity(total))
            results[-1].set_shape(tensor.shape)
        return results

    def is_on_the_way(self) -> bool:
        """Returns whether gradients of a step, or their sums, have not come to their function."""
        if self._is_abandoned:
            return False
        self._is_idle.wait(_SETTLE_LIMIT_S)
        with tf.init_scope(), self._on_host():
            queues = (self._begin, *self._own.values(), *self._totals.values())
            is_left = any(queue.size() for queue in queues)
        return is_left or not (self._is_idle.is_set() and self._thread.is_alive())

    def end(self) -> None:
        """Ends the thread, once it does not exchange any more."""
        with tf.init_scope(), self._on_host():
            self._begin.put(tf.constant(_END))

    def abandon(self) -> None:
        """Ends the thread; a function that reduces these gradients fails from now on."""
        self._is_abandoned = True
        with tf.init_scope(), self._on_host():
            for queue in self._own.values():
                queue.close()
        self.end()

    def join(self, limit_s: float) -> None:
        self._thread.join(limit_s)

    def _on_host(self) -> tf.device:
        return tf.device(self._endpoint.hosts[self._endpoint.index])

    def _serve(self) -> None:
        try:
            self._exchange_each_step()
        except Exception as error:  # Of any kind: the function waits for an answer.
            if self._is_abandoned:
                return
            with self._on_host():
                for queue in self._totals.values():
                    nothing = tf.zeros([0], queue.dtypes[1])
                    queue.put(tf.constant(str(error)), nothing)

    def _exchange_each_step(self) -> None:
        index = self._endpoint.index
        with tf.Graph().as_default() as own_graph, self._on_host():
            (begun,) = self._begin.take()
        with tf.Graph().as_default() as graph, self._on_host(), graph.container(_CONTAINER):
            own = {name: queue.take()[0] for name, queue in self._own.items()}
            for name, tensor in own.items():
                tensor.set_shape(self._shapes[name])
            keys = {name: _key(name, tensor.dtype) for name, tensor in own.items()}
            sums = self._endpoint.sums({keys[name]: tensor for name, tensor in own.items()})
            given = [
                queue.put(tf.constant(""), sums[keys[name]]) for name, queue in self._totals.items()
            ]
        with (
            self._session(own_graph, self._filters[index : index + 1]) as alone,
            self._session(graph, self._filters) as with_others,
        ):
            wait, exchange = alone.make_callable(begun), with_others.make_callable(given)
            while wait() != _END:
                self._is_idle.clear()
                exchange()
                self._is_idle.set()

    def _session(self, graph: tf.Graph, filters: Sequence[str]) -> v1.Session:
        config = v1.ConfigProto(device_filters=filters)
        return v1.Session(self._target, graph=graph, config=config)


def _key(name: str, dtype: tf.DType) -> str:
    """Returns the name of the queues between workers, which later messages of the name share."""
    return hashlib.sha256(f"{name} {dtype.name}".encode()).hexdigest()[:16]
