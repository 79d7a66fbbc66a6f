"""From a head's loss to the op of one training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.heads import arguments
from tfdist.estimator.heads.keras_optimizers import graph_optimizer


def build_train_op(
    loss: tf.Tensor,
    *,
    loss_reduction: str,
    optimizer: Any,
    trainable_variables: Sequence[tf.Variable] | None,
    train_op_fn: Callable[[tf.Tensor], Any] | None,
    update_ops: Sequence[Any] | None,
) -> Any:
    """Builds a step with the optimizer or with train_op_fn, and the update ops.

    Runs in the scope "training", where Keras optimizers of tf.estimator put their variables.

    Args:
      loss: Scalar of this worker's batch.
      loss_reduction: Whether that is a mean or a sum over the batch.
      optimizer: A Keras or v1 optimizer, or None.
      trainable_variables: What the optimizer updates.
      train_op_fn: From the loss to an op, or None.
      update_ops: Ops to run too.

    Raises:
      ValueError: If an argument is not usable, or there is not exactly one of optimizer and
        train_op_fn.
    """
    if update_ops is not None:
        _check_list("update_ops", update_ops)
    with v1.name_scope(""), v1.name_scope("training"):
        if optimizer is not None and train_op_fn is not None:
            raise ValueError("train_op_fn and optimizer cannot both be set. Give one of them.")
        if optimizer is not None:
            train_op = _minimize(loss, loss_reduction, optimizer, trainable_variables)
        elif train_op_fn is not None:
            train_op = train_op_fn(loss)
        else:
            raise ValueError("train_op_fn and optimizer cannot both be None. Give one of them.")
        return train_op if update_ops is None else tf.group(train_op, *update_ops)


def _minimize(
    loss: tf.Tensor,
    loss_reduction: str,
    optimizer: Any,
    variables: Sequence[tf.Variable] | None,
) -> Any:
    if isinstance(optimizer, v1.train.Optimizer):
        if variables is not None:
            _check_list("trainable_variables", variables)
        # Divides a mean loss by the number of workers by itself.
        step = v1.train.get_or_create_global_step()
        return optimizer.minimize(loss, global_step=step, var_list=variables)
    optimizer = graph_optimizer(optimizer)
    if variables is None:
        raise ValueError(
            "trainable_variables cannot be None with a Keras optimizer. Give the model's: "
            "model.trainable_variables, or tf.compat.v1.trainable_variables()."
        )
    _check_list("trainable_variables", variables)
    # A Keras optimizer adds up the workers' gradients: a mean becomes their mean here.
    num_workers = tf.distribute.get_strategy().num_replicas_in_sync
    if num_workers > 1 and loss_reduction != arguments.SUM:
        loss = loss / num_workers
    return optimizer.get_updates(loss, variables)[0]


def _check_list(name: str, value: Any) -> None:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{name} should be a list or a tuple. Given type: {type(value)}.")
