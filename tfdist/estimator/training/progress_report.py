"""Progress of a training for the launcher: steps, batches taken in, and saving."""

from __future__ import annotations

import errno
import math
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.graph.global_step import StepCounter
from tfdist.estimator.inputs.batches import Batch
from tfdist.estimator.training.stop_signals import StopSignals
from tfdist.process.progress_file import ProgressFile, find_progress_file
from tfdist.strategies.placement import HOST

# A call that takes longer is asked what it waits for.
_LONG_CALL_S = 2.0
_LOOK_EVERY_S = 0.5


class ProgressReport(v1.train.SessionRunHook):  # type: ignore[misc]
    """Writes the progress file: the first of a training's hooks.

    Args:
      file: Where to.
      loss: The loss to report, a scalar.
      counter: Counts the input in the graph, which is built already.
      steps: How many steps to make from the present one; None if `last_step` says.
      last_step: The global step at which training ends; None if nobody knows.
      steps_per_call: Steps in one session call.
      batches_per_step: Batches that this worker takes in each step.
      signals: What this process has been asked to do, and the times of its calls.
    """

    def __init__(
        self,
        file: ProgressFile,
        loss: tf.Tensor,
        counter: InputCounter,
        *,
        steps: int | None,
        last_step: int | None,
        steps_per_call: int,
        batches_per_step: int,
        signals: StopSignals,
    ) -> None:
        self._file = file
        self._counter = counter
        self._steps = steps
        self._last_step = last_step
        self._steps_per_call = steps_per_call
        self._batches_per_step = batches_per_step
        self._signals = signals
        self._progress = StepCounter()
        self._calls = 0
        self._is_stopping = False
        size = counter.examples_per_batch
        self._examples_per_call = (size or 0.0) * batches_per_step * steps_per_call
        self._request = v1.train.SessionRunArgs([loss, counter.counts] if size is None else [loss])

    def begin(self) -> None:
        self._progress.begin()
        self._global_step = v1.train.get_global_step()

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self._counter.reset)
        self._session = session
        self._progress.start(session)
        self._first_step = self._progress.step
        last = self._last_step if self._steps is None else self._first_step + self._steps
        before = self._file.read()
        self._examples_before = 0.0 if before is None else before.examples
        self._file.write(step=self._first_step, total_steps=-1 if last is None else last)

    def before_run(self, run_context: Any) -> v1.train.SessionRunArgs:
        return self._request

    def call_begins(self) -> None:
        """Is to be told so right before each session call."""
        self._file.step_begins()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._progress.count(run_context.session)
        self._calls += 1
        loss, *counts = run_values.results
        # Fetched beside the step, the counts may be those before it.
        examples = counts[0][1] if counts else self._calls * self._examples_per_call
        self._file.step_ends(
            step=self._progress.step, loss=loss, examples=self._examples_before + examples
        )
        self._say_stopping()

    def end(self, session: Any) -> None:
        self._say_stopping()
        counted = float(session.run(self._counter.counts)[1])
        self._file.write(examples=self._examples_before + counted)

    def _say_stopping(self) -> None:
        if self._signals.is_stopping and not self._is_stopping:
            self._is_stopping = True
            self._file.write(phase="stopping")

    @contextmanager
    def training(self) -> Iterator[None]:
        """Says that the session runs, and looks after calls that take long, in a thread."""
        is_over = threading.Event()
        watcher = threading.Thread(target=self._watch_calls, args=(is_over,), daemon=True)
        with self._file.during("training"):
            watcher.start()
            try:
                yield
            finally:
                is_over.set()
                watcher.join(_LOOK_EVERY_S)  # Not longer: the session may hang.

    def _watch_calls(self, is_over: threading.Event) -> None:
        while not is_over.wait(_LOOK_EVERY_S):
            number = self._calls
            if (self._signals.calls.lasting_s(0.0) or 0.0) < _LONG_CALL_S:
                continue
            try:
                counts, step = self._session.run([self._counter.counts, self._global_step])
            except (tf.errors.OpError, RuntimeError):  # The session is closed.
                return
            if number == self._calls:
                self._file.note_input(waits=self._waits_for_input(int(counts[0]), int(step)))

    def _waits_for_input(self, batches: int, step: int) -> bool:
        """Says whether all batches that have come are used up: a step is short of one."""
        steps_done = step - self._first_step
        if self._calls:  # A model may count its steps in another way.
            steps_done *= self._calls * self._steps_per_call
            steps_done //= max(1, self._progress.step - self._first_step)
        return batches - steps_done * self._batches_per_step < self._batches_per_step


class SavingNotes(v1.train.CheckpointSaverListener):  # type: ignore[misc]
    """Notes the beginning and the end of each save; the first of a saver's listeners.

    Args:
      signals: What this process does when it is asked to stop.
    """

    def __init__(self, signals: StopSignals) -> None:
        self._signals = signals
        self._file = find_progress_file()

    def add_to(self, saver: v1.train.CheckpointSaverHook) -> None:
        """Becomes the saver's first listener, in place of that of an earlier training."""
        others = [one for one in saver._listeners if not isinstance(one, SavingNotes)]
        saver._listeners[:] = [self, *others]  # No public way to add one.

    def before_save(self, session: Any, global_step_value: int) -> None:
        self._signals.is_saving = True
        if self._file is not None:
            self._phase = self._file.phase
            self._file.write(phase="saving")

    def after_save(self, session: Any, global_step_value: int) -> None:
        if self._file is not None:
            self._file.write(phase=self._phase)
        self._signals.is_saving = False
        self._signals.leave_unless_noted()


def refuse_too_large(error: tf.errors.OutOfRangeError, signals: StopSignals, folder: str) -> None:
    """Tells the end of the input from a checkpoint that is larger than a file may be.

    TensorFlow has the same error for both, and would end training as if all were well.

    Raises:
      OSError: If a checkpoint was being written.
    """
    if signals.is_saving:
        raise OSError(
            errno.EFBIG,
            "A checkpoint is larger than a file may be. Raise the limit (ulimit -f), or choose "
            "another file system",
            folder,
        ) from error


class InputCounter:
    """Counts batches, and the examples in them, on the host.

    Its ops come after the model's: the graph's random seeds depend on how many ops came before. It
    is no `tf.Variable`: strategies, savers and initialisers take no notice of it. It costs some
    microseconds a step.

    Args:
      in_micro_batches: Whether a batch is [micro-batches, batch, ...], a pipeline's.

    Attributes:
      examples_per_batch: Their number where the input's shape says so; None if it does not.
      counts: int64, [batches, examples].
      reset: Sets both to 0; to be run first.
    """

    def __init__(self, *, in_micro_batches: bool = False) -> None:
        self._in_micro_batches = in_micro_batches
        self.examples_per_batch: int | None = None
        self._resource: tf.Tensor | None = None

    def count(self, batches: Sequence[Batch]) -> tf.Operation:
        """Returns the op that counts each batch when it has come, whatever the step waits for."""
        if self._resource is None:
            self._make_resource()
        with tf.device(HOST), tf.name_scope("count_input"):
            return tf.group(*(self._count(batch) for batch in batches))

    def _make_resource(self) -> None:
        # Of a loop of steps, this is the graph around it.
        with tf.init_scope(), tf.device(HOST), tf.name_scope("input_counter"):
            self._resource = tf.raw_ops.VarHandleOp(
                dtype=tf.int64, shape=[2], shared_name=f"tfdist_input_counter_{uuid.uuid4().hex}"
            )
            zeros = tf.zeros([2], tf.int64)
            self.reset = tf.raw_ops.AssignVariableOp(resource=self._resource, value=zeros)
            self.counts = tf.raw_ops.ReadVariableOp(resource=self._resource, dtype=tf.int64)

    def _count(self, batch: Batch) -> tf.Operation:
        features = tf.nest.flatten(batch[0])
        examples = _num_examples(features[0]) if features else 0
        if self._in_micro_batches and features:
            examples = math.prod(features[0].shape[:2])  # These are known.
        self.examples_per_batch = examples if isinstance(examples, int) else None
        has_come = tf.nest.flatten(features[:1], expand_composites=True)
        with tf.control_dependencies(has_come):
            added = tf.stack([tf.constant(1, tf.int64), tf.cast(examples, tf.int64)])
            return tf.raw_ops.AssignAddVariableOp(resource=self._resource, value=added)


def _num_examples(feature: Any) -> Any:
    """Returns the size of the first dimension: an int where it is known, 0 where there is none."""
    if isinstance(feature, tf.SparseTensor):
        return feature.dense_shape[0]
    if isinstance(feature, tf.RaggedTensor):
        return feature.nrows()
    tensor = tf.convert_to_tensor(feature)
    if not tensor.shape.rank:
        return 0
    size = tensor.shape[0]
    return tf.shape(tensor, tf.int64)[0] if size is None else int(size)
