"""Results of a Keras model's steps, combined over all replicas inside of the step.

The messages are part of the step's function, so they overlap with the update of the weights. Every
worker traces the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.eager.replica_variable import reads_combined, reads_own, tf_variable
from tfdist.strategies.eager.step import NOW, loss_in
from tfdist.strategies.placement import HOST
from tfdist.strategies.private_tensorflow import ResourceVariable


class OwnResults:
    """The results of the steps of a process that is alone; it counts the rows of train steps."""

    has_message = False

    def __init__(self) -> None:
        self._run: Any = None  # The call of `fit` in which rows are counted.
        self._examples: Any = None

    def __call__(self, results: Any) -> Any:
        return results

    def count(self, rows: Sequence[tf.Tensor]) -> None:
        """Counts the rows of each replica of this worker, int32 scalars, in a train step."""
        if self._examples is None:
            with tf.init_scope(), tf.device(HOST):  # Not the strategy's: it is not saved.
                self._examples = ResourceVariable(tf.zeros([], tf.float64), trainable=False)
        added = tf.add_n([tf.cast(number, tf.float64) for number in rows])
        self._examples.assign_add(added, read_value=False)

    def begin_run(self, run: Any) -> None:
        """Begins to count at 0 if this is another call of `fit` than the last one."""
        if run is not self._run:
            self._run = run
            if self._examples is not None:
                self._examples.assign(0.0)

    def examples(self) -> float:
        """Returns the rows that this worker has trained on in the current `fit`."""
        return 0.0 if self._examples is None else float(self._examples.numpy())

    def message(self) -> tf.Tensor:
        """Returns an empty message."""
        return tf.zeros([0])

    def receive(self, sums: tf.Tensor) -> None:
        """Does nothing: there is no other worker."""


class CombinedLogs(OwnResults):
    """The logs of train or test steps.

    Logs that are the results of the model's metrics become those of all rows. Other logs, which a
    model's own `train_step` has returned, are averaged over the replicas.

    A train step has a message: this worker's requests, such as "it got a stop signal", and whether
    its loss was NaN in the step before. The message travels with the step's last gradients, so it
    costs nothing. Combining the metrics is a message by itself, so `set_combines` can leave it out.

        replica         gradients ----------------.
        host            requests, NaN before ------+---> sums over the workers
        replica         metrics' own values
        host, if it     metrics' own values, NaN now --> sums over the workers, logs
        combines

    If gradients take no message along, or the logs are not the metrics', each step combines, and
    the requests are in that message.

    Args:
      model: The model.
      strategy: Its strategy.
      num_requests: The number of requests.

    Attributes:
      combines_always: Whether a step that was traced combines whatever `set_combines` says.
    """

    def __init__(self, model: Any, strategy: Any, num_requests: int = 0) -> None:
        super().__init__()
        self._model = model
        self._strategy = strategy
        self.has_message = num_requests > 0
        self._own = [0.0] * num_requests
        self._combines_now = True
        self.combines_always = False
        workers = strategy.extended.collectives.num_workers
        with tf.init_scope(), tf.device(HOST):
            # No variables of the strategy: they are not saved, and each worker has its own.
            self._requests = ResourceVariable(tf.zeros([num_requests]), trainable=False)
            self._own_nan = ResourceVariable(tf.zeros([workers]), trainable=False)
            self._sums = ResourceVariable(tf.zeros([num_requests]), trainable=False)
            self._nans = ResourceVariable(tf.zeros([workers]), trainable=False)
            self._combines = ResourceVariable(True, trainable=False)

    def set_requests(self, requests: Sequence[float]) -> None:
        """Sets this worker's requests for the steps that follow."""
        if list(requests) != self._own:
            self._own = list(requests)
            self._requests.assign(self._own)

    def set_combines(self, combines: bool) -> None:
        """Sets whether the steps that follow combine the metrics; equal on all workers."""
        if combines != self._combines_now:
            self._combines_now = combines
            self._combines.assign(combines)

    def sums(self) -> list[float]:
        """Returns the sums over the workers in the last step.

        [summed requests, then for each worker 1.0 if its own loss was NaN]. The NaN flags are one
        step old if this step did not combine the metrics.
        """
        return [*self._sums.numpy().tolist(), *self._nans.numpy().tolist()]

    def message(self) -> tf.Tensor:
        """Returns [requests and workers], what gradients take along."""
        with tf.device(HOST):
            return tf.concat([self._requests, self._own_nan], axis=0)

    def receive(self, sums: tf.Tensor) -> None:
        """Takes the sums of all workers' messages."""
        self._sums.assign(sums[: len(self._own)], read_value=False)
        self._nans.assign(sums[len(self._own) :], read_value=False)

    def __call__(self, results: Any) -> Any:
        """Returns the logs of all replicas, in a step's function; a collective if it combines.

        `results` is what each replica's step has returned.
        """
        logs, model, reducer = results, self._model, self._strategy.extended.reducer
        local = self._strategy.experimental_local_results
        loss = loss_in(logs)
        own_nan = self._nan_flags(None if loss is None else local(loss)[0])
        self._own_nan.assign(own_nan, read_value=False)
        is_sent = self.has_message and NOW.step is not None and not NOW.step.sends_message
        more = own_nan if is_sent else tf.concat([self._requests, own_nan], axis=0)

        def note(sums: tf.Tensor) -> None:
            if is_sent:
                self._nans.assign(sums, read_value=False)
            else:
                self.receive(sums)

        names = set(logs) if isinstance(logs, dict) else None
        if names is None or names != set(model.get_metrics_result()):
            self.combines_always = True
            parts = [[tf.convert_to_tensor(v) for v in local(x)] for x in tf.nest.flatten(logs)]
            means = reducer.reduce(parts, mean=True, name="logs") if parts else []
            (sums,) = reducer.reduce([[more]], mean=False, name="requests")
            note(sums)
            return tf.nest.pack_sequence_as(logs, means)

        def of_all_rows() -> dict[str, tf.Tensor]:
            variables = [tf_variable(v) for metric in model.metrics for v in metric.variables]
            with reads_combined(variables, more, reducer) as sums:
                note(sums)
                return tf.nest.map_structure(tf.convert_to_tensor, model.get_metrics_result())

        def left_out() -> dict[str, tf.Tensor]:
            with reads_own():
                return tf.nest.map_structure(tf.convert_to_tensor, model.get_metrics_result())

        if not is_sent:
            self.combines_always = True
            return of_all_rows()
        return tf.cond(self._combines, of_all_rows, left_out)

    def _nan_flags(self, loss: Any) -> tf.Tensor:
        """Returns [workers]: 1 at this worker's place if its own loss, unless None, is NaN."""
        collectives = self._strategy.extended.collectives
        is_nan = tf.zeros([]) if loss is None else tf.cast(tf.math.is_nan(loss), tf.float32)
        return is_nan * tf.one_hot(collectives.worker_index, collectives.num_workers)


class PredictedRows(OwnResults):
    """The rows that all replicas predict, in the batch's order: a collective.

    Of workers with their own datasets, each gets its own rows.
    """

    def __init__(self, strategy: Any) -> None:
        super().__init__()
        self._strategy = strategy

    def __call__(self, results: Any) -> Any:
        return tf.nest.map_structure(self._gathered, results)

    def _gathered(self, rows: Any) -> tf.Tensor:
        """Returns [rows, ...], given the rows of each replica of this worker."""
        own = self._strategy.experimental_local_results(rows)
        if self._strategy.extended.divides_batches:
            return self._strategy.extended.reducer.gather(list(own), 0)
        return tf.concat(own, axis=0)  # Each worker predicts its own dataset.
