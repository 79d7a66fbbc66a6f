"""Direct exchange: workers send tensors to each other through queues, in place of gRPC's ring.

TensorFlow's ring collectives copy what they send and receive about six times on the way; a tensor
that one task of a session sends to another is copied once. For 33 MB between two workers the
exchange took 39 ms and the ring 82 (`docs/performance.md`). It is for few workers, whose graph has
a session that sees all of them; the ring stays everywhere else.

Order of events
---------------

1. *Note.* `graph_exchange.may_exchange_directly` decides, before the graph is built. If it allows
   it, `GrpcCollectives.note_collectives()` is called. From then on every collective is built as a
   ring collective with an identity behind it, and noted as a `Collective`. model_fn, optimizer and
   hooks use the identity and know of nothing else:

       gradient --> CollectiveReduce --> Identity --> mean, update rule
       (tensor)                          (result)

2. *Rewire.* When all ops of a step are in the graph, and before its session is opened,
   `GrpcCollectives.exchange_directly()` is called; in an Estimator by the hook that comes after all
   others that reduce something. It adds the ops of the exchange, and gives the identity another
   input. The ring collective has no consumer left, so no session runs it:

       gradient --> CollectiveReduce                           (never run)
              \
               `--> enqueue, dequeue, add --> Identity --> mean, update rule
                                              (result)

   It happens so late because it needs to see the whole graph: all collectives are exchanged or
   none (below), and small sums share a message if none depends on another (`buckets.group_sums`);
   between two workers also the indices of sparse gradients.

3. *Step.* Two workers. A queue stands on the host of the worker that sends; the other one's dequeue
   runs there, and its output crosses the network:

       worker 0                                   worker 1
       --------                                   --------
       g0 is computed                             g1 is computed
       g0 -> queue from_0_to_1                    g1 -> queue from_1_to_0
       g1 <- queue from_1_to_0 <~~~~~~~~~~~~~~~~~~~~~~'
       '~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~> g0 <- queue from_0_to_1
       g0 + g1                                    g0 + g1, in the same order: the same bits

   With more than two workers each sum has an owner, which gets the tensors of all, adds them, and
   puts the sum into a queue on each of the other hosts. Three workers, worker 0 is the owner:

       worker 0                                   worker 1, and worker 2 in the same way
       --------                                   --------
       g0 is computed                             g1 is computed
                                                  g1 -> queue from_1_to_0
       g1 <- queue from_1_to_0 <~~~~~~~~~~~~~~~~~~~~~~'
       g0 + g1 + g2
       '~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~> sum -> queue sum_from_0_to_1
                                                  sum <- queue sum_from_0_to_1

   These are 2 (n - 1) messages for a sum. `assign_owners` gives all workers about as many bytes to
   add, so that each sends and receives 2 (n - 1) / n of all bytes, as in a ring. A tensor that is
   too large for one owner is cut into shares, a reduce-scatter and an all-gather (Thakur et al.,
   "Optimization of Collective Communication Operations in MPICH", 2005): worker i owns share i.
   These are 2 n (n - 1) messages.

All or nothing
--------------

TensorFlow gives a step that runs collectives one step id on all servers. A session that exchanges
has ops on the other servers, and with that id they would get into the other workers' own steps. So
no session call may run both.

Names
-----

A collective's key is a number made from its name (`collectives`), the same on every worker. It
names the queues: `tfdist_<key>_from_0_to_1`, and `tfdist_<key>_sum_from_0_to_1` for the sums.

A worker may end its step while another one still takes from its queues. So no worker may leave
before the others have ended the step; the Estimator's workers leave together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.grpc.containers import exchange_container
from tfdist.strategies.private_tensorflow import replace_input
from tfdist.strategies.reductions import early_reduction

# A worker can be one step ahead of another one and never two: it waits for the other's gradients.
_QUEUE_CAPACITY = 2
# The least size of a share: a message costs about as much as copying this.
_LEAST_SHARE_BYTES = 1 << 20
# Sums of up to this size have an owner over any network.
_FEW_BYTES = 64 << 10


@dataclass(frozen=True, kw_only=True)
class Collective:
    """A collective of a graph.

    Attributes:
      kind: "sum", "gather" or "broadcast" (of the first worker's value).
      tensor: The tensor that this worker contributes.
      result: An identity of the collective's output, which all consumers of the output use.
      key: A name that no other collective of this process has, the same on every worker.
    """

    kind: str
    tensor: tf.Tensor
    result: tf.Tensor
    key: str


@dataclass(frozen=True, kw_only=True)
class DirectExchange:
    """One worker's endpoint of the exchange.

    Attributes:
      hosts: Full names of the workers' host devices, in the workers' order, such as
        "/job:worker/replica:0/task:1/device:CPU:0". A session needs to see them all.
      index: This worker's index in `hosts`.
      on_one_machine: Whether all workers are on one machine; the same on every worker.
    """

    hosts: tuple[str, ...]
    index: int
    on_one_machine: bool = False

    def redirect(self, messages: Sequence[Sequence[Collective]]) -> None:
        """Redirects the consumers of the collectives' outputs to this exchange.

        The collectives themselves are left without consumers. Every worker must call this once,
        before a session is opened.

        Args:
          messages: The collectives of each message. Several are sums of one dtype, with fully known
            shapes; between two workers gathers of [rows] may be with them.
        """
        sizes = {sums[0].key: _num_bytes(sums) for sums in messages if sums[0].kind == "sum"}
        owners = assign_owners(sizes, len(self.hosts), on_one_machine=self.on_one_machine)
        key_of_all = min((piece.key for message in messages for piece in message), default="")
        for message in messages:
            with (
                self._in_place_of(message[0]) as key,
                exchange_container(v1.get_default_graph(), key_of_all),
            ):
                if len(message) > 1 and "gather" in {piece.kind for piece in message}:
                    values = self._sums_and_gathers(message, key)
                elif message[0].kind == "sum":
                    values = self._sums(message, key, owners[message[0].key])
                else:
                    values = [getattr(self, f"_{message[0].kind}")(message[0].tensor, key)]
            for collective, value in zip(message, values, strict=True):
                replace_input(collective.result.op, collective.result.op.inputs[0], value)

    def sums(self, tensors: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Sums tensors of known shapes, each in a message; adds the ops to the current graph.

        Args:
          tensors: The tensors by names of their queues, which are equal on all workers.
        """
        sizes = {key: t.shape.num_elements() * t.dtype.size for key, t in tensors.items()}
        owners = assign_owners(sizes, len(self.hosts), on_one_machine=self.on_one_machine)
        with tf.device(self.hosts[self.index]):
            return {
                key: self._sum(tensor, f"tfdist_{key}", owners[key])
                for key, tensor in tensors.items()
            }

    def _sums(self, sums: Sequence[Collective], key: str, owner: int | None) -> list[tf.Tensor]:
        """Returns the sum of each of the tensors, which travel together."""
        if len(sums) == 1:
            return [self._sum(sums[0].tensor, key, owner)]
        flat = tf.concat([tf.reshape(s.tensor, [-1]) for s in sums], axis=0)  # [elements]
        sizes = [s.tensor.shape.num_elements() for s in sums]
        parts = tf.split(self._sum(flat, key, owner), sizes)
        return [tf.reshape(part, s.tensor.shape) for part, s in zip(parts, sums, strict=True)]

    def _sums_and_gathers(self, message: Sequence[Collective], key: str) -> list[tf.Tensor]:
        """Returns the sums and gathers of one message between two workers.

        The message has the bits of all tensors, behind the number of rows of each gather:

            rows of gather 1    rows of gather 2    sum 1    gather 1    gather 2    sum 2
            4 bytes             4 bytes             the tensors in the order of `message`
        """
        gathers = [piece.tensor for piece in message if piece.kind == "gather"]  # [rows] each
        rows = tf.stack([tf.shape(tensor)[0] for tensor in gathers])  # int32 [gathers]
        parts = [_to_bytes(part) for part in (rows, *(piece.tensor for piece in message))]
        own = tf.concat(parts, axis=0)  # [bytes of this worker]
        both = self._all_to_all([own, own], key)
        with tf.control_dependencies([both[self.index]]):  # Offered, or the other one would wait.
            received = tf.identity(both[1 - self.index])  # [bytes of the other worker]
        header = 4 * len(gathers)
        their_rows = iter(tf.unstack(_to_numbers(received[:header], tf.int32), len(gathers)))
        sizes = [
            (next(their_rows) if piece.kind == "gather" else piece.tensor.shape.num_elements())
            * piece.tensor.dtype.size
            for piece in message
        ]
        _, *parts = tf.split(received, [header, *sizes])
        return [self._combine(one, part) for one, part in zip(message, parts, strict=True)]

    def _combine(self, one: Collective, data: tf.Tensor) -> tf.Tensor:
        """Returns a collective's result, given the bytes of the other one of two workers."""
        other = _to_numbers(data, one.tensor.dtype)  # [elements]
        if one.kind == "sum":
            return one.tensor + tf.reshape(other, one.tensor.shape)
        return tf.concat([one.tensor, other] if self.index == 0 else [other, one.tensor], axis=0)

    @contextmanager
    def _in_place_of(self, collective: Collective) -> Iterator[str]:
        """Adds ops to the graph of a collective; yields the prefix of the queues' names."""
        with (
            collective.tensor.graph.as_default(),
            tf.device(self.hosts[self.index]),
            tf.name_scope(f"{collective.result.op.inputs[0].op.name}_exchanged"),
        ):
            yield f"tfdist_{collective.key}"

    def _sum(self, tensor: tf.Tensor, key: str, owner: int | None) -> tf.Tensor:
        """Adds once for all workers, or on all in the same order: all get the same bits."""
        if owner is not None:
            return self._sum_at(owner, tensor, key)
        elements = tensor.shape.num_elements()
        if len(self.hosts) > 2 and elements is not None:
            return self._sum_by_shares(tensor, key)
        values = self._all_to_all([tensor] * len(self.hosts), key, gradient=tensor)
        for value in values:  # one per worker, each of the tensor's shape
            value.set_shape(tensor.shape)
        return _add_in_order(values)

    def _gather(self, tensor: tf.Tensor, key: str) -> tf.Tensor:
        """Concatenates [own_rows, ...] of each worker to [all_rows, ...]."""
        return tf.concat(self._all_to_all([tensor] * len(self.hosts), key), axis=0)

    def _broadcast(self, tensor: tf.Tensor, key: str) -> tf.Tensor:
        if self.index > 0:
            return self._queue(0, self.index, tensor, key).dequeue()
        others = range(1, len(self.hosts))
        offers = [self._queue(0, i, tensor, key).enqueue(tensor) for i in others]
        with tf.control_dependencies(offers):
            return tf.identity(tensor)

    def _sum_at(self, owner: int, tensor: tf.Tensor, key: str) -> tf.Tensor:
        """Sums a tensor on one worker, which sends the sum to the others.

        Its queues are on the hosts of those, so their sessions have no ops on the owner's host.
        """
        if self.index != owner:
            offer = self._queue(self.index, owner, tensor, key).enqueue(tensor)
            early_reduction.wait_for_offers(tensor, [offer])
            with tf.control_dependencies([offer]):
                queue = self._queue(owner, self.index, tensor, f"{key}_sum", on=self.index)
                total = queue.dequeue()
            total.set_shape(tensor.shape)
            return total
        values = [tensor] * len(self.hosts)
        others = [i for i in range(len(self.hosts)) if i != owner]
        for i in others:
            values[i] = self._queue(i, owner, tensor, key).dequeue()
            values[i].set_shape(tensor.shape)
        total = tf.add_n(values)
        sent = []
        for i in others:
            with tf.device(self.hosts[i]):
                queue = self._queue(owner, i, tensor, f"{key}_sum", on=i)
                sent.append(queue.enqueue(total))
        with tf.control_dependencies(sent):
            return tf.identity(total)

    def _sum_by_shares(self, tensor: tf.Tensor, key: str) -> tf.Tensor:
        """Sums one share on each worker, then gathers the sums."""
        count, elements = len(self.hosts), tensor.shape.num_elements()
        size = -(-elements // count)  # Rounded up; the last shares may be smaller, or empty.
        sizes = [max(0, min(size, elements - i * size)) for i in range(count)]
        shares = tf.split(tf.reshape(tensor, [-1]), sizes)  # [sizes[i]] for worker i
        own = self._all_to_all(shares, key, gradient=tensor)
        for share in own:  # this worker's share, as each worker has it
            share.set_shape([sizes[self.index]])
        sums = self._all_to_all([tf.add_n(own)] * count, f"{key}_sum")  # [sizes[i]] of worker i
        return tf.reshape(tf.concat(sums, axis=0), tensor.shape)

    def _all_to_all(
        self, tensors: Sequence[tf.Tensor], key: str, *, gradient: tf.Tensor | None = None
    ) -> list[tf.Tensor]:
        """Sends each worker its tensor, and receives one tensor from each.

        The tensor at this worker's index stays here. A gradient that the tensors are made of is
        sent before the backward pass goes on (see `early_reduction`). What is received has the
        shape that this worker's tensor has there.
        """
        others = [i for i in range(len(self.hosts)) if i != self.index]
        offers = [self._queue(self.index, i, tensors[i], key).enqueue(tensors[i]) for i in others]
        if gradient is not None:
            early_reduction.wait_for_offers(gradient, offers)
        received = list(tensors)
        # A worker that only received would let the others wait.
        with tf.control_dependencies(offers):
            received[self.index] = tf.identity(tensors[self.index])
        for i in others:
            received[i] = self._queue(i, self.index, tensors[i], key).dequeue()
        return received

    def _queue(
        self, source: int, target: int, like: tf.Tensor, key: str, on: int | None = None
    ) -> tf.queue.FIFOQueue:
        """Returns the queue from one worker to another, on the host of the first or of `on`."""
        with tf.device(self.hosts[source if on is None else on]):
            return tf.queue.FIFOQueue(
                _QUEUE_CAPACITY,
                [like.dtype],
                shared_name=f"{key}_from_{source}_to_{target}",
                name=f"from_{source}_to_{target}",
            )


def _to_bytes(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the bits of a tensor, uint8 [bytes]."""
    return tf.reshape(tf.bitcast(tensor, tf.uint8), [-1])


def _to_numbers(data: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns the numbers whose bits `_to_bytes` has returned, [numbers]."""
    return tf.bitcast(tf.reshape(data, [-1, dtype.size]), dtype)


def _num_bytes(sums: Sequence[Collective]) -> int | None:
    elements = [total.tensor.shape.num_elements() for total in sums]
    if None in elements:
        return None
    return sum(elements) * sums[0].tensor.dtype.size


def assign_owners(
    sizes: Mapping[str, int | None], num_workers: int, *, on_one_machine: bool
) -> dict[str, int | None]:
    """Chooses the worker that adds up each sum, so that all send about as much.

    Args:
      sizes: The bytes of each sum by its key; None where they are not known. Equal on all workers.
      num_workers: The number of workers.
      on_one_machine: Whether all workers are on one machine, where only the number of messages and
        of bytes counts. A network's links are as busy as that of the busiest worker.

    Returns:
      The owner of each sum; None for a sum that all workers add, or of which each adds a share.
    """
    owners: dict[str, int | None] = dict.fromkeys(sizes)
    if num_workers == 2:
        return owners
    known = {key: size for key, size in sizes.items() if size is not None}
    most = num_workers * _LEAST_SHARE_BYTES
    if not on_one_machine:
        most = min(most, max(_FEW_BYTES, sum(known.values()) // num_workers))
    loads = [0] * num_workers
    for key in sorted(known, key=lambda key: (-known[key], key)):
        if known[key] <= most:
            owners[key] = owner = loads.index(min(loads))
            loads[owner] += known[key]
    return owners


def _add_in_order(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Adds tensors of one shape in an order that is the same on every worker.

    Grappler orders the inputs of an addition of three or more by the names of their ops, which
    differ between workers.
    """
    if len(tensors) == 2:
        return tensors[0] + tensors[1]
    return tf.reduce_sum(tf.stack(tensors), axis=0)  # of [workers, ...]
