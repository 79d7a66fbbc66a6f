"""DataLoader: batches for the calls of a pipelined model, read while the device computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.cluster.environment import find_instance
from tfdist.cluster.instance_variables import Instance
from tfdist.cluster.tasks import checked_count
from tfdist.pipeline.options import Options
from tfdist.pipeline.samples import Samples, find_samples, read_batches
from tfdist.pipeline.settings import check_bool, check_count

__all__ = ["DataLoader"]

_ITEMS_AHEAD = 2  # One being read, one ready.


class DataLoader:
    """Combined batches of a dataset: each item has the samples for one call of the model.

    An item has batch_size x gradient_accumulation x device_iterations x replication_factor samples.
    They are stacked to eager tensors on the host, [samples, ...] each, in the structure of the
    dataset. Items are read in the background while the device computes. Each `for` loop over the
    loader is an epoch. With `shuffle`, each epoch has a different order. If a loop is left early,
    pending reads are cancelled and the background threads end.

    If a run has several worker processes, each one reads one part of the samples. The part is
    contiguous in an order that all workers share. A `tf.data.Dataset` is shuffled within the part;
    if its length is unknown, each of n workers reads every n-th sample.

    Args:
      options: The options of the model. They cannot be changed afterwards.
      dataset: An array, or a tuple or dict of arrays with samples along their first dimension; or
        an object with `__len__` and a `__getitem__` that returns one sample (called in background
        threads); or a `tf.data.Dataset` of single samples, not of batches.
      batch_size: Number of samples in a micro-batch.
      shuffle: Whether each epoch has another order; the options' random_seed makes it reproducible.
        The worker's part of a `tf.data.Dataset` is held in memory to shuffle it.
      drop_last: Whether samples that do not fill an item are left out. The parts of several workers
        are then equal. Otherwise the parts differ by one sample at most, and the last item is
        smaller: a model accepts it only if it divides into micro-batches.
      num_workers: Number of threads that read items, 1 if None. With 0 the caller's thread reads,
        and no item is read in advance. Must be None for a `tf.data.Dataset`, which has its own
        threads.
      auto_distributed_partitioning: Whether several worker processes share the samples. Otherwise
        each worker reads all of them.

    Raises:
      TypeError: If an argument has a wrong type.
      ValueError: If an argument has a value that is not allowed, or there are too few samples.
      ClusterError: If the description of the run, such as TF_CONFIG, contradicts itself.
    """

    def __init__(
        self,
        options: Options,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = True,
        num_workers: int | None = None,
        auto_distributed_partitioning: bool = True,
    ) -> None:
        if not isinstance(options, Options):
            raise TypeError(
                f"options must be Options, got {type(options).__name__}. Write "
                "DataLoader(options, dataset, batch_size=40)."
            )
        check_count("batch_size", batch_size)
        for name, value in (
            ("shuffle", shuffle),
            ("drop_last", drop_last),
            ("auto_distributed_partitioning", auto_distributed_partitioning),
        ):
            check_bool(name, value)
        is_stream = isinstance(dataset, tf.data.Dataset)
        _check_num_workers(num_workers, is_stream)
        self._settings = options.settings
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._drop_last = drop_last
        self._num_threads = 1 if num_workers is None else num_workers
        self._instance = find_instance() if auto_distributed_partitioning else Instance()
        self._check_seed()
        self._stream: Any = dataset if is_stream else None
        self._samples = None if is_stream else find_samples(dataset)
        # Below 0: unknown or infinite.
        count = int(dataset.cardinality()) if self._samples is None else len(self._samples)
        if count < 0 and shuffle:
            raise ValueError(
                "a tf.data.Dataset of unknown or infinite length cannot be shuffled as a whole. "
                "Write dataset.shuffle(buffer_size), and leave shuffle out."
            )
        self._part = None if count < 0 else self._choose_part(count)
        self._epoch = 0
        options.freeze("a DataLoader")

    @property
    def combined_batch_size(self) -> int:
        """Number of samples in an item."""
        return self._batch_size * self._settings.micro_batches_per_call

    def __len__(self) -> int:
        """Returns the number of items in an epoch.

        Raises:
          TypeError: If the length of the dataset is unknown or infinite.
        """
        if self._part is None:
            raise TypeError(
                "the length of this tf.data.Dataset is unknown or infinite, so this DataLoader has "
                "none. Set it with tf.data.experimental.assert_cardinality, or take(count)."
            )
        whole, rest = divmod(len(self._part), self.combined_batch_size)
        return whole + (rest > 0 and not self._drop_last)

    def __iter__(self) -> Iterator[Any]:
        seed = self._settings.random_seed
        random = np.random.default_rng(None if seed is None else (seed, self._epoch))
        self._epoch += 1
        if self._samples is None or self._part is None:
            return self._read_stream(random)
        order: range | np.ndarray = self._part
        if self._shuffle:
            order = random.permutation(len(self._samples))[self._part.start : self._part.stop]
        size = self.combined_batch_size
        items = [order[i * size : (i + 1) * size] for i in range(len(self))]
        return _read_ahead(self._samples, items, self._num_threads)

    def _read_stream(self, random: np.random.Generator) -> Iterator[Any]:
        stream, part = self._stream, self._part
        if part is None:
            stream = stream.shard(self._instance.num_instances, self._instance.index)
        else:
            stream = stream.skip(part.start).take(len(part))
            if self._shuffle:
                seed = int(random.integers(2**62))
                stream = stream.shuffle(len(part), seed, reshuffle_each_iteration=False)
        num_items = 0
        for item in read_batches(stream, self.combined_batch_size, drop_last=self._drop_last):
            num_items += 1
            yield item
        if not num_items:  # A known number of samples has been checked before.
            raise ValueError(
                f"the tf.data.Dataset ended before one item, which takes {self._item()}. "
                "Give more samples, or lower one of these."
            )

    def _check_seed(self) -> None:
        number = self._instance.num_instances
        if self._shuffle and number > 1 and self._settings.random_seed is None:
            raise ValueError(
                f"shuffling needs a random_seed where {number} worker processes share a dataset, "
                "and there is none. Write options.random_seed(0)."
            )

    def _choose_part(self, count: int) -> range:
        """Returns the numbers of this instance's samples, out of `count`; refuses too few."""
        if not count:
            raise ValueError("the dataset is empty: it has 0 samples, and 1 is the least.")
        part = _own_part(count, self._instance, equal=self._drop_last)
        number = self._instance.num_instances
        of_all = f" of {count} for each of {number} workers" if number > 1 else ""
        if self._drop_last and len(part) < self.combined_batch_size:
            raise ValueError(
                f"the dataset has {_samples(len(part))}{of_all}, and one item takes "
                f"{self._item()}. Give more samples, lower one of these, or set drop_last=False."
            )
        if not part:
            raise ValueError(
                f"the dataset has {_samples(count)} for {number} workers, and this one would get "
                "none. Give more samples, or start fewer workers."
            )
        return part

    def _item(self) -> str:
        """Returns the number of samples in an item and its factors, for an error message."""
        named = {
            "batch_size": self._batch_size,
            "gradient_accumulation": self._settings.gradient_accumulation,
            "device_iterations": self._settings.device_iterations,
            "replication_factor": self._settings.replication_factor,
        }
        used = [f"{name} {number}" for name, number in named.items() if number > 1]
        product = f" ({' x '.join(used)})" if used else ""
        return f"{self.combined_batch_size}{product}"


def _own_part(count: int, instance: Instance, *, equal: bool) -> range:
    """Returns the numbers of the samples that one instance of a run reads.

    With `equal` all parts have one size, and the last few samples may be in none. Otherwise the
    sizes differ by one at most.
    """
    index, of = instance.index, instance.num_instances
    if equal:
        return range(index * (count // of), (index + 1) * (count // of))
    return range(index * count // of, (index + 1) * count // of)


def _samples(count: int) -> str:
    return f"{count} sample{'s' if count != 1 else ''}"


def _read_ahead(
    samples: Samples, items: Sequence[range | np.ndarray], num_threads: int
) -> Iterator[Any]:
    """Yields items in order, read by threads ahead of the caller; without threads by the caller."""
    if not num_threads:
        yield from map(samples.read, items)
        return
    threads = ThreadPoolExecutor(num_threads, thread_name_prefix="DataLoader")
    waiting: deque[Future[Any]] = deque()
    try:
        for item in items:
            waiting.append(threads.submit(samples.read, item))
            if len(waiting) > max(num_threads, _ITEMS_AHEAD):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:  # Also if the caller's loop is left early.
        threads.shutdown(cancel_futures=True)


def _check_num_workers(number: Any, is_stream: bool) -> None:
    if number is None:
        return
    if is_stream:
        raise ValueError(
            f"num_workers is {number!r}, but a tf.data.Dataset has threads of its own. Leave it "
            "out, and write dataset.map(function, num_parallel_calls=tf.data.AUTOTUNE)."
        )
    checked_count("num_workers", number, least=0, more=" It is how many threads read items.")
