"""The input of `fit`: the number of steps of an epoch, and the position at which it goes on.

Keras counts a dataset's batches. Where each worker has a dataset of its own, whose batches its
replicas take in turn, a step has one for each replica, and all workers make as many steps as the
one with most batches.

The position is kept beside the backup of BackupAndRestore (`backups`). Keras restores weights and
epoch, and begins the epoch's input at its start. With the position, the batches that the
interrupted `fit` had taken in the epoch are read again and thrown away:

    fit                     epoch 0          epoch 1
                            0 1 2 3 4 5      0 1 2 3 | killed, with a backup after step 2
    fit, started again                       0 1 2     read again
                                                   3 4 5

Iterators of finished epochs are made, and not read, so that a shuffle with a seed gives each epoch
the order that it had.

Private names: of Keras 3 `TFEpochIterator` with its `_enumerate_iterator`, `_num_batches` and
`_distributed_dataset`; of tf_keras `DataHandler` with its `_dataset`, `_adapter`,
`_steps_per_epoch`, `_configure_dataset_and_inferred_steps` and `_infer_steps`.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import tensorflow as tf

from tfdist.process.endings import OneLineError, print_to_stderr
from tfdist.strategies.eager.datasets import steps_of_all
from tfdist.strategies.eager.run import needs_all_workers
from tfdist.strategies.keras.extension import extends
from tfdist.strategies.keras.fit import FitPosition, current_fit
from tfdist.strategies.private_runtime import replica_spec


class InputTooShortError(OneLineError, ValueError):
    """The input of a resumed `fit` has fewer batches than the interrupted one had taken."""


def start_after(saved: FitPosition, *, num_workers: int, divides_batches: bool) -> tuple[int, int]:
    """Returns the epoch, and the steps done in it, with which a `fit` goes on.

    Workers that do not divide the batches of one dataset have their own.
    """
    if saved.num_workers != num_workers and not divides_batches and saved.steps:
        print_to_stderr(
            f"Epoch {saved.epoch + 1} begins at its start: each worker has a dataset of its own, "
            f"and what was saved is of {saved.num_workers} workers."
        )
        return saved.epoch, 0
    return saved.epoch, saved.steps


def adapt_input(library: ModuleType, is_keras_3: bool) -> None:
    """Extends the iterators of epochs of a Keras library."""
    if is_keras_3:
        _adapt_keras_3(importlib.import_module("keras.src.backend.tensorflow.trainer"))
    else:
        _adapt_tf_keras(importlib.import_module("tf_keras.src.engine.data_adapter"))


def batch_spec(epochs: Any) -> Any:
    """Returns the specs of a replica's batch, and None for None, from which Keras builds a model.

    `epochs` is Keras 3's iterator of epochs. Nothing is read.
    """
    return tf.nest.map_structure(_checked, replica_spec(epochs._distributed_dataset))  # noqa: SLF001


class InputShapeError(OneLineError, ValueError):
    """The ranks of the tensors of a model's input are not known."""


def _checked(spec: Any) -> Any:
    if isinstance(spec, tf.OptionalSpec):  # As Keras has it: a part that is left out.
        return None
    if spec.shape.rank is None:
        raise InputShapeError(
            "a tensor of the dataset has an unknown rank, and Keras needs it to build the model. "
            "Give from_generator an output_signature, or call tensor.set_shape in a map."
        )
    return spec


def _has_own_data(strategy: Any) -> bool:
    return not getattr(strategy.extended, "divides_batches", True)


def _adapt_keras_3(module: Any) -> None:
    @extends(module.TFEpochIterator, "__init__")
    def init_counted(init: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        strategy = self._distribute_strategy
        self.is_of_own_data = _has_own_data(strategy) and not self.steps_per_epoch
        if self.is_of_own_data:
            self.num_steps = steps_of_all(
                strategy,
                self._num_batches,
                self.steps_per_execution,
            )
            self._num_batches = self.num_steps

    @extends(module.TFEpochIterator, "reset")
    def reset_counted(reset: Any, self: Any) -> None:
        reset(self)
        if getattr(self, "is_of_own_data", False):
            self._num_batches = self.num_steps

    @extends(module.TFEpochIterator, "_enumerate_iterator")
    def enumerate_rest(enumerate_epoch: Any, self: Any) -> Iterator[Any]:
        run = current_fit()
        resumed = None if run is None else run.take_resumed()
        if run is None or resumed is None:
            yield from enumerate_epoch(self)
            return
        epoch, steps = resumed
        reading = _Reading(epoch, steps)
        is_unknown = not self.steps_per_epoch and self._num_batches is None
        for number in range(run.first_epoch, epoch):
            if is_unknown:  # Keras ends an epoch where the input does: it makes one iterator.
                iterator = iter(self._get_iterator())
                if number == run.first_epoch:
                    calls = -(-reading.count(iterator) // self.steps_per_execution) + 1
                    self._num_batches = calls * self.steps_per_execution  # As Keras has it then.
                continue
            for first, last, iterator in enumerate_epoch(self):
                if self.steps_per_epoch:  # One iterator for all epochs.
                    reading.read(iterator, last + 1 - first)
        for first, last, iterator in enumerate_epoch(self):
            if first < steps:
                reading.read(iterator, last + 1 - first)
                continue
            reading.end()
            yield first, last, iterator
        reading.refuse_rest()


def _adapt_tf_keras(module: Any) -> None:
    @extends(module.DataHandler, "_configure_dataset_and_inferred_steps")
    def configure_counted(
        configure: Any,
        self: Any,
        strategy: Any,
        x: Any,
        steps: Any,
        class_weight: Any,
        distribute: bool,
    ) -> None:
        self.is_of_own_data = distribute and _has_own_data(strategy)
        configure(self, strategy, x, steps, class_weight, distribute)

    @extends(module.DataHandler, "_infer_steps")
    def infer_counted(infer: Any, self: Any, steps: int | None, dataset: Any) -> int | None:
        number: int | None = infer(self, steps, dataset)
        if not self.is_of_own_data or steps is not None:
            return number
        at_a_time = int(self._steps_per_execution.numpy())
        return steps_of_all(tf.distribute.get_strategy(), number, at_a_time)

    @extends(module.DataHandler, "enumerate_epochs")
    def enumerate_rest(enumerate_epochs: Any, self: Any) -> Iterator[Any]:
        run = current_fit()
        resumed = None if run is None else run.take_resumed()
        if run is None or resumed is None:
            yield from enumerate_epochs(self)
            return
        epoch, steps = resumed
        reading = _Reading(epoch, steps)
        makes_iterators = self._adapter.should_recreate_iterator()
        if makes_iterators:
            for _ in range(run.first_epoch, epoch):
                iter(self._dataset)
        else:  # One iterator for all epochs.
            steps += (epoch - run.first_epoch) * (
                self._steps_per_epoch or self._inferred_steps or 0
            )
        for number, iterator in enumerate_epochs(self):
            if number == self._initial_epoch:
                reading.read(iterator, steps)
                reading.end()
            yield number, iterator


class _Reading:
    """The batches that are read again before `fit` goes on after some steps of an epoch, from 0."""

    def __init__(self, epoch: int, steps: int) -> None:
        self._place = f"epoch {epoch + 1} after {steps} of its steps"
        self._number = 0
        self._start_s = time.monotonic()

    def read(self, iterator: Any, number: int) -> None:
        """Reads so many batches. A collective: every worker must call it."""
        with needs_all_workers("the batches before"):
            for _ in range(number):
                try:
                    next(iterator)
                except (StopIteration, tf.errors.OutOfRangeError):
                    self.refuse_rest()
                self._number += 1

    def count(self, iterator: Any) -> int:
        """Reads a whole epoch, and returns the number of its batches. A collective, too."""
        with needs_all_workers("the batches before"):
            number = sum(1 for _ in iterator)
        self._number += number
        return number

    def refuse_rest(self) -> None:
        """Raises an error if the input has ended; does nothing after `end`."""
        if self._number:
            raise InputTooShortError(
                f"fit would go on in {self._place}, and its input has ended after "
                f"{self._number} batches. Give it the same input, or remove the backup."
            )

    def end(self) -> None:
        """Says how long it took; later calls do nothing."""
        run = current_fit()
        if self._number and run is not None and run.is_first:
            seconds = time.monotonic() - self._start_s
            print_to_stderr(
                f"Going on in {self._place}: {self._number} batch(es) were read again in "
                f"{seconds:.1f} s."
            )
        self._number = 0
