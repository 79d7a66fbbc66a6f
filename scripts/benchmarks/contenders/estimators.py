"""The model_fn with host_call of contenders that use tfdist, and a hook that takes turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras_models as models
import tensorflow as tf
import turns

import tfdist.estimator as tfe


def make_model_fn(name: str) -> Callable[..., tfe.EstimatorSpec]:
    """Makes a model_fn of a work, or of the tiny model, whose gradients are applied on the host."""

    def model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str) -> tfe.EstimatorSpec:
        built = models.build(name, features, labels)
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
    """Does the Estimator's steps in turns, as this worker of the contender."""

    def __init__(self, worker_index: int = 0) -> None:
        self._worker_index = worker_index

    def after_create_session(self, session: Any, coord: Any) -> None:
        shapes = [variable.shape for variable in tf.compat.v1.trainable_variables()]
        num_parameters = sum(shape.num_elements() for shape in shapes)
        self._turns = turns.Turns(self._worker_index, num_parameters)
        self._turns.goes_on()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if not self._turns.goes_on():
            run_context.request_stop()
