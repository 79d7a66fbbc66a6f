"""GrpcCollectives: TensorFlow's ring collectives between the servers of a cluster.

For few workers `exchange_directly` replaces the rings of a finished graph by a direct exchange; the
order of events is drawn in `direct_exchange`.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.dialect import is_tensorflow_2
from tfdist.strategies.grpc import ops as grpc_ops
from tfdist.strategies.grpc.direct_exchange import Collective, DirectExchange
from tfdist.strategies.grpc.function_exchange import LEAST_BYTES, FunctionExchange
from tfdist.strategies.reductions.buckets import Sum, find_dependencies, group_sums
from tfdist.strategies.reductions.compression import from_copied, to_copied
from tfdist.strategies.reductions.early_reduction import is_outside
from tfdist.strategies.reductions.engine import Collectives, NoCollectives, Routes
from tfdist.strategies.reductions.message_names import message_name
from tfdist.strategies.reductions.slices import is_large

# A message costs about as much as copying 1 MB into a bucket and out again.
_BUCKET_SIZE_BYTES = 1 << 20
_THRESHOLD_BYTES = 512 << 10
# n workers send 2 (n - 1) messages for a bucket and make n copies of it. So from three workers on
# larger buckets are better, and larger gradients are worth a copy.
_LARGE_BUCKET_SIZE_BYTES = 4 << 20
_LARGE_THRESHOLD_BYTES = 1 << 20
# A slice of a vector shares its memory where it begins and ends at multiples of 64 bytes.
_ALIGNED_ELEMENTS = 16

# The rows of a part of an exchange are a multiple of this.
_ROWS_STEP = 64

# A message of gRPC ends at 2 GB, with what protobuf puts around its tensor.
_PIECE_SIZE_BYTES = 1 << 30

_ALL_WORKERS = 1  # The key of the group of all workers.
# The keys of this process's collectives. A server remembers them, so none is used twice.
_keys: set[int] = set()
# Of each group of workers: its newest training, and how often a name has been used in that.
_trainings: Counter[int] = Counter()
_counts: defaultdict[int, Counter[str]] = defaultdict(Counter)


class GrpcCollectives:
    """TensorFlow's ring collectives between the servers of a cluster.

    The key of a collective is made from its name and name scope, so workers may build their
    collectives in different orders. The same name in a later graph gets another key. The key of the
    group of workers is equal in all its members.
    """

    piece_size_bytes = _PIECE_SIZE_BYTES

    def __init__(self, num_workers: int, worker_index: int, group_key: int = _ALL_WORKERS) -> None:
        self.num_workers = num_workers
        self.worker_index = worker_index
        is_large = num_workers > 2
        self.bucket_size_bytes = _LARGE_BUCKET_SIZE_BYTES if is_large else _BUCKET_SIZE_BYTES
        self.threshold_bytes = _LARGE_THRESHOLD_BYTES if is_large else _THRESHOLD_BYTES
        self._group_key = group_key
        # The exchange of TensorFlow 2's functions; None sends all in a ring.
        self.functions: FunctionExchange | None = None
        # The collectives of the graph that is being built; None while none are noted.
        self._noted: list[Collective] | None = None

    @property
    def newest_training(self) -> int:
        return _trainings[self._group_key]

    def begin_training(self, number: int) -> None:
        _trainings[self._group_key] = number
        _counts[self._group_key].clear()

    def note_collectives(self) -> None:
        """Notes the collectives that are built from now on, for `exchange_directly`."""
        self._noted = []

    @property
    def can_exchange_directly(self) -> bool:
        """True if collectives are noted, and all are outside functions, loops and branches."""
        noted = self._noted or []
        return bool(noted) and all(is_outside(collective.result.op) for collective in noted)

    def exchange_directly(
        self,
        endpoint: DirectExchange,
        needed: Sequence[tf.Tensor | tf.Operation] = (),
    ) -> None:
        """Replaces the noted collectives by a direct exchange between the workers.

        Sessions of the graph must see all workers. Nothing is changed if a collective is inside a
        function, a loop or a branch.

        Args:
          endpoint: This worker's endpoint of the exchange.
          needed: Tensors and operations that every step runs, on every worker: the small sums, and
            indices of sparse gradients, that these depend on share a message.
        """
        noted = (self._noted or []) if self.can_exchange_directly else []
        self._noted = None
        together = _in_shared_messages(noted, needed, self.num_workers)
        alone = [[number] for number in sorted(set(range(len(noted))).difference(*together))]
        endpoint.redirect([[noted[n] for n in numbers] for numbers in [*together, *alone]])

    def _note(self, kind: str, tensor: tf.Tensor, result: tf.Tensor, key: int) -> tf.Tensor:
        if self._noted is None:
            return result
        result = tf.identity(result)
        self._noted.append(Collective(kind=kind, tensor=tensor, result=result, key=str(key)))
        return result

    def among(self, instances: tuple[int, ...]) -> Collectives:
        if len(instances) == 1:
            return NoCollectives()
        index = instances.index(self.worker_index)
        return GrpcCollectives(len(instances), index, _group_key(instances))

    def sum(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        if len(tensors) == 1:
            return [self._in_pieces(self._reduce, tensors[0], name)]
        # Those of aligned sizes first, so that most slices of the sum need no copy.
        order = sorted(range(len(tensors)), key=lambda i: not _is_aligned(tensors[i]))
        flat = tf.concat([tf.reshape(tensors[i], [-1]) for i in order], axis=0)  # [elements]
        total, start, sums = self._reduce(flat, name), 0, list(tensors)
        for i in order:
            # Numbers rather than tensors where the shape is known: fewer ops.
            size = tensors[i].shape.num_elements()
            size = tf.size(tensors[i]) if size is None else size
            sums[i] = tf.reshape(tf.slice(total, [start], [size]), tf.shape(tensors[i]))
            start += size
        return sums

    def sum_directly(
        self, tensors: Sequence[tf.Tensor], names: Sequence[str]
    ) -> list[tf.Tensor | None]:
        found: list[tf.Tensor | None] = [None] * len(tensors)
        if self.functions is None or tf.executing_eagerly() or not is_tensorflow_2():
            return found
        large = [
            number
            for number, tensor in enumerate(tensors)
            if is_large(tensor, LEAST_BYTES) and not is_large(tensor, self.piece_size_bytes)
        ]
        if large:
            # Messages of one name get numbers, so that no two have one key.
            sums = self.functions.sums({message_name(names[n]): tensors[n] for n in large})
            for number, total in zip(large, sums, strict=False):  # None after a failed step.
                found[number] = total
        return found

    def gather(self, tensor: tf.Tensor, name: str, *, same_rows: bool = False) -> tf.Tensor:
        """Sums tensors of zeros in which each worker has filled in its own rows.

        TensorFlow's own gather needs equal shapes, and crashes on empty ones. Adding zeros is
        exact.
        """
        if same_rows and tensor.shape.num_elements():
            return self._gather_same_rows(tensor, name)
        own_rows = tf.shape(tensor)[0]  # []
        is_own = tf.one_hot(self.worker_index, self.num_workers, dtype=tf.int32)  # [workers]
        rows, _ = self._ring_sum(is_own * own_rows, f"{name}_rows")  # [workers]
        before = tf.reduce_sum(rows[: self.worker_index])
        after = tf.reduce_sum(rows[self.worker_index + 1 :])
        inner = [[0, 0]] * (tensor.shape.rank - 1)
        padded = tf.pad(tensor, [[before, after], *inner])  # [all_rows, ...]
        # Noted is the gather, and not the two sums that it is made of.
        return self._note("gather", tensor, *self._ring_sum(padded, name))

    def _gather_same_rows(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        rows, *inner = tensor.shape.as_list()
        if is_tensorflow_2():
            gathered = grpc_ops.gather(to_copied(tensor), self.num_workers, self._group_key, name)
            return from_copied(gathered, tensor.dtype)
        key = _new_key(self._group_key, name)
        # [workers * rows, ...]
        gathered = tf.raw_ops.CollectiveGather(
            input=to_copied(tensor),
            shape=[self.num_workers * rows, *inner],
            **self._arguments(key, name),
        )
        return self._note("gather", tensor, from_copied(gathered, tensor.dtype), key)

    def exchange(self, rows: tf.Tensor, routes: Routes, name: str) -> tuple[tf.Tensor, Routes]:
        """Sends rows in parts of one size, as TensorFlow's collective has them, padded with zeros.

        In a graph each worker gets the rows of all, and takes its own.
        """
        index, count = self.worker_index, self.num_workers
        # [workers, workers]: the rows that worker i sends to worker j.
        if not is_tensorflow_2():
            sizes = self.gather(routes.sent[tf.newaxis], f"{name}_sizes", same_rows=True)
            sizes.set_shape([count, count])
            rows_of_all = self.gather(rows, name)  # [rows of all, ...]
            is_own = tf.tile(tf.one_hot(index, count, True, False), [count])  # [workers * workers]
            is_own = tf.repeat(is_own, tf.reshape(sizes, [-1]))  # [rows of all]
            own = tf.boolean_mask(rows_of_all, is_own)
            own.set_shape([None, *rows.shape[1:]])
            return own, Routes(routes.sent, sizes[:, index])
        received, most = routes.received, routes.most
        if received is None or most is None:
            sizes = self.gather(routes.sent[tf.newaxis], f"{name}_sizes", same_rows=True)
            received, most = sizes[:, index], _rounded_up(tf.reduce_max(sizes))
        is_sent = tf.sequence_mask(routes.sent, most)  # [workers, most]
        inner = tf.shape(rows)[1:]
        padded = tf.tensor_scatter_nd_update(
            tf.zeros(tf.concat([[count, most], inner], 0), rows.dtype), tf.where(is_sent), rows
        )  # [workers, most, ...]
        padded.set_shape([count, None, *rows.shape[1:]])
        got = grpc_ops.all_to_all(to_copied(padded), count, self._group_key, name)
        own = tf.boolean_mask(from_copied(got, rows.dtype), tf.sequence_mask(received, most))
        return own, Routes(routes.sent, received, most)

    def broadcast(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        return self._in_pieces(self._broadcast, tensor, name)

    def _in_pieces(
        self, send: Callable[[tf.Tensor, str], tf.Tensor], tensor: tf.Tensor, name: str
    ) -> tf.Tensor:
        """Sends a tensor in several collectives if it is larger than a message may be.

        A tensor of unknown size is sent in one.
        """
        size, num_elements = self.piece_size_bytes // tensor.dtype.size, tensor.shape.num_elements()
        if num_elements is None or num_elements <= size:
            return send(tensor, name)
        sizes = [min(size, num_elements - start) for start in range(0, num_elements, size)]
        pieces = tf.split(tf.reshape(tensor, [-1]), sizes)
        results = [send(piece, f"{name}_piece_{i}") for i, piece in enumerate(pieces)]
        return tf.reshape(tf.concat(results, axis=0), tensor.shape)

    def _broadcast(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        if is_tensorflow_2():
            is_sender = self.worker_index == 0
            return grpc_ops.broadcast(tensor, is_sender, self.num_workers, self._group_key, name)
        key = _new_key(self._group_key, name)
        arguments = {"shape": tensor.shape, **self._arguments(key, name)}
        if self.worker_index > 0:
            result = tf.raw_ops.CollectiveBcastRecv(T=tensor.dtype, **arguments)
        else:
            result = tf.raw_ops.CollectiveBcastSend(input=tensor, **arguments)
        return self._note("broadcast", tensor, result, key)

    def _reduce(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        return self._note("sum", tensor, *self._ring_sum(tensor, name))

    def _ring_sum(self, tensor: tf.Tensor, name: str) -> tuple[tf.Tensor, int]:
        """Returns the sum over the workers, of the shape of `tensor`, and its key."""
        if is_tensorflow_2():
            return grpc_ops.add(tensor, self.num_workers, self._group_key, name), 0
        key = _new_key(self._group_key, name)
        total = tf.raw_ops.CollectiveReduce(
            input=tensor,
            merge_op="Add",
            final_op="Id",
            subdiv_offsets=[0],
            **self._arguments(key, name),
        )
        return total, key

    def _arguments(self, key: int, name: str) -> dict[str, Any]:
        """Returns the arguments that all of TensorFlow's collectives have."""
        return {
            "group_size": self.num_workers,
            "group_key": self._group_key,
            "instance_key": key,
            "communication_hint": "ring",
            "name": name,
        }


def _rounded_up(rows: tf.Tensor) -> tf.Tensor:
    """Returns a larger number, one of few: a server keeps the key of each shape."""
    return (rows // _ROWS_STEP + 1) * _ROWS_STEP


def _is_aligned(tensor: tf.Tensor) -> bool:
    elements = tensor.shape.num_elements()
    return elements is not None and elements % _ALIGNED_ELEMENTS == 0


def _new_key(group_key: int, name: str) -> int:
    """Returns the key of a collective that is about to be added to the current graph."""
    own_name = tf.compat.v1.get_default_graph().unique_name(name, False)
    counts = _counts[group_key]
    counts[own_name] += 1
    full_name = f"{group_key} {own_name} {_trainings[group_key]} {counts[own_name]}"
    key = zlib.crc32(full_name.encode()) & 0x7FFFFFFF
    while key in _keys:
        key = (key + 1) & 0x7FFFFFFF
    _keys.add(key)
    return key


def _in_shared_messages(
    noted: Sequence[Collective], needed: Sequence[tf.Tensor | tf.Operation], num_workers: int
) -> list[list[int]]:
    """Returns the numbers of the collectives that share a message.

    These are small sums and, between two workers, the indices of sparse gradients, whose rows are
    a message by themselves. Indices belong to the float32 sums: every step of the Estimator has
    one, that of the agreement.
    """
    if not (noted and needed):
        return []
    results = [collective.result for collective in noted]
    tensors = [collective.tensor for collective in noted]
    found = find_dependencies(noted[0].result.graph, results, [*needed, *tensors])
    of_needed, of_tensors = found[: len(needed)], found[len(needed) :]
    every_step = frozenset().union(*of_needed)
    sums = {}
    for number, (collective, depends_on) in enumerate(zip(noted, of_tensors, strict=True)):
        elements, dtype = collective.tensor.shape.num_elements(), collective.tensor.dtype
        if number not in every_step:
            continue
        if collective.kind == "sum" and elements is not None:
            num_bytes = elements * dtype.size
            sums[number] = Sum(dtype=dtype.name, num_bytes=num_bytes, depends_on=depends_on)
        elif num_workers == 2 and collective.kind == "gather" and _are_indices(collective.tensor):
            sums[number] = Sum(dtype=tf.float32.name, num_bytes=0, depends_on=depends_on)
    return group_sums(sums)


def _are_indices(tensor: tf.Tensor) -> bool:
    return tensor.shape.rank == 1 and bool(tensor.dtype.is_integer)


def _group_key(instances: tuple[int, ...]) -> int:
    """Returns the key of a group: equal in all members, another one per group, below 2^31."""
    return zlib.crc32(repr(instances).encode()) % (2**31 - 2) + 2
