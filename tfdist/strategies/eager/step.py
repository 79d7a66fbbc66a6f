"""The step of TensorFlow 2 that this process traces or executes, and what is known of it.

Keras and TensorFlow call code of a strategy without naming the step: a metric assigns a variable, a
loss is scaled, an optimizer applies gradients. That code looks here. There is one object, `NOW`:

    who sets it                                  attribute     who reads it
    keras.fit.fit_run, around a `fit`            fit           keras: callbacks, input, models
    keras.models, around a train, test or        step          keras: losses, optimizers, results;
      predict function                                           eager.replica_variable
    run_step, around the replicas' code          is_running    eager.dialect
    replica_variable.reads_own, reads_combined   reads         eager.replica_variable
    keras.fit_profile                            has_profiled  keras.fit_profile

A replica's rows are its share of the global batch. The sum of the rows of all is one message, which
the forward pass does not wait for. A replica may have no row: its share is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.placement import HOST
from tfdist.strategies.private_tensorflow import is_inside_control_flow
from tfdist.strategies.reductions.reducer import Reducer
from tfdist.strategies.values.replica_context import is_in_replica, replica_in_worker


class StepResults(Protocol):
    """The receiver of what the replicas of a step return.

    Attributes:
      has_message: Whether numbers of this worker travel with a train step's gradients.
    """

    has_message: bool

    def begin(self) -> None:
        """Notes the begin of the replicas' code."""

    def __call__(self, results: Any) -> Any:
        """Combines what the replicas' steps of this worker have returned; may be a collective."""

    def count(self, rows: Sequence[tf.Tensor]) -> None:
        """Counts the rows of each replica of this worker in a train step: int32 scalars."""

    def message(self) -> tf.Tensor:
        """Returns this worker's numbers that travel with the gradients."""

    def receive(self, sums: tf.Tensor) -> None:
        """Takes the sums of the messages over the workers."""


@dataclass(frozen=True)
class LossCall:
    """A call that is running, in which losses are computed; see `keras.losses`.

    Attributes:
      takes_contribution: Whether the code takes a contribution to the loss of all rows, rather than
        a loss of the replica's own rows.
      loss: The loss that is called; None for a method of a model.
      is_container: Whether this is tf_keras' container of all losses, which updates their metrics.
      num_operations: The operations of the graph before the call; None if the loss is not searched.
    """

    takes_contribution: bool
    loss: Any = None
    is_container: bool = False
    num_operations: int | None = None


@dataclass(frozen=True)
class Assignment:
    """An assignment of a replica's code to a variable whose values add up over the replicas.

    Attributes:
      variable: The variable.
      value: The value that it gets, or that is added.
      is_added: Whether `assign_add` was called.
    """

    variable: tf.Variable
    value: Any
    is_added: bool


@dataclass
class ReplicaLosses:
    """The losses that a replica computes in a step; see `keras.losses`.

    Attributes:
      calls: The calls that are running, the innermost last.
      has_scaled: Whether Keras has divided a loss by what all replicas have together.
      contributions: The values that Keras has made of contributions, for metrics of losses.
      targets: The values that the program has differentiated, and that Keras has not scaled.
    """

    calls: list[LossCall] = field(default_factory=list)
    has_scaled: bool = False
    contributions: list[Any] = field(default_factory=list)
    targets: list[Any] = field(default_factory=list)


@dataclass
class KerasStep:
    """A step of a Keras model, or as many steps as a call of its function makes.

    Attributes:
      is_training: Whether it updates the model, rather than evaluates or predicts.
      has_loss: Whether it has a loss: it trains or evaluates.
      rows_may_differ: Whether rows are counted though their number is known: workers may not agree.
      results: The receiver of the replicas' results; None leaves them as they are.
      sends_message: Whether a message waits for the first gradients of the step.
      graph: The graph that the step is part of.
      num_replicas: The number of replicas of all workers.
      rows: int32 scalars, the rows of each replica of this worker; None where all have as many.
      shares: float32 scalars, each replica's share of the rows of all; None where all have as many.
      total_rows: float32 scalar, the rows of all replicas; None if no tensor of the batch has rows.
      losses: The losses of each replica of this worker.
      assignments: The replicas' assignments to variables that add up over the replicas.
      notes: Lines to log of the step, such as that a loss sees the rows of a replica alone.
    """

    is_training: bool = False
    has_loss: bool = True
    rows_may_differ: bool = False
    results: StepResults | None = None
    sends_message: bool = False
    graph: tf.Graph | None = None
    num_replicas: int = 1
    rows: Sequence[tf.Tensor] | None = None
    shares: Sequence[tf.Tensor] | None = None
    total_rows: tf.Tensor | None = None
    losses: Sequence[ReplicaLosses] = ()
    assignments: list[Assignment] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)

    def begin(self, batches: Sequence[Any], reducer: Reducer) -> None:
        """Notes the begin of the replicas' code; each has a batch. See `_count` for its message."""
        self.graph = v1.get_default_graph()
        self.sends_message = (
            self.is_training and self.results is not None and self.results.has_message
        )
        if self.results is not None:
            self.results.begin()
        self.num_replicas = reducer.num_replicas
        self.rows = self.shares = self.total_rows = None
        self.losses = [ReplicaLosses() for _ in range(max(1, len(batches)))]
        self.assignments = []
        firsts = [first_tensor(batch) for batch in batches]
        if all(first is not None for first in firsts):
            self._count(firsts, reducer)

    def _count(self, firsts: Sequence[Any], reducer: Reducer) -> None:
        """Notes the rows of each replica; a collective if they may differ and there is a loss."""
        with tf.device(HOST):
            rows = [rows_of(first) for first in firsts]  # [] each
            if self.is_training and self.results is not None:
                self.results.count(rows)
            known = [first.shape[0] for first in firsts]
            is_known = None not in known and len(set(known)) == 1
            if is_known and not tf.executing_eagerly() and not self.rows_may_differ:
                self.total_rows = tf.constant(float(known[0] * self.num_replicas))
                return
            self.rows = rows
            if self.has_loss:
                own = [tf.cast(number, tf.float32) for number in rows]
                self.total_rows = reducer.reduce([own], mean=False, name="rows")[0]  # []
                self.shares = [tf.math.divide_no_nan(value, self.total_rows) for value in own]

    def take_message(self) -> tf.Tensor | None:
        """Returns the message that gradients take along; None if there is none.

        Gradients in a loop or a branch of the step take none along: they may not be reduced at all.
        """
        if not self.sends_message or self.results is None:
            return None
        if not tf.executing_eagerly() and is_inside_control_flow(self.graph):
            return None
        self.sends_message = False
        return self.results.message()


@dataclass(frozen=True)
class Reads:
    """The way in which variables with values of each replica are read outside of its code.

    Attributes:
      are_own: Whether reads give this worker's first replica's values, without a message.
      combined: Combinations over all replicas that are made already, by the variable's id.
      used: The ids of the variables whose combination was read.
    """

    are_own: bool = False
    combined: Mapping[int, tf.Tensor] | None = None
    used: set[int] = field(default_factory=set)


@dataclass
class Now:
    """The state of this process; the module's docstring says who sets and who reads it.

    Attributes:
      fit: The `FitRun` of the call of `fit` that is running; None outside of one.
      step: The step of a Keras model that is being traced or executed; None outside of one.
      is_running: Whether the code of replicas is running.
      reads: How variables with values of each replica are read outside of their code.
      has_profiled: Whether a `fit` of this process has been profiled.
    """

    fit: Any = None
    step: KerasStep | None = None
    is_running: bool = False
    reads: Reads = Reads()
    has_profiled: bool = False

    @contextmanager
    def having(self, **values: Any) -> Iterator[None]:
        """Sets attributes in the `with` block."""
        before = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(before)


NOW = Now()


@contextmanager
def keras_step(**attributes: Any) -> Iterator[KerasStep]:
    """Marks what the `with` block traces or executes as a step of a Keras model.

    The caller makes statistics equal before anything else reads them. The arguments are attributes
    of `KerasStep`.
    """
    step = KerasStep(**attributes)
    with NOW.having(step=step):
        yield step


def run_step(
    call: Callable[[], Any],
    batches: Sequence[Any],
    reducer: Reducer,
    before: Callable[[], None],
) -> Any:
    """Runs the code of all replicas of this worker, and combines its results in a Keras step.

    Args:
      call: Runs the code, and returns its results.
      batches: The first argument of that code, for each replica; empty without one.
      reducer: Combines values over all replicas.
      before: Called first.
    """
    before()
    step = NOW.step
    if step is not None:
        step.begin(batches, reducer)
    with NOW.having(is_running=True):
        results = call()
    return results if step is None or step.results is None else step.results(results)


def loss_step() -> KerasStep | None:
    """Returns the step if the code of one of several replicas computes its loss; None otherwise."""
    step = NOW.step
    if step is None or step.num_replicas == 1 or not step.has_loss or not is_in_replica():
        return None
    return step


def own_losses() -> ReplicaLosses:
    """Returns the losses of the running replica, in a step."""
    assert NOW.step is not None
    return NOW.step.losses[replica_in_worker()]


def own_rows() -> tf.Tensor | None:
    """Returns the rows of the running replica; None if they are not counted."""
    if NOW.step is None or NOW.step.rows is None:
        return None
    return NOW.step.rows[replica_in_worker()]


def own_share() -> tf.Tensor | float:
    """Returns the share of the running replica, in a step."""
    assert NOW.step is not None
    if NOW.step.shares is None:
        return 1.0 / NOW.step.num_replicas
    return NOW.step.shares[replica_in_worker()]


def unless_empty(value: tf.Tensor) -> tf.Tensor:
    """Returns a replica's number; 0 if it has no row, of which the mean would be NaN."""
    rows = own_rows()
    return value if rows is None else tf.where(rows > 0, value, tf.zeros_like(value))


def counted(value: tf.Tensor) -> tf.Tensor:
    """Returns a replica's number times its share of the rows; 0 without rows."""
    return tf.cast(own_share(), value.dtype) * unless_empty(value)


def sum_over_replicas(value: tf.Tensor) -> tf.Tensor:
    """Returns the sum of a value of each replica, in their code: a collective."""
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value)


def loss_in(logs: Any) -> Any:
    """Returns the loss in the logs of a step or an epoch; None if they have none."""
    return logs.get("loss") if isinstance(logs, dict) else None


def first_tensor(batch: Any) -> Any:
    """Returns the first tensor of a batch that has rows; None without one."""
    for leaf in tf.nest.flatten(batch):
        if tf.is_tensor(leaf) and leaf.shape.rank:
            return leaf
    return None


def rows_of(leaf: Any) -> tf.Tensor:
    """Returns the rows of a dense, sparse or ragged tensor: int32 []."""
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int32)
    if isinstance(leaf, tf.SparseTensor):
        return tf.cast(leaf.dense_shape[0], tf.int32)
    return tf.shape(leaf)[0]
