"""Progress of a training for the launcher: steps, batches taken in, and saving."""

from __future__ import annotations

import math
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.checkpoints.background import WaitingListener
from tfdist.estimator.inputs.batches import Batch
from tfdist.estimator.inputs.queued_input import leaves
from tfdist.process.progress_file import ProgressFile, find_progress_file, in_phase, set_phase
from tfdist.strategies.graph.step_counter import StepCounter
from tfdist.strategies.placement import HOST
from tfdist.strategies.private_tensorflow import listeners_of
from tfdist.strategies.stop_signals import StopSignals

# During a call that takes longer, the report checks whether it waits for its input.
_LONG_CALL_S = 2.0
_LOOK_EVERY_S = 0.5


class NoReport:
    """The report of a training without a launcher: nothing is written.

    The training loop calls each method at one place.
    """

    count_input: Callable[[Sequence[Batch]], tf.Operation] | None = None

    def fetches(self) -> list[tf.Tensor]:
        """Returns the tensors to fetch in each session call."""
        return []

    def start(self, session: v1.Session, first_step: int, last_step: int | None) -> None:
        """Writes the global steps at the start and the end, before the first call of a session.

        Without `last_step` only the input ends the training.
        """

    def training(self) -> AbstractContextManager[None]:
        """Sets the phase "training" for the `with` block, in which the session runs."""
        return in_phase("training")

    def call_begins(self) -> None:
        """Writes that a session call begins; must be called right before it."""

    def call_ends(self, session: v1.Session, loss: float, counts: Sequence[Any]) -> None:
        """Writes the step and the loss of a session call, right after it.

        `counts` are the values of `fetches`.
        """

    def end(self, session: v1.Session) -> None:
        """Writes the examples of the whole training, after its last call."""


class ProgressReport(NoReport):
    """The report of a training to its launcher: writes the progress file.

    Made before the graph is built. A step costs no system call.
    """

    def __init__(
        self,
        file: ProgressFile,
        counter: InputCounter,
        *,
        steps_per_call: int,
        batches_per_step: int,
        signals: StopSignals,
    ) -> None:
        self.count_input = counter.count
        self._file = file
        self._counter = counter
        self._steps_per_call = steps_per_call
        self._batches_per_step = batches_per_step
        self._signals = signals
        self._progress = StepCounter()
        self._calls = 0
        self._is_stopping = False

    def fetches(self) -> list[tf.Tensor]:
        return [self._counter.counts] if self._counter.examples_per_batch is None else []

    def start(self, session: v1.Session, first_step: int, last_step: int | None) -> None:
        self._progress.begin()
        self._progress.start(session)
        self._global_step = v1.train.get_global_step()
        self._first_step = first_step
        self._session = session
        session.run(self._counter.reset)
        examples_per_batch = self._counter.examples_per_batch or 0.0
        self._examples_per_call = examples_per_batch * self._batches_per_step * self._steps_per_call
        before = self._file.read()
        self._examples_before = 0.0 if before is None else before.examples
        self._file.write(step=first_step, total_steps=-1 if last_step is None else last_step)

    def call_begins(self) -> None:
        self._file.step_begins()

    def call_ends(self, session: v1.Session, loss: float, counts: Sequence[Any]) -> None:
        self._progress.count(session)
        self._calls += 1
        # Fetched together with the step, the counts may be those before it.
        examples = counts[0][1] if counts else self._calls * self._examples_per_call
        self._file.step_ends(
            step=self._progress.step, loss=loss, examples=self._examples_before + examples
        )
        self._write_stopping()

    def end(self, session: v1.Session) -> None:
        self._write_stopping()
        counted = float(session.run(self._counter.counts)[1])
        self._file.write(examples=self._examples_before + counted)

    def _write_stopping(self) -> None:
        if self._signals.is_stopping and not self._is_stopping:
            self._is_stopping = True
            set_phase("stopping")

    @contextmanager
    def training(self) -> Iterator[None]:
        """Sets the phase, and watches for long calls in a thread."""
        is_over = threading.Event()
        watcher = threading.Thread(target=self._watch_calls, args=(is_over,), daemon=True)
        with in_phase("training"):
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
        """Returns whether all batches read so far are used up: a step lacks one."""
        steps_done = step - self._first_step
        if self._calls:  # A model may count its steps in another way.
            steps_done *= self._calls * self._steps_per_call
            steps_done //= max(1, self._progress.step - self._first_step)
        return batches - steps_done * self._batches_per_step < self._batches_per_step


class SavingNotes(WaitingListener):
    """Notes the beginning and the end of each save; the first of a saver's listeners.

    The others find the last checkpoint written when the training ends.
    """

    def __init__(self, signals: StopSignals) -> None:
        self._signals = signals

    def add_to(self, saver: v1.train.CheckpointSaverHook) -> None:
        """Becomes the saver's first listener, and replaces the one of an earlier training."""
        listeners = listeners_of(saver)
        listeners[:] = [
            self,
            *(listener for listener in listeners if not isinstance(listener, SavingNotes)),
        ]

    def before_save(self, session: v1.Session, global_step_value: int) -> None:
        self.wait_for_files()  # Those of the last save.
        self._signals.is_saving = True
        self._phase = set_phase("saving")

    def after_save(self, session: v1.Session, global_step_value: int) -> None:
        set_phase(self._phase)
        self._signals.is_saving = False
        self._signals.leave_unless_noted()

    def end(self, session: v1.Session, global_step_value: int) -> None:
        self.wait_for_files()


class InputCounter:
    """Counts batches, and the examples in them, on the host.

    Its ops are added after the model's, because the graph's random seeds depend on the number of
    ops before them. It is not a `tf.Variable`, so strategies, savers and initialisers ignore it. It
    costs some microseconds a step.

    Attributes:
      examples_per_batch: The batch size where the input has a static one, else None.
      counts: int64 tensor with two elements: the numbers of batches and of examples.
      reset: The op that sets both to 0; must be run first.
    """

    def __init__(self, *, in_micro_batches: bool = False) -> None:
        self._in_micro_batches = in_micro_batches
        self.examples_per_batch: int | None = None
        self._resource: tf.Tensor | None = None

    def count(self, batches: Sequence[Batch]) -> tf.Operation:
        """Returns the op that counts each batch as soon as it has been read."""
        if self._resource is None:
            self._make_resource()
        with tf.device(HOST), tf.name_scope("count_input"):
            return tf.group(*(self._count(batch) for batch in batches))

    def _make_resource(self) -> None:
        # With a loop of steps, the graph outside of the loop.
        with tf.init_scope(), tf.device(HOST), tf.name_scope("input_counter"):
            self._resource = tf.raw_ops.VarHandleOp(
                dtype=tf.int64, shape=[2], shared_name=f"tfdist_input_counter_{uuid.uuid4().hex}"
            )
            zeros = tf.zeros([2], tf.int64)  # [batches, examples]
            self.reset = tf.raw_ops.AssignVariableOp(resource=self._resource, value=zeros)
            self.counts = tf.raw_ops.ReadVariableOp(resource=self._resource, dtype=tf.int64)

    def _count(self, batch: Batch) -> tf.Operation:
        features = leaves(batch[0])
        examples = _num_examples(features[0]) if features else 0
        if self._in_micro_batches and features:
            examples = math.prod(features[0].shape.as_list()[:2])  # Static.
        self.examples_per_batch = examples if isinstance(examples, int) else None
        has_come = tf.nest.flatten(features[:1], expand_composites=True)
        with tf.control_dependencies(has_come):
            added = tf.stack([tf.constant(1, tf.int64), tf.cast(examples, tf.int64)])  # [2]
            return tf.raw_ops.AssignAddVariableOp(resource=self._resource, value=added)


def _num_examples(feature: Any) -> Any:
    """Returns the size of the first dimension: an int if it is static, 0 without a dimension."""
    if isinstance(feature, tf.SparseTensor):
        return feature.dense_shape[0]
    if isinstance(feature, tf.RaggedTensor):
        return feature.nrows()
    tensor = tf.convert_to_tensor(feature)
    if not tensor.shape.rank:
        return 0
    size = tensor.shape.as_list()[0]  # An element of a shape may be a Dimension of TensorFlow 1.
    return tf.shape(tensor, tf.int64)[0] if size is None else int(size)


def make_report(
    signals: StopSignals, *, steps_per_call: int, batches_per_step: int, in_micro_batches: bool
) -> NoReport:
    """Makes the report of a training for the launcher; without a launcher nothing is written.

    `batches_per_step` is what this worker takes; those of a pipeline are `in_micro_batches`:
    [micro_batches, micro_batch, ...].
    """
    file = find_progress_file()
    if file is None:
        return NoReport()
    return ProgressReport(
        file,
        InputCounter(in_micro_batches=in_micro_batches),
        steps_per_call=steps_per_call,
        batches_per_step=batches_per_step,
        signals=signals,
    )
