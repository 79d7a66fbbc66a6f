"""Tensors of an input_fn, passed on through a queue to steps that need to know what is left.

Older inputs are tensors: those of a queue (`numpy_input_fn`), or of an iterator that the program
made. Each evaluation gives the next batch. Steps of several workers or replicas, and loops of
steps, take batches one by one and must know of the end before it comes. So a thread evaluates the
tensors, and tells about each batch once as many more are there as a session call takes:

    thread    evaluate  ->  batches  e0 e1 e2 ...   ->  next_batch    step
                        ->  news     1  1  0        ->  has_more

News come before their batch: a failure of the input is news as well, and ends the step.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.inputs.read_again import ReadAgain, taken_in_calls
from tfdist.strategies.graph_walks import ancestors
from tfdist.strategies.private_tensorflow import is_closed

_ADVICE = (
    "Return a tf.data.Dataset, such as tf.data.Dataset.from_tensor_slices((features, labels))"
    ".batch(size)."
)


class QueuedInput:
    """Tensors that a thread evaluates, and a queue passes on.

    Attributes:
      hook: Starts the thread in a new session; the tensors must be initialized before.
      is_enough: As in `Input`.

    Args:
      structure: The tensors.
      look_ahead: As in `make_input`.
      read_again: As in `make_input`.

    Raises:
      ValueError: If something in the structure is not a tensor, or cannot be evaluated in a thread.
    """

    def __init__(self, structure: Any, look_ahead: int | None, read_again: int = 0) -> None:
        self._structure = structure
        parts = [_as_tensor(leaf) for leaf in leaves(structure)]
        flat = tf.nest.flatten(parts, expand_composites=True)
        _refuse_placeholders(flat)
        self._parts, self._flat = parts, flat
        capacity = (look_ahead or 1) + 1
        with tf.device("/device:CPU:0"), v1.name_scope("queued_input"):
            self._batches = tf.queue.FIFOQueue(capacity, [tensor.dtype for tensor in flat])
            self._news = tf.queue.FIFOQueue(-1, [tf.float32, tf.string])  # has_more, problem
            again = ReadAgain(read_again, taken_in_calls(tf.group(*flat))) if read_again else None
            self.hook = _Evaluate(self._batches, self._news, flat, look_ahead, again)
            self.is_enough = None if look_ahead is None else self._next_news()

    def next_batch(self) -> tuple[Any, tf.Tensor]:
        """Makes the ops that fetch the next batch, and has_more, a float32 scalar."""
        with tf.device("/device:CPU:0"):
            has_more = self._next_news()
            with tf.control_dependencies([has_more]):
                fetched = self._batches.dequeue()
            fetched = fetched if isinstance(fetched, list) else [fetched]
            for tensor, original in zip(fetched, self._flat, strict=True):
                tensor.set_shape(original.shape)
        parts = tf.nest.pack_sequence_as(self._parts, fetched, expand_composites=True)
        return _packed(self._structure, iter(parts)), has_more

    def _next_news(self) -> tf.Tensor:
        has_more, problem = self._news.dequeue()
        for tensor in (has_more, problem):
            tensor.set_shape([])
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(problem, ""), [problem])]):
            return tf.identity(has_more)


class _Evaluate(v1.train.SessionRunHook):  # type: ignore[misc]
    """Hook with a thread that evaluates the tensors until they end or the session closes."""

    def __init__(
        self,
        batches: Any,
        news: Any,
        flat: list[tf.Tensor],
        ahead: int | None,
        again: ReadAgain | None,
    ) -> None:
        self._ahead = ahead
        self._again = again
        self._put = batches.enqueue(flat)
        with tf.control_dependencies([self._put]):
            self._put_and_tell = news.enqueue([tf.constant(1.0), tf.constant("")])
        self._tell_end = news.enqueue([tf.constant(0.0), tf.constant("")])
        self._close = tf.group(batches.close(), news.close())
        self._problem = v1.placeholder(tf.string, [])
        self._tell_problem = news.enqueue([tf.constant(0.0), self._problem])

    def after_create_session(self, session: v1.Session, coord: v1.train.Coordinator) -> None:
        threading.Thread(target=self._evaluate, args=(session, coord), daemon=True).start()

    def _evaluate(self, session: v1.Session, coord: v1.train.Coordinator) -> None:
        try:
            self._evaluate_all(session, coord)
        except Exception:
            # A closing session cancels its calls, and no step waits for this thread any more.
            if not (coord.should_stop() or is_closed(session)):
                raise

    def _evaluate_all(self, session: v1.Session, coord: v1.train.Coordinator) -> None:
        try:
            if self._again is not None:
                self._again.read(session)
            for _ in range((self._ahead or 1) - 1):
                session.run(self._put)
            while not coord.should_stop():
                session.run(self._put_and_tell)
        except tf.errors.OutOfRangeError:
            for _ in range(self._ahead or 0):
                session.run(self._tell_end)
            session.run(self._close)  # What is in the queues can still be read.
        except tf.errors.CancelledError:
            raise
        except Exception as error:  # The step that waits for news fails with it.
            problem = f"the input failed: {type(error).__name__}: {error}"
            session.run(self._tell_problem, {self._problem: problem})


def leaves(structure: Any) -> list[Any]:
    """Returns the values in a structure of features, sorted by the dicts' keys.

    `tf.nest` cannot sort keys of several types, such as the column numbers and names of a table.
    """
    if not isinstance(structure, Mapping):
        return tf.nest.flatten(structure)
    return [leaf for key in sorted(structure, key=str) for leaf in leaves(structure[key])]


def _packed(structure: Any, values: Iterator[Any]) -> Any:
    """Returns the structure with other values, in the order of `leaves`."""
    if not isinstance(structure, Mapping):
        count = len(tf.nest.flatten(structure))
        return tf.nest.pack_sequence_as(structure, [next(values) for _ in range(count)])
    packed = {key: _packed(structure[key], values) for key in sorted(structure, key=str)}
    return {key: packed[key] for key in structure}


def _as_tensor(leaf: object) -> Any:
    if isinstance(leaf, tf.Variable | np.ndarray):
        return tf.convert_to_tensor(leaf)
    if not tf.is_tensor(leaf):
        raise ValueError(
            f"input_fn must return a tf.data.Dataset or tensors, got a {type(leaf).__name__} among "
            f"them. {_ADVICE}"
        )
    return leaf


def _refuse_placeholders(flat: list[tf.Tensor]) -> None:
    """Refuses tensors that need a feed_dict, which the thread that evaluates them has not."""
    for op in placeholders_of(flat):
        raise ValueError(
            f"the input depends on the placeholder {op.name!r}. Several workers or replicas, or a "
            f"loop of steps, cannot feed it. {_ADVICE}"
        )


def placeholders_of(tensors: list[tf.Tensor]) -> list[tf.Operation]:
    """Returns the placeholders that tensors depend on."""
    ops = ancestors((tensor.op for tensor in tensors), control_inputs=False)
    return [op for op in ops if op.type == "Placeholder"]
