"""Results of a Keras model's steps, combined over all replicas inside of the step.

The messages are part of the step's function, so they overlap with the update of the weights. Every
worker traces the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.eager.replica_variable import reads_combined, tf_variable
from tfdist.strategies.placement import HOST
from tfdist.strategies.private_tensorflow import ResourceVariable


class CombinedLogs:
    """The logs of train or test steps.

    Logs that are the results of the model's metrics become those of all rows. Other logs, which a
    model's own `train_step` has returned, are averaged over the replicas.

    Each worker adds numbers to the message, its requests, such as "it got a stop signal".

    Args:
      model: The model.
      strategy: Its strategy.
      num_requests: The number of requests.
    """

    def __init__(self, model: Any, strategy: Any, num_requests: int = 0) -> None:
        self._model = model
        self._strategy = strategy
        self._own = [0.0] * num_requests
        workers = strategy.extended.collectives.num_workers
        with tf.init_scope(), tf.device(HOST):
            # No variables of the strategy: they are not saved, and each worker has its own.
            self._requests = ResourceVariable(tf.zeros([num_requests]), trainable=False)
            self._sums = ResourceVariable(tf.zeros([num_requests + workers]), trainable=False)

    def set_requests(self, requests: Sequence[float]) -> None:
        """Sets this worker's requests for the steps that follow."""
        if list(requests) != self._own:
            self._own = list(requests)
            self._requests.assign(self._own)

    def sums(self) -> list[float]:
        """Returns the sums over the workers in the last step.

        Those of the requests, then one number for each worker: 1 where its own loss was NaN.
        """
        return list(self._sums.numpy().tolist())

    def __call__(self, logs: Any) -> Any:
        """Returns the logs of all replicas, in a step's function; a collective.

        Args:
          logs: What each replica's step has returned.
        """
        model, reducer = self._model, self._strategy.extended.reducer
        results = self._strategy.experimental_local_results
        requests = self._with_nan([results(v)[0] for v in _losses_in(logs)])
        names = set(logs) if isinstance(logs, dict) else None
        if names is not None and names == set(model.get_metrics_result()):
            variables = [tf_variable(v) for metric in model.metrics for v in metric.variables]
            with reads_combined(variables, requests, reducer) as sums:
                logs = model.get_metrics_result()
        else:
            parts = [[tf.convert_to_tensor(v) for v in results(x)] for x in tf.nest.flatten(logs)]
            means = reducer.reduce(parts, mean=True, name="logs") if parts else []
            (sums,) = reducer.reduce([[requests]], mean=False, name="requests")
            logs = tf.nest.pack_sequence_as(logs, means)
        self._sums.assign(sums, read_value=False)
        return logs

    def _with_nan(self, losses: Sequence[Any]) -> tf.Tensor:
        """Returns [requests and workers]: 1 at this worker's place if its own loss is NaN."""
        collectives = self._strategy.extended.collectives
        flags = [tf.cast(tf.math.is_nan(loss), tf.float32) for loss in losses]
        place = tf.one_hot(collectives.worker_index, collectives.num_workers)  # [workers]
        return tf.concat([self._requests, tf.add_n([tf.zeros([]), *flags]) * place], axis=0)


def _losses_in(logs: Any) -> list[Any]:
    loss = logs.get("loss") if isinstance(logs, dict) else None
    return [] if loss is None else [loss]


def all_rows(outputs: Any, strategy: Any) -> Any:
    """Returns the rows that all replicas predict, in the batch's order; a collective.

    Of workers with their own datasets, each gets its own rows.

    Args:
      outputs: What each replica's step has returned: tensors [rows, ...].
      strategy: The strategy.
    """
    reducer, results = strategy.extended.reducer, strategy.experimental_local_results

    def gather(rows: Any) -> tf.Tensor:
        if strategy.extended.divides_batches:
            return reducer.gather(list(results(rows)), 0)
        return tf.concat(results(rows), axis=0)  # Each worker predicts its own dataset.

    return tf.nest.map_structure(gather, outputs)
