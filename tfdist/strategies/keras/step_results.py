"""Results of a Keras model's steps, combined over all replicas inside of the step.

The messages are part of the step's function, so they overlap with the update of the weights. Every
worker traces the same ones.

A train step's function returns numbers for `fit` beside its logs, under a key that `take` removes:
one small tensor on the host, so that `fit` need not read variables, nor wait for a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.eager.replica_data import adds_to, depends_on_replica
from tfdist.strategies.eager.replica_variable import reads_combined, reads_own, tf_variable
from tfdist.strategies.eager.step import NOW, Assignment, KerasStep, loss_in
from tfdist.strategies.keras.metric_updates import EagerUpdates, metrics_of_the_program
from tfdist.strategies.placement import HOST
from tfdist.strategies.private_tensorflow import ResourceVariable

_ADDED_UP = (
    "The metric {} gives its variable {} a value that is no sum over rows, such as a maximum or a "
    "number of batches: the values of all replicas are added. Make it of sums over rows, or give "
    'add_weight an aggregation ("mean", "only_first_replica").'
)


# The key of the numbers for `fit` in a train step's logs.
_NUMBERS = "tfdist_numbers"


class OwnResults:
    """The results of the steps of a process that is alone; it counts the rows of train steps.

    Attributes:
      examples: The rows that this worker has trained on in the current `fit`, after `take`.
    """

    has_message = False

    def __init__(self) -> None:
        self._run: Any = None  # The call of `fit` in which rows are counted.
        self._examples: Any = None
        self.examples = 0.0

    def begin(self) -> None:
        """Does nothing: results stay as they are."""

    def __call__(self, results: Any) -> Any:
        """Returns the results, and a train step's numbers for `fit`, in the step's function."""
        if self._examples is None or not isinstance(results, dict):
            return results
        return {**results, _NUMBERS: self._numbers()}

    def take(self, results: Any) -> Any:
        """Takes the numbers out of what a train step's function has returned; returns the logs."""
        if isinstance(results, dict) and _NUMBERS in results:
            results = dict(results)
            self._receive_numbers(results.pop(_NUMBERS).numpy().tolist())
        else:
            self._receive_numbers(self._numbers().numpy().tolist())
        return results

    def _numbers(self) -> tf.Tensor:
        """Returns the numbers for `fit`: float64 [1], on the host."""
        with tf.device(HOST):
            examples = tf.zeros([], tf.float64) if self._examples is None else self._examples
            return tf.reshape(examples, [1])

    def _receive_numbers(self, numbers: list[float]) -> None:
        (self.examples,) = numbers

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

    def message(self) -> tf.Tensor:
        """Returns an empty message."""
        return tf.zeros([0])

    def receive(self, sums: tf.Tensor) -> None:
        """Does nothing: there is no other worker."""


class CombinedLogs(OwnResults):
    """The logs of train or test steps.

    A result of one of the model's metrics becomes that of all rows, under whatever name it is. Of
    other values, which a program's `train_step` or `compute_metrics` has returned:

        a number                    each replica's counts by its share of the rows
        a loss of the program's     the replicas' add up, as their gradients do, if Keras has not
        own                         computed it
        a number for each row       those of all rows, in the batch's order

    A train step has a message: this worker's requests, such as "it got a stop signal", and whether
    its loss was NaN in the step before. The message travels with the step's last gradients, so it
    costs nothing. Combining the metrics is a message by itself, so `set_combines` can leave it out.

        replica         gradients ----------------.
        host            requests, NaN before ------+---> sums over the workers
        replica         metrics' own values
        host, if it     metrics' own values, NaN now --> sums over the workers, logs
        combines

    If gradients take no message along, or logs have other values than results, each step combines,
    and the requests are in that message. So does a test step with other logs than all metrics have:
    `evaluate` then returns the last logs, in place of the metrics' results at the end.

    Args:
      model: The model.
      strategy: Its strategy.
      num_requests: The number of requests.

    Attributes:
      combines_always: Whether a step that was traced combines whatever `set_combines` says.
      is_read: Whether a worker reads the logs of each test step; equal on all workers.
      sums: The sums over the workers in the last step, after `take`: the requests', then for each
        worker 1.0 if its own loss was NaN. The NaN flags are one step old if this step did not
        combine the metrics.
    """

    def __init__(self, model: Any, strategy: Any, num_requests: int = 0) -> None:
        super().__init__()
        self._model = model
        self._strategy = strategy
        self.has_message = num_requests > 0
        self._own = [0.0] * num_requests
        self._combines_now = True
        self.combines_always = False
        self.is_read = True
        self.sums: list[float] = []
        workers = strategy.extended.collectives.num_workers
        self._results: list[tuple[Any, Any, Any]] = []  # A tensor, its metric, the key in a dict.
        # A metric, one of its methods' names, and the attribute of that name.
        self._noted: list[tuple[Any, str, Any]] = []
        self._updates = EagerUpdates()
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

    def _numbers(self) -> tf.Tensor:
        """Returns the numbers for `fit`: float64 [1 + requests + workers], on the host."""
        with tf.device(HOST):
            sums = tf.cast(tf.concat([self._sums, self._nans], axis=0), tf.float64)
            return tf.concat([super()._numbers(), sums], axis=0)

    def _receive_numbers(self, numbers: list[float]) -> None:
        self.examples, *self.sums = numbers

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

        leaves = [list(local(leaf)) for leaf in tf.nest.flatten(logs)]
        found = self._found_results(leaves)
        others = [leaf for leaf, result in zip(leaves, found, strict=True) if result is None]

        def packed(combined: Sequence[tf.Tensor]) -> Any:
            """Returns the logs, with the metrics' results as reads give them here."""
            rest, own = iter(combined), {}
            for metric, _ in filter(None, found):
                own[id(metric)] = metric.result()
            values = [
                next(rest) if result is None else _part(own[id(result[0])], result[1])
                for result in found
            ]
            return tf.nest.pack_sequence_as(logs, [tf.convert_to_tensor(v) for v in values])

        def of_all_rows() -> Any:
            metrics = {id(m): m for m in [*model.metrics, *(m for m, _ in filter(None, found))]}
            variables = [tf_variable(v) for metric in metrics.values() for v in metric.variables]
            with reads_combined(variables, more, reducer) as sums:
                note(sums)
                logs_of_all = packed(self._combined(others))
                self._note_assignments({id(metric) for metric, _ in filter(None, found)})
                return logs_of_all

        def left_out() -> Any:
            with reads_own():
                return packed([])

        is_left_out = is_sent if self.has_message else self._are_results_of_all_metrics(logs)
        if others or not is_left_out:
            self.combines_always = True
            return super().__call__(of_all_rows())
        return super().__call__(tf.cond(self._combines, of_all_rows, left_out))

    def _are_results_of_all_metrics(self, logs: Any) -> bool:
        """Returns whether `evaluate` returns what the metrics have in the end, rather than logs."""
        try:
            with reads_own():
                return (
                    isinstance(logs, dict)
                    and logs.keys() == self._model.get_metrics_result().keys()
                )
        except (TypeError, ValueError):  # A metric has no result yet.
            return False

    def begin(self) -> None:
        """Begins to note which metric each result is of; eagerly, what updates do as well."""
        self._end_notes()
        self._results = []
        for metric in {id(metric): metric for metric in self._model.metrics}.values():
            self._put(metric, "result", self._noting(metric, metric.result))
        if tf.executing_eagerly():
            for metric, _ in metrics_of_the_program(self._model):
                self._put(metric, "update_state", self._updates.watched(metric.update_state))

    def _put(self, metric: Any, name: str, method: Callable[..., Any]) -> None:
        self._noted.append((metric, name, vars(metric).get(name)))
        vars(metric)[name] = method  # Past Keras' tracking.

    def _note_assignments(self, with_result: set[int]) -> None:
        """Notes the program's own metrics whose results are made of more than sums over the rows.

        It is called after the results of all replicas are made, which have read what they need.

        Args:
          with_result: The ids of the metrics whose results are known.
        """
        step = NOW.step
        assert step is not None
        names: dict[int, str] = {}
        for metric, one in metrics_of_the_program(self._model):
            is_known = not with_result.isdisjoint((id(one), id(metric)))
            names.update(
                (id(variable), metric.name)
                for variable in map(tf_variable, metric.variables)
                if not is_known or id(variable) in NOW.reads.used
            )
        for assignment in step.assignments:
            name = names.get(id(assignment.variable))
            if name is not None and self._is_no_sum_of_rows(assignment, step):
                step.notes[_ADDED_UP.format(name, assignment.variable.name)] = None

    def _is_no_sum_of_rows(self, assignment: Assignment, step: KerasStep) -> bool:
        variable, value = assignment.variable, assignment.value
        if tf.executing_eagerly():
            return self._updates.is_no_sum_of_rows(variable)
        # A number of rows is a constant where it is known before.
        is_equal = depends_on_replica(value) is not True and step.rows is not None
        return is_equal or not (assignment.is_added or adds_to(variable, value))

    def _noting(self, metric: Any, result: Callable[..., Any]) -> Callable[..., Any]:

        def noted(*args: Any, **kwargs: Any) -> Any:
            value = result(*args, **kwargs)
            parts = value.items() if isinstance(value, dict) else [(None, value)]
            self._results += [(part, metric, key) for key, part in parts]
            return value

        return noted

    def _end_notes(self) -> None:
        for metric, name, before in reversed(self._noted):
            del vars(metric)[name]
            if before is not None:
                vars(metric)[name] = before
        self._noted = []

    def _found_results(self, leaves: Sequence[Sequence[Any]]) -> list[tuple[Any, Any] | None]:
        """Returns for each value of the logs the metric that it is a result of, and its key."""
        self._end_notes()
        known = {id(metric) for _, metric, _ in self._results}
        for metric in self._model.metrics:  # tf_keras makes some in the first step.
            last = getattr(metric, "_call_result", None)
            if last is not None and id(metric) not in known:
                parts = last.items() if isinstance(last, dict) else [(None, last)]
                self._results += [(part, metric, key) for key, part in parts]
        by_tensor = {id(part): (metric, key) for part, metric, key in self._results}
        return [
            next((by_tensor[id(v)] for v in values if id(v) in by_tensor), None)
            for values in leaves
        ]

    def _combined(self, leaves: Sequence[Sequence[Any]]) -> list[tf.Tensor]:
        """Combines values that are no results, given those of each replica; a collective."""
        step, reducer = NOW.step, self._strategy.extended.reducer
        assert step is not None
        targets = {id(target) for losses in step.losses for target in losses.targets}
        shares = step.shares or [1.0 / step.num_replicas] * len(step.losses)
        combined: dict[int, tf.Tensor] = {}
        parts: dict[int, list[tf.Tensor]] = {}
        for place, leaf in enumerate(leaves):
            values = [tf.convert_to_tensor(value) for value in leaf]
            if any(id(value) in targets for value in leaf):
                parts[place] = values
            elif _has_rows(values[0], step.rows):
                combined[place] = reducer.gather(values, 0)
            else:
                parts[place] = [
                    _weighed(value, share, None if step.rows is None else step.rows[number])
                    for number, (value, share) in enumerate(zip(values, shares, strict=False))
                ]
        if parts:
            sums = reducer.reduce(list(parts.values()), mean=False, name="logs")
            combined.update(zip(parts, sums, strict=True))
        return [combined[place] for place in range(len(leaves))]

    def _nan_flags(self, loss: Any) -> tf.Tensor:
        """Returns [workers]: 1 at this worker's place if its own loss, unless None, is NaN."""
        collectives = self._strategy.extended.collectives
        is_nan = tf.zeros([]) if loss is None else tf.cast(tf.math.is_nan(loss), tf.float32)
        return is_nan * tf.one_hot(collectives.worker_index, collectives.num_workers)


def _part(result: Any, key: Any) -> Any:
    return result if key is None else result[key]


def _has_rows(value: tf.Tensor, rows: Sequence[tf.Tensor] | None) -> bool:
    """Returns whether a value has a number for each row of a batch whose rows are not known."""
    return bool(value.shape.rank) and (rows is not None) and value.shape[0] is None


def _weighed(value: tf.Tensor, share: Any, rows: tf.Tensor | None) -> tf.Tensor:
    """Returns a replica's value times its share; zeros without rows, where it may be NaN."""
    value = value if value.dtype.is_floating else tf.cast(value, tf.float32)
    if rows is not None:
        value = tf.where(rows > 0, value, tf.zeros_like(value))
    return value * tf.cast(share, value.dtype)


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
