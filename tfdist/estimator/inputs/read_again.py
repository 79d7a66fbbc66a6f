"""The batches of an interrupted training, read again and thrown away before the first new one."""

from __future__ import annotations

import time
from collections.abc import Callable

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.process.progress_file import in_phase

# Batches are read in session calls of about this time, so that a long reading can be followed.
_CALL_S = 1.0
_LINE_EVERY_S = 30.0

Take = Callable[[v1.Session, int], None]


class ReadAgain(v1.train.SessionRunHook):  # type: ignore[misc]
    """Hook that reads the first batches of an input, and logs how many and how long it took.

    Args:
      num_batches: The number of batches to read.
      take: Reads so many batches in a session.

    Raises:
      ValueError: If the input has fewer batches.
    """

    def __init__(self, num_batches: int, take: Take) -> None:
        self._num_batches = num_batches
        self._take = take

    def after_create_session(self, session: v1.Session, coord: v1.train.Coordinator) -> None:
        self.read(session)

    def read(self, session: v1.Session) -> None:
        v1.logging.info(
            "The input goes on where the interrupted training was: %d batch(es) are read again.",
            self._num_batches,
        )
        start_s = said_s = time.monotonic()
        done, count = 0, 1
        while done < self._num_batches:
            count = min(count, self._num_batches - done)
            began_s = time.monotonic()
            try:
                with in_phase("starting"):  # For each call: it is no stall.
                    self._take(session, count)
            except tf.errors.OutOfRangeError:
                raise ValueError(
                    f"the input has fewer batches than the {self._num_batches} that the "
                    "interrupted training had taken. Give it the same input, or set "
                    "save_input=False in RunConfig to begin at its start."
                ) from None
            done, now_s = done + count, time.monotonic()
            count *= 2 if now_s - began_s < _CALL_S else 1
            if now_s - said_s > _LINE_EVERY_S:
                left_s = (now_s - start_s) / done * (self._num_batches - done)
                v1.logging.info(
                    "Read %d of %d batches again; about %.0f s are left. RunConfig("
                    "save_input=False) begins at the start instead.",
                    done,
                    self._num_batches,
                    left_s,
                )
                said_s = now_s
        v1.logging.info("Read %d batch(es) again in %.1f s.", done, time.monotonic() - start_s)


def taken_in_calls(batch: tf.Operation) -> Take:
    """Returns a function that runs an op, which needs all tensors of a batch, once for each."""

    def take(session: v1.Session, count: int) -> None:
        for _ in range(count):
            session.run(batch)

    return take


def taken_in_loop(next_batch: Callable[[], list[tf.Tensor]]) -> Take:
    """Returns a function that reads batches in a loop inside of one session call.

    `next_batch` makes the ops that fetch the next batch.
    """
    count = v1.placeholder(tf.int64, [])

    def body(i: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies(next_batch()):
            return i + 1

    zero = tf.constant(0, tf.int64)
    end = tf.while_loop(lambda i: i < count, body, [zero], parallel_iterations=1)[0]

    def take(session: v1.Session, number: int) -> None:
        session.run(end.op, {count: number})

    return take
