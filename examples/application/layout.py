"""The layout of a step: its workers, replicas and micro-batches, and the samples that each reads.

Every epoch has one order of all samples. The epochs follow one another without a gap, and a step
takes the next samples of this row. Each worker has its part of a step, each micro-batch its part of
the worker's:

    position   0                       global batch            2 x global batch
               | step 0                | step 1                | ...
               | worker 0  | worker 1  | worker 0  | worker 1  |
               | 0   | 1   | 0   | 1   | 0   | 1   | 0   | 1   |    micro-batches

So all workers together read what one worker would. What they read in a step depends neither on the
number of workers, replicas and micro-batches nor on the step at which a run was resumed.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType

import numpy as np
from options import UsageError

from tfdist.cluster.instances import Instance, find_launched_replicas


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The sizes of a step, and this worker's place in it."""

    micro_batch: int  # Samples of one forward pass.
    accumulation: int = 1  # Micro-batches of each replica in a step.
    replicas: int = 1
    workers: int = 1
    worker: int = 0  # The index of this worker, from 0; the evaluator comes after the workers.

    @property
    def total_replicas(self) -> int:
        return self.replicas * self.workers

    @property
    def micro_batches(self) -> int:
        """Micro-batches of this worker in a step."""
        return self.accumulation * self.replicas

    @property
    def global_batch(self) -> int:
        return self.micro_batch * self.accumulation * self.total_replicas

    def first_position(self, index: int) -> int:
        """Returns the position of the first sample of this worker's micro-batch `index`."""
        step, within = divmod(index, self.micro_batches)
        before = self.worker * self.micro_batches + within  # Micro-batches of the step before it.
        return step * self.global_batch + before * self.micro_batch

    def describe(self) -> str:
        return (
            f"micro-batch {self.micro_batch} x accumulation {self.accumulation} x "
            f"{self.replicas} replica(s) x {self.workers} worker(s)"
        )


def find_layout(
    instance: Instance, *, micro_batch: int, accumulation: int, requested: int
) -> Layout:
    """Returns the layout of the run that this process is part of.

    `requested` are the replicas of each worker that the options ask for; a launcher's number has
    precedence.
    """
    launched = find_launched_replicas() if instance.source else None
    return Layout(
        micro_batch=micro_batch,
        accumulation=accumulation,
        replicas=requested if launched is None else launched.num_local_replicas,
        workers=instance.num_instances,
        worker=instance.index,
    )


def check_fills_pipeline(accumulation: int, num_stages: int, schedule: str, flag: str) -> None:
    """Refuses fewer micro-batches of a replica in a step than a pipeline needs to be full.

    One stage is no pipeline, the schedule "sequential" needs no number, and `flag` is the option of
    the accumulation.
    """
    least = 2 * num_stages - 1
    if num_stages > 1 and schedule != "sequential" and accumulation < least:
        raise UsageError(
            f"{flag} {accumulation} does not fill a pipeline of {num_stages} stages, which needs "
            f"at least {least} (2 x {num_stages} - 1).\nSet {flag} {least}, or "
            "--pipeline-schedule sequential."
        )


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order of the samples in every epoch; without a seed it is the data set's own."""

    num_samples: int
    seed: int | None

    def take(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the samples at the positions from `first` on: their numbers and their epochs.

        Both are int64 [count]. The numbers are those in the data set, from 0.
        """
        epochs, numbers = np.divmod(first + np.arange(count), self.num_samples)
        if self.seed is not None:
            for epoch in np.unique(epochs):
                here = epochs == epoch
                numbers[here] = epoch_order(self.num_samples, self.seed, int(epoch))[numbers[here]]
        return numbers, epochs


# A micro-batch may reach into the next epoch: two are kept, for one or two data sets.
@lru_cache(maxsize=4)
def epoch_order(num_samples: int, seed: int, epoch: int) -> np.ndarray:
    """Returns the order of an epoch, the same for all workers: int64 [samples]."""
    return np.random.default_rng([seed, epoch]).permutation(num_samples)


@contextmanager
def saving_on_interrupt(folder: str | os.PathLike[str] | None) -> Iterator[None]:
    """Makes Ctrl-C end a training as SIGTERM does: after the step, with a checkpoint.

    A second Ctrl-C ends the program at once. The line that says so names the folder in which the
    training saves, if it does.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        kept = "nothing is kept" if folder is None else f"a checkpoint is saved in {folder}"
        print(f"Ctrl-C: the training ends after this step, and {kept}.", file=sys.stderr)
        signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # Ctrl-C is ignored, or another program's.
        yield
        return
    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
