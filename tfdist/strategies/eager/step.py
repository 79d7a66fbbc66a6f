"""The step of a Keras model that is being traced or executed: how many rows each replica has.

Keras takes the mean loss of each replica and divides it by the number of replicas. That is the mean
of the global batch only if all replicas have as many rows. So a replica's loss counts by its share:

    rows of replica r / rows of all replicas         in place of 1 / number of replicas

The sum of the rows is one message, which the forward pass does not wait for. A replica may have no
row: its share is 0, and it leaves moving averages as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.placement import HOST
from tfdist.strategies.private_tensorflow import ResourceVariable, is_inside_control_flow
from tfdist.strategies.reductions.reducer import Reducer
from tfdist.strategies.values.replica_context import replica_in_worker

# Combines what the replicas' steps of this worker have returned; a collective.
Combine = Callable[[Any], Any]


class StepMessage(Protocol):
    """A message for the other workers that can travel with a step's gradients."""

    def message(self) -> tf.Tensor:
        """Returns this worker's numbers."""

    def receive(self, sums: tf.Tensor) -> None:
        """Takes the sums of the numbers over the workers."""


@dataclass
class KerasStep:
    """A step of a Keras model.

    Attributes:
      is_training: Whether it updates the model, rather than evaluates or predicts.
      has_loss: Whether it has a loss: it trains or evaluates.
      rows: int32 scalars, the rows of each replica of this worker; None where all have as many.
      combine: Combines what the replicas' steps have returned; None leaves it as it is.
      message: The object with the message that waits for the first gradients of the step.
      graph: The graph that the step is part of.
      shares: float32 scalars, each replica's share of the rows of all; None where all have as many.
      has_scaled_loss: Whether Keras has divided a loss by the replicas, as the step was traced.
    """

    is_training: bool
    has_loss: bool
    combine: Combine | None = None
    message: StepMessage | None = None
    graph: tf.Graph | None = None
    rows: Sequence[tf.Tensor] | None = None
    shares: Sequence[tf.Tensor] | None = None
    has_scaled_loss: bool = False


_current: KerasStep | None = None
_examples: ResourceVariable | None = None


def current_step() -> KerasStep | None:
    """Returns the step of a Keras model that is being traced or executed; None outside of one."""
    return _current


@contextmanager
def keras_step(
    *, is_training: bool = False, has_loss: bool = True, combine: Combine | None = None
) -> Iterator[KerasStep]:
    """Marks what the `with` block traces or executes as a step of a Keras model.

    The caller makes statistics equal before anything else reads them. The arguments are attributes
    of `KerasStep`.
    """
    global _current
    step = KerasStep(is_training, has_loss, combine)
    before, _current = _current, step
    try:
        yield step
    finally:
        _current = before


_is_building_model = False


def is_building_model() -> bool:
    """Returns whether Keras 3 is building a model with the first batch of a dataset."""
    return _is_building_model


@contextmanager
def building_model() -> Iterator[None]:
    """Marks the `with` block as one in which Keras 3 builds a model; it looks at shapes alone."""
    global _is_building_model
    before, _is_building_model = _is_building_model, True
    try:
        yield
    finally:
        _is_building_model = before


def count_rows(batches: Sequence[Any], reducer: Reducer) -> None:
    """Notes the rows of the batch of each replica of this worker.

    A collective if rows may differ and there is a loss.
    """
    if _current is None:
        return
    _current.rows = _current.shares = None
    firsts = [_first_tensor(batch) for batch in batches]
    if any(first is None for first in firsts):
        return
    if _current.is_training:
        _note_examples(firsts)
    if all(first.shape[0] is not None for first in firsts) and not tf.executing_eagerly():
        return
    with tf.device(HOST):
        rows = [tf.shape(first)[0] for first in firsts]  # [] each
        _current.rows = rows
        if _current.has_loss:
            own = [tf.cast(number, tf.float32) for number in rows]
            total = reducer.reduce([own], mean=False, name="rows")[0]  # []
            _current.shares = [tf.math.divide_no_nan(number, total) for number in own]


def begin_step() -> None:
    """Notes the begin of a step's replicas: its message may travel with their gradients."""
    if _current is not None:
        _current.graph = v1.get_default_graph()
        combine: Any = _current.combine
        has_message = _current.is_training and hasattr(combine, "message")
        _current.message = combine if has_message else None


def take_message() -> StepMessage | None:
    """Returns the object with the message that gradients take along; None if there is none.

    Gradients in a loop or a branch of the step take none along: they may not be reduced at all.
    """
    if _current is None or _current.message is None:
        return None
    if not tf.executing_eagerly() and is_inside_control_flow(_current.graph):
        return None
    taken, _current.message = _current.message, None
    return taken


def has_taken_message() -> bool:
    """Returns whether the gradients of the current step have taken its message along."""
    return _current is not None and _current.is_training and _current.message is None


def combined(results: Any) -> Any:
    """Returns the results of a step's replicas, combined if the current step combines them."""
    return results if _current is None or _current.combine is None else _current.combine(results)


def examples_taken() -> float:
    """Returns the rows that this worker has trained on since its program began."""
    return 0.0 if _examples is None else float(_examples.numpy())


def _note_examples(firsts: Sequence[tf.Tensor]) -> None:
    global _examples
    with tf.device(HOST):
        if _examples is None:
            with tf.init_scope():  # No variable of the strategy: it is not saved or combined.
                _examples = ResourceVariable(tf.zeros([], tf.float64), trainable=False)
        rows = tf.add_n([tf.cast(tf.shape(first)[0], tf.float64) for first in firsts])
        _examples.assign_add(rows, read_value=False)


def own_rows() -> tf.Tensor | None:
    """Returns the rows of the replica whose code is running; None if they are not counted."""
    if _current is None or _current.rows is None:
        return None
    return _current.rows[replica_in_worker()]


def own_share() -> tf.Tensor | None:
    """Returns the share of the replica whose code is running; None if all have the same."""
    if _current is None or _current.shares is None:
        return None
    return _current.shares[replica_in_worker()]


def loss_in(logs: Any) -> Any:
    """Returns the loss in the logs of a step or an epoch; None if they have none."""
    return logs.get("loss") if isinstance(logs, dict) else None


def _first_tensor(batch: Any) -> Any:
    for leaf in tf.nest.flatten(batch):
        if tf.is_tensor(leaf) and leaf.shape.rank:
            return leaf
    return None
