"""The step of TensorFlow 2 that this process traces or executes, and what is known of it.

Keras and TensorFlow call code of a strategy without naming the step: a metric assigns a variable, a
loss is scaled, an optimizer applies gradients. That code looks here. There is one object, `NOW`:

    who sets it                                  attribute     who reads it
    keras.fit.fit_run, around a `fit`            fit           keras: callbacks, input, models
    keras.models, around a train, test or        step          keras: losses, optimizers, results;
      predict function                                           eager.replica_variable
    run_step, around the replicas' code          is_running    run_step
    replica_variable.reads_own, reads_combined   reads         eager.replica_variable
    keras.fit_profile                            has_profiled  keras.fit_profile

Keras takes the mean loss of each replica and divides it by the number of replicas. That is the mean
of the global batch only if all replicas have as many rows. So a replica's loss counts by its share:

    rows of replica r / rows of all replicas         in place of 1 / number of replicas

The sum of the rows is one message, which the forward pass does not wait for. A replica may have no
row: its share is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.placement import HOST
from tfdist.strategies.private_tensorflow import is_inside_control_flow
from tfdist.strategies.reductions.reducer import Reducer
from tfdist.strategies.values.replica_context import replica_in_worker


class StepResults(Protocol):
    """The receiver of what the replicas of a step return.

    Attributes:
      has_message: Whether numbers of this worker travel with a train step's gradients.
    """

    has_message: bool

    def __call__(self, results: Any) -> Any:
        """Combines what the replicas' steps of this worker have returned; may be a collective."""

    def count(self, rows: Sequence[tf.Tensor]) -> None:
        """Counts the rows of each replica of this worker in a train step: int32 scalars."""

    def message(self) -> tf.Tensor:
        """Returns this worker's numbers that travel with the gradients."""

    def receive(self, sums: tf.Tensor) -> None:
        """Takes the sums of the messages over the workers."""


@dataclass
class KerasStep:
    """A step of a Keras model, or as many steps as a call of its function makes.

    Attributes:
      is_training: Whether it updates the model, rather than evaluates or predicts.
      has_loss: Whether it has a loss: it trains or evaluates.
      results: What becomes of the replicas' results; None leaves them as they are.
      sends_message: Whether a message waits for the first gradients of the step.
      graph: The graph that the step is part of.
      rows: int32 scalars, the rows of each replica of this worker; None where all have as many.
      shares: float32 scalars, each replica's share of the rows of all; None where all have as many.
      has_scaled_loss: Whether Keras has divided a loss by the replicas, as the step was traced.
    """

    is_training: bool = False
    has_loss: bool = True
    results: StepResults | None = None
    sends_message: bool = False
    graph: tf.Graph | None = None
    rows: Sequence[tf.Tensor] | None = None
    shares: Sequence[tf.Tensor] | None = None
    has_scaled_loss: bool = False

    def begin(self, batches: Sequence[Any], reducer: Reducer) -> None:
        """Notes the begin of the replicas' code; each has a batch. See `_count` for its message."""
        self.graph = v1.get_default_graph()
        self.sends_message = (
            self.is_training and self.results is not None and self.results.has_message
        )
        self.rows = self.shares = None
        firsts = [_first_tensor(batch) for batch in batches]
        if all(first is not None for first in firsts):
            self._count(firsts, reducer)

    def _count(self, firsts: Sequence[tf.Tensor], reducer: Reducer) -> None:
        """Notes the rows of each replica; a collective if they may differ and there is a loss."""
        with tf.device(HOST):
            rows = [tf.shape(first)[0] for first in firsts]  # [] each
            if self.is_training and self.results is not None:
                self.results.count(rows)
            is_known = all(first.shape[0] is not None for first in firsts)
            if is_known and not tf.executing_eagerly():
                return
            self.rows = rows
            if self.has_loss:
                own = [tf.cast(number, tf.float32) for number in rows]
                total = reducer.reduce([own], mean=False, name="rows")[0]  # []
                self.shares = [tf.math.divide_no_nan(number, total) for number in own]

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
    """

    are_own: bool = False
    combined: Mapping[int, tf.Tensor] | None = None


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
def keras_step(
    *, is_training: bool = False, has_loss: bool = True, results: StepResults | None = None
) -> Iterator[KerasStep]:
    """Marks what the `with` block traces or executes as a step of a Keras model.

    The caller makes statistics equal before anything else reads them. The arguments are attributes
    of `KerasStep`.
    """
    step = KerasStep(is_training, has_loss, results)
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
    if NOW.is_running:  # Optimizers call this inside of a step.
        return call()
    before()
    step = NOW.step
    if step is not None:
        step.begin(batches, reducer)
    with NOW.having(is_running=True):
        results = call()
    return results if step is None or step.results is None else step.results(results)


def own_rows() -> tf.Tensor | None:
    """Returns the rows of the replica whose code is running; None if they are not counted."""
    if NOW.step is None or NOW.step.rows is None:
        return None
    return NOW.step.rows[replica_in_worker()]


def own_share() -> tf.Tensor | None:
    """Returns the share of the replica whose code is running; None if all have the same."""
    if NOW.step is None or NOW.step.shares is None:
        return None
    return NOW.step.shares[replica_in_worker()]


def loss_in(logs: Any) -> Any:
    """Returns the loss in the logs of a step or an epoch; None if they have none."""
    return logs.get("loss") if isinstance(logs, dict) else None


def _first_tensor(batch: Any) -> Any:
    for leaf in tf.nest.flatten(batch):
        if tf.is_tensor(leaf) and leaf.shape.rank:
            return leaf
    return None
