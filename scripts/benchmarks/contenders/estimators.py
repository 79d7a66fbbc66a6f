"""The model_fn with host_call of contenders that use tfdist, and a hook that takes turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras_models as models
import tensorflow as tf
import turns

import tfdist.estimator as tfe

v1 = tf.compat.v1

# One weight: what a step of it takes is what a step costs before anything is computed.
TINY = "tiny"


@dataclass(frozen=True, kw_only=True)
class Built:
    """A model in a graph.

    Attributes:
      loss: Scalar.
      variables: Those to train.
      optimizer: Of v1.
      updates: Further ops that every step runs.
    """

    loss: tf.Tensor
    variables: list[tf.Variable]
    optimizer: Any
    updates: list[tf.Operation]


def make_dataset(name: str) -> tf.data.Dataset:
    """Returns one batch, in memory, again and again."""
    if name != TINY:
        return models.make_dataset(name, 0)
    return tf.data.Dataset.from_tensors((1.0, 1.0)).repeat()


def build(name: str, features: tf.Tensor, labels: tf.Tensor) -> Built:
    """Builds a work's model, or the tiny one, in the current graph."""
    if name == TINY:
        weight = v1.get_variable("weight", initializer=0.0, use_resource=True)
        return Built(
            loss=tf.square(weight * features - labels),
            variables=[weight],
            optimizer=v1.train.GradientDescentOptimizer(0.001),
            updates=[],
        )
    model = models.make_model(name)
    loss = models.loss_of(model, features, labels)
    return Built(
        loss=loss,
        variables=model.trainable_variables,
        optimizer=models.make_optimizer(name),
        updates=model.get_updates_for(None) + model.get_updates_for(features),
    )


def make_model_fn(name: str) -> Callable[..., tfe.EstimatorSpec]:
    """Makes a model_fn of a work, or TINY, whose gradients are applied on the host."""

    def model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str) -> tfe.EstimatorSpec:
        built = build(name, features, labels)
        optimizer = built.optimizer
        found = optimizer.compute_gradients(built.loss, var_list=built.variables)

        def apply_on_host(*gradients: tf.Tensor) -> tf.Operation:
            pairs = zip(gradients, built.variables, strict=True)
            return optimizer.apply_gradients(pairs)

        with tf.control_dependencies(built.updates):
            train_op = tf.identity(built.loss)
        host_call = (apply_on_host, [gradient for gradient, _ in found])
        return tfe.EstimatorSpec(mode, loss=built.loss, train_op=train_op, host_call=host_call)

    return model_fn


class TakeTurns(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Does the Estimator's steps in turns.

    Args:
      worker_index: Which worker of the contender this is.
    """

    def __init__(self, worker_index: int = 0) -> None:
        self._worker_index = worker_index

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._turns = turns.Turns(self._worker_index)
        self._turns.goes_on()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if not self._turns.goes_on():
            run_context.request_stop()
