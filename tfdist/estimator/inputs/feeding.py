"""A TensorFlow queue that threads fill from columns in memory, as in tf.estimator.

It is a queue and not a dataset because old programs start the queue's threads themselves
(`tf.compat.v1.train.start_queue_runners`) and do not initialize an iterator.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.arguments import check_whole
from tfdist.strategies.private_tensorflow import next_seeds

Array = np.ndarray[Any, Any]


def check_feeding(
    batch_size: Any, num_epochs: Any, shuffle: Any, queue_capacity: Any, num_threads: Any
) -> None:
    """Raises ValueError for an unusable number, or where the user has not chosen `shuffle`."""
    check_whole("batch_size", batch_size)
    if num_epochs is not None:
        check_whole("num_epochs", num_epochs, least=0)
    if queue_capacity is not None:
        check_whole("queue_capacity", queue_capacity)
    check_whole("num_threads", num_threads)
    if not isinstance(shuffle, bool):
        raise ValueError(
            f"shuffle must be provided and explicitly set as boolean, got {shuffle!r}. Write "
            "shuffle=True to train, shuffle=False to evaluate and predict."
        )


def row_numbers(
    num_rows: int, batch_size: int, num_epochs: int | None, first_row: int
) -> Iterator[Array]:
    """Yields the row numbers of each batch, [batch_size], and starts over at the end of the data.

    Batches cross the ends of epochs; only the last one may be smaller. Without `num_epochs` there
    is none.
    """
    total = None if num_epochs is None else num_epochs * num_rows
    done = 0
    while total is None or done < total:
        end = done + batch_size if total is None else min(done + batch_size, total)
        yield (first_row + np.arange(done, end)) % num_rows  # [end - done]
        done = end


def mixed(
    batches: Iterator[Array], batch_size: int, num_mixed: int, order: random.Random
) -> Iterator[Array]:
    """Yields the row numbers of batches in random order, [batch_size] at a time.

    Each number is drawn by `order` among `num_mixed`, as long as there are more.
    """

    def drawn() -> Iterator[int]:
        pool: list[int] = []
        for number in itertools.chain.from_iterable(batches):
            if len(pool) < num_mixed:
                pool.append(number)
                continue
            place = order.randrange(num_mixed)
            yield pool[place]
            pool[place] = number
        order.shuffle(pool)
        yield from pool

    numbers = drawn()
    while rows := list(itertools.islice(numbers, batch_size)):
        yield np.array(rows)  # [batch_size]


def next_batch(
    columns: Sequence[Array],
    *,
    batch_size: int,
    num_epochs: int | None,
    shuffle: bool,
    capacity: int,
    min_after_dequeue: int,
    num_threads: int,
) -> list[tf.Tensor]:
    """Builds a queue of rows, the threads that fill it, and the ops that take a batch from it.

    Columns are arrays [rows, ...]. Each thread reads all rows `num_epochs` times, or without end.
    With `shuffle`, the order is random and starts at a random row; it follows from the seed of the
    graph, if that has one. As many rows are mixed as the queue has capacity for, and its summary
    counts from `min_after_dequeue` on.

    Returns:
      A tensor [batch, ...] for each column, in the order of the columns.
    """
    if num_threads > 1:
        _warn_of_threads(num_threads, num_epochs, shuffle)
    arrays = [_as_fed(array) for array in columns]
    types = [tf.as_dtype(array.dtype) for array in arrays]
    shapes = [array.shape[1:] for array in arrays]
    with v1.name_scope("enqueue_input"):
        # The readers mix the rows, not the queue: what a RandomShuffleQueue returns depends on how
        # full it is at the moment. The name is that of its summary in tf.estimator.
        name = "random_shuffle_queue" if shuffle else "fifo_queue"
        queue = tf.queue.FIFOQueue(capacity, types, shapes, name=name)
        min_after_dequeue = min_after_dequeue if shuffle else 0
        enqueue_ops = []
        for _ in range(num_threads):
            order = _random_order() if shuffle else None
            read = _reader(arrays, batch_size, num_epochs, order, num_mixed=capacity)
            rows = tf.numpy_function(read, [], types)  # [batch_size, ...] per column
            enqueue_ops.append(queue.enqueue_many(rows))
        v1.train.add_queue_runner(v1.train.QueueRunner(queue, enqueue_ops))
        _add_summary(queue, min_after_dequeue, capacity)
    # [batch_size, ...] per column; with `num_epochs` the last batch may be smaller.
    batch = (
        queue.dequeue_many(batch_size) if num_epochs is None else queue.dequeue_up_to(batch_size)
    )
    return list(batch) if isinstance(batch, Sequence) else [batch]


def _reader(
    arrays: list[Array],
    batch_size: int,
    num_epochs: int | None,
    order: random.Random | None,
    num_mixed: int,
) -> Callable[[], list[Array]]:
    """Returns a function that returns the columns of the next rows, and starts over at the end.

    With `order` it starts at a random row, and mixes `num_mixed` rows.
    """
    num_rows = len(arrays[0])
    if not num_rows and (order or num_epochs is None):
        raise ValueError(
            "x has no rows, and shuffle=True and num_epochs=None need at least one. Give rows; "
            "shuffle=False and num_epochs=1 take none, and yield no batch."
        )

    def fresh() -> Iterator[Array]:
        if order is None:
            return row_numbers(num_rows, batch_size, num_epochs, 0)
        numbers = row_numbers(num_rows, batch_size, num_epochs, order.randrange(num_rows))
        return mixed(numbers, batch_size, num_mixed, order)

    coming = fresh()

    def read() -> list[Array]:
        nonlocal coming
        try:
            rows = next(coming)
        except StopIteration:
            # TensorFlow converts StopIteration to OutOfRangeError, and the thread then closes the
            # queue. A later session on the same graph reads the data again.
            coming = fresh()
            raise
        return [array[rows] for array in arrays]  # [rows, ...] per column

    return read


def _random_order() -> random.Random:
    """Returns a source of random numbers that follows from the graph's seed, if that has one."""
    seeds = next_seeds()
    return random.Random(None if seeds is None else str(seeds))


def _as_fed(array: Array) -> Array:
    """Converts numpy's text type to objects; as it is, TensorFlow accepts only ASCII of it."""
    return array.astype(object) if array.dtype.kind == "U" else array


def _add_summary(queue: Any, min_after_dequeue: int, capacity: int) -> None:
    """Adds a summary with tf.estimator's name: the fraction of the queue that is filled."""
    spare = capacity - min_after_dequeue
    waiting = tf.maximum(0, queue.size() - min_after_dequeue)  # int32 []
    v1.summary.scalar(
        f"queue/{queue.name}fraction_over_{min_after_dequeue}_of_{spare}_full",
        tf.cast(waiting, tf.float32) * (1.0 / spare),
    )


def _warn_of_threads(num_threads: int, num_epochs: int | None, shuffle: bool) -> None:
    if num_epochs is not None:
        v1.logging.warning(
            "num_threads=%d with num_epochs=%d: each thread reads all epochs, so every row comes "
            "%d times. Use one thread to limit the epochs.",
            num_threads,
            num_epochs,
            num_threads * num_epochs,
        )
    if not shuffle:
        v1.logging.warning(
            "num_threads=%d with shuffle=False: rows of several threads come mixed. Use one thread "
            "to keep their order.",
            num_threads,
        )
