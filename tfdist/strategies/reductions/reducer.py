"""Reducer: combines values over the replicas of a worker and over the workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfdist.strategies.placement import HOST
from tfdist.strategies.reductions import path
from tfdist.strategies.reductions.collectives import (
    add_replicas,
    all_reduce,
    as_fraction,
    broadcast,
    sent_as,
)
from tfdist.strategies.reductions.contents import note_contents
from tfdist.strategies.reductions.division import Division
from tfdist.strategies.reductions.early_reduction import make_first
from tfdist.strategies.reductions.engine import Collectives, executing_instances
from tfdist.strategies.reductions.path import ReplicaValues, ReplicaWeights
from tfdist.strategies.reductions.slices import Value, is_large

# The name scope of `Reducer.gather_rows`.
GATHERED_ROWS = "gathered_rows"


@dataclass
class Reductions:
    """The reductions that were built into a graph.

    Attributes:
      num_buckets: The number of buckets of dense values.
      num_values: The number of values that replicas or workers combine, dense or not.
      described: Name, dtype and shape of each value, and the half-precision dtype in which it is
        sent, if any; must be equal on all workers, in the same order.
    """

    num_buckets: int = 0
    num_values: int = 0
    described: list[str] = field(default_factory=list)


class Reducer:
    """Combines values over all replicas, on the host.

    Args:
      collectives: The engine between this worker and the others.
      num_replicas: The number of replicas of each worker.
      half: The dtype in which float32 gradients are sent to other workers; None is float32.

    Attributes:
      adds_equal_rows: Whether gathered rows of equal index are added up (`slices.add_equal_rows`).
        Equal on all workers. An Estimator leaves it out where no worker has several threads.
      built: The reductions of the current graph.
    """

    def __init__(self, collectives: Collectives, num_replicas: int, half: tf.DType | None) -> None:
        self.adds_equal_rows = True
        self.built = Reductions()
        self._collectives = collectives
        self._replicas_per_worker = num_replicas
        self._half = half
        self._weights: ReplicaWeights | None = None

    @property
    def collectives(self) -> Collectives:
        """The engine between the workers; in `execute_on_instances`, between those named."""
        instances = executing_instances()
        return self._collectives if instances is None else self._collectives.among(instances)

    @property
    def num_replicas(self) -> int:
        """The number of replicas of all workers."""
        return self.collectives.num_workers * self._replicas_per_worker

    def start_counting(self) -> None:
        self.built = Reductions()

    def describe_messages(self) -> str:
        """Describes, for the log, the messages in which gradients are sent."""
        size, threshold = (
            f"{number / (1 << 20):g} MB"
            for number in (self.collectives.bucket_size_bytes, self.collectives.threshold_bytes)
        )
        sent = "" if self._half is None else f", float32 sent as {self._half.name}"
        return f"bucket size {size}, bucketing threshold {threshold}{sent}"

    def reduce(
        self,
        values: Sequence[ReplicaValues],
        *,
        mean: bool,
        name: str,
        names: Sequence[str] = (),
        adds_equal_rows: bool = True,
    ) -> list[Value]:
        """Combines values, such as losses, over all replicas.

        Args:
          values: For each value, one tensor per replica of this worker, or one that stands for all
            replicas.
          mean: Whether to average rather than to sum.
          name: Prefix of the ops' names.
          names: The name that each value belongs to: values of other names, or in another order,
            are not mixed with each other.
          adds_equal_rows: As in `reduce_gradients`.

        Returns:
          One value per input, of its shape and dtype, on the host. The mean of integers over
          several replicas is a floating-point number.
        """
        if mean and self.num_replicas > 1:
            values = [[as_fraction(part) for part in parts] for parts in values]
        sources, gates = path.ungated(values, self._leaves_early)
        adds = self.adds_equal_rows and adds_equal_rows
        reduced = self._reduce(sources, names, mean, name, None, adds)
        return path.gated(reduced, gates)

    def reduce_gradients(
        self,
        gradients: Sequence[ReplicaValues],
        names: Sequence[str],
        *,
        mean: bool,
        adds_equal_rows: bool = True,
        divisions: Sequence[Division | None] = (),
    ) -> list[Value]:
        """Combines gradients over all replicas, in the order that `path` draws.

        Args:
          gradients: As in `reduce`.
          names: The name of each gradient's variable.
          mean: Whether to average rather than to sum.
          adds_equal_rows: False leaves rows apart. The caller then adds them before any op that
            may add them in another order on each worker.
          divisions: The division of each gradient's variable; empty if none is divided.

        Returns:
          One value per gradient, of its kind, shape and dtype, on the host.
        """
        weights, collectives = self._weights, self.collectives
        values, names, owners = path.split(
            gradients,
            names,
            num_replicas=self.num_replicas,
            threshold_bytes=collectives.threshold_bytes
            if collectives.num_workers > 1
            else math.inf,
        )
        values, gates = path.ungated(values, self._leaves_early)
        dtypes = [parts[0].dtype for parts in values]
        if weights is not None:
            values = weights.weigh(values)
        adds = self.adds_equal_rows and adds_equal_rows
        tables = [divisions[i] for i in owners] if divisions else ()
        reduced = self._reduce(values, names, mean, "all_reduce", self._half, adds, tables)
        if weights is not None:
            reduced = weights.unweigh(reduced, dtypes)
        return path.join(path.gated(reduced, gates), owners)

    def _leaves_early(self, tensor: tf.Tensor) -> bool:
        """Returns whether a value is taken from before its gates."""
        if tf.executing_eagerly():
            return False
        collectives = self.collectives
        leaves = collectives.num_workers > 1 and is_large(tensor, collectives.threshold_bytes)
        return self._weights is not None or leaves

    def _reduce(
        self,
        values: Sequence[ReplicaValues],
        names: Sequence[str],
        mean: bool,
        name: str,
        half: tf.DType | None,
        adds_equal_rows: bool,
        divisions: Sequence[Division | None] = (),
    ) -> list[Value]:
        """Combines the values over this worker's replicas, then over the workers."""
        collectives = self.collectives
        own = [add_replicas(parts, mean=mean) for parts in values]
        self.built.num_values += len(values)
        note_contents(reductions=len(values))
        if collectives.num_workers == 1:
            return own
        described = [_describe(parts[0], half) for parts in values]
        if names:
            described = [f"{n} ({text})" for n, text in zip(names, described, strict=True)]
        self.built.described += described
        make_first([v for v in own if is_large(v, collectives.threshold_bytes)])
        reduced, num_buckets = all_reduce(
            collectives,
            own,
            mean=mean,
            name=name,
            names=names,
            half=half,
            adds_equal_rows=adds_equal_rows,
            divisions=divisions,
        )
        self.built.num_buckets += num_buckets
        return reduced

    def broadcast(self, value: tf.Tensor, name: str, sender: int = 0) -> tf.Tensor:
        """Returns the sending worker's value on every worker, on the host. A collective."""
        if self.collectives.num_workers == 1:
            return value
        return broadcast(self.collectives, value, name=name, sender=sender)

    def gather(self, parts: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
        """Concatenates the values of all replicas along an axis, one worker after the other.

        A collective. On the host where there are several workers. There is one tensor per replica
        of this worker; only the sizes along the axis may differ.
        """
        value = parts[0] if len(parts) == 1 else tf.concat(parts, axis)
        if self.collectives.num_workers == 1:
            return value
        # The engine gathers along axis 0.
        axes = list(range(value.shape.rank))
        order = [axes.pop(axis), *axes]  # The axis may be negative.
        back = [order.index(i) for i in range(value.shape.rank)]
        with tf.device(HOST):
            gathered = self.collectives.gather(tf.transpose(value, order), "gather")
            return tf.transpose(gathered, back)

    def gather_rows(self, rows: tf.Tensor, name: str) -> tf.Tensor:
        """Gathers rows of numbers from all workers, in worker order: one message.

        A collective: every worker must call it, with as many rows and columns.

        Args:
          rows: [rows of this worker, columns]; how many rows is known when the graph is built.
          name: What the rows are; equal on all workers, which the check of models makes sure of.

        Returns:
          [rows of all workers, columns], on the host.
        """
        if self.collectives.num_workers == 1:
            return rows
        # Not counted in `num_values`: gathered rows are no reduced gradients.
        self.built.described.append(f"{name} ({_describe(rows, None)})")
        with tf.device(HOST), tf.name_scope(GATHERED_ROWS):
            gathered = self.collectives.gather(rows, "rows", same_rows=True)
        number, *columns = rows.shape
        gathered.set_shape([number * self.collectives.num_workers, *columns])
        return gathered

    # Weights.

    @property
    def has_weights(self) -> bool:
        """True where the replicas are weighted at present."""
        return self._weights is not None

    @contextmanager
    def weighted(self, weights: Sequence[tf.Tensor]) -> Iterator[None]:
        """Makes the reductions of gradients in the `with` block count each replica by its weight.

        The weights are float32 scalars, not negative, one per replica of this worker. Updates in
        the block are left out in a step with weights of 0 only. In cross-replica context. A
        collective: every worker must call it.

        Raises:
          ValueError: If the block reduces no gradient.
        """
        total = self.reduce([weights], mean=False, name="sum_of_weights")[0]  # []
        self._weights = ReplicaWeights(weights, total, self.num_replicas)
        try:
            yield
            if self._weights.num_weighted == 0:
                raise ValueError(
                    "loss_weight weights the gradients that optimizer.apply_gradients reduces, and "
                    "host_call reduces none. Call apply_gradients of an optimizer there, or wrap "
                    "it: tfdist.training.DistributedOptimizer(optimizer)."
                )
        finally:
            self._weights = None

    def if_counted(self, update: Callable[[], Any]) -> Any:
        """Returns what `update` returns; its ops do not run in a step with weights of 0 only."""
        return update() if self._weights is None else self._weights.if_any(update)


def _describe(value: Value, half: tf.DType | None) -> str:
    suffix = f" as {half.name}" if half is not None and sent_as(value.dtype, half) == half else ""
    return f"{value.dtype.name} {value.shape}{suffix}"
