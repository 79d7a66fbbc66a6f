"""Estimator.predict: a model's outputs over an input, one example at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.checkpoints.scaffold import checked
from tfdist.estimator.config.arguments import InputFn
from tfdist.estimator.config.run_config import RunConfig
from tfdist.estimator.evaluation.initial_weights import seeded_graph
from tfdist.estimator.graph import sessions
from tfdist.estimator.graph.precision import ModelPrecision
from tfdist.estimator.graph.replicas import num_local_replicas
from tfdist.estimator.inputs.batches import call_input_fn, make_input
from tfdist.estimator.spec import EstimatorSpec, ModeKeys
from tfdist.strategies.placement import place
from tfdist.strategies.saving.checkpoint_files import damage_named
from tfdist.training.precision import find_precision


def predict(
    *,
    model_fn: Callable[[Any, Any], EstimatorSpec],
    input_fn: InputFn,
    params: dict[str, Any],
    config: RunConfig,
    predict_keys: Sequence[str] | None,
    hooks: Sequence[v1.train.SessionRunHook],
    checkpoint_path: str | None,
    yield_single_examples: bool,
    warm_start: Callable[[], None],
    create_global_step: Callable[[tf.Graph], tf.Variable],
    num_predictions: int | None,
) -> Iterator[Any]:
    """Yields predictions in the input's order, until the input ends or there are enough.

    A batch is that of all replicas of this worker, one after the other, although one device
    computes them: its size does not change with the input's batches.

    The graph is the thread's default only while a value is being computed. So two of these
    generators can be read alternately.
    """
    graph = tf.Graph()
    is_untrained = checkpoint_path is None
    with graph.as_default(), seeded_graph(config.tf_random_seed, is_untrained=is_untrained):
        placement = place(config.device.device)
        create_global_step(graph)
        result = call_input_fn(
            input_fn, mode=ModeKeys.PREDICT, params=params, config=config, input_context=None
        )
        inputs = make_input(result)
        if inputs.is_endless:
            v1.logging.warning(
                "Input graph does not use tf.data.Dataset or contain a QueueRunner. That means "
                "predict yields forever. This is probably a mistake."
            )
        features, _, _ = inputs.next_batch()
        precision = ModelPrecision(find_precision(config.device.precision), device=None)
        with placement.on_device(), precision.around_model():
            spec = precision.call(model_fn, features, None)
        if is_untrained:
            warm_start()
        predictions = select(spec.predictions, predict_keys)
        with damage_named(checkpoint_path):
            session = v1.train.SingularMonitoredSession(
                hooks=[*inputs.hooks, *hooks, *spec.prediction_hooks],
                scaffold=checked(spec.scaffold, checkpoint_path),
                master=config.master,
                config=sessions.configured(placement, config),
                checkpoint_filename_with_path=checkpoint_path,
            )

    def batches() -> Iterator[Any]:
        while not session.should_stop():
            try:
                with graph.as_default():
                    batch = session.run(predictions)
            except (tf.errors.OutOfRangeError, StopIteration):
                return
            yield batch

    if yield_single_examples:
        found: Iterator[Any] = itertools.chain.from_iterable(map(split_batch, batches()))
    else:
        found = joined(batches(), num_local_replicas(config, None))
    try:
        yield from itertools.islice(found, num_predictions)
    except BaseException as error:  # Also GeneratorExit: then hooks' `end` is not called.
        with graph.as_default():
            session.__exit__(type(error), error, error.__traceback__)
        raise
    with graph.as_default():
        session.close()


def joined(batches: Iterator[Any], count: int) -> Iterator[Any]:
    """Joins so many batches of predictions at a time along the first dimension; the last fewer."""
    while parts := list(itertools.islice(batches, count)):
        if len(parts) == 1:
            yield parts[0]
        else:
            yield tf.nest.map_structure(
                lambda *values: np.concatenate([np.atleast_1d(value) for value in values]), *parts
            )


def select(predictions: Any, keys: Sequence[str] | None) -> Any:
    """Returns the requested entries of a dict of predictions; ValueError if it has none."""
    if not keys:
        return predictions
    keys = [keys] if isinstance(keys, str) else keys
    if not isinstance(predictions, dict):
        raise ValueError("predict_keys argument is not valid in case of non-dict predictions.")
    kept = {key: value for key, value in predictions.items() if key in keys}
    if not kept:
        raise ValueError(
            f"Expected to run at least one output from {list(predictions)}, provided {list(keys)}."
        )
    return kept


def split_batch(batch: Any) -> Iterator[Any]:
    """Splits a batch of predictions into examples along the first dimension."""
    if not isinstance(batch, dict):
        yield from batch
        return
    sizes = {key: value.shape[0] for key, value in batch.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"Batch length of predictions should be same. Got {sizes}.")
    for i in range(next(iter(sizes.values()))):
        yield {key: value[i] for key, value in batch.items()}
