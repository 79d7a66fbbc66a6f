"""The model_fn with host_call of contenders that use tfdist."""

from __future__ import annotations

from collections.abc import Callable

import keras_models as models
import tensorflow as tf

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
