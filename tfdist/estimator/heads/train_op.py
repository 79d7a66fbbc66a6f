"""The op of one training step from a head's loss, also with Keras optimizers in a v1 graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

from tfdist.estimator.heads import checks
from tfdist.estimator.private_keras import learning_rate_as_given
from tfdist.strategies.extended import own_initial_value

# What only the newer optimizers can do; left alone, it changes nothing.
_NEWER_OPTIONS = ("weight_decay", "use_ema", "adaptive_epsilon")


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
    if num_workers > 1 and loss_reduction != checks.SUM:
        loss = loss / num_workers
    return optimizer.get_updates(loss, variables)[0]


def _check_list(name: str, value: Any) -> None:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{name} should be a list or a tuple. Given type: {type(value)}.")


def graph_optimizer(optimizer: Any) -> Any:
    """Returns a Keras 2 optimizer with `get_updates`, which builds the ops of a step.

    tf_keras has two kinds. Those in `tf_keras.optimizers.legacy` build graphs and are returned as
    they are. The newer ones, `tf_keras.optimizers.Adam` and so on, build updates that a v1 graph
    does not run; the legacy one of that name takes over their settings.

    Args:
      optimizer: An optimizer of tf_keras.

    Raises:
      ValueError: If it is something else, or has an option that the legacy one lacks.
    """
    if hasattr(optimizer, "get_updates"):
        return optimizer
    if not isinstance(optimizer, tf_keras.optimizers.Optimizer):
        raise ValueError(
            "The given optimizer is not a tf.keras.optimizers.Optimizer instance of Keras 2, nor "
            f"a tf.compat.v1.train.Optimizer. Received optimizer of type {type(optimizer)}."
        )
    name = type(optimizer).__name__
    legacy = getattr(tf_keras.optimizers.legacy, name, None)
    extra = [option for option in _NEWER_OPTIONS if getattr(optimizer, option, None)]
    if legacy is None or extra:
        what = f"{name} with {', '.join(extra)}" if extra else name
        raise ValueError(
            f"tf_keras.optimizers.{what} cannot train in a graph. Use an optimizer of "
            "tf_keras.optimizers.legacy or of tf.compat.v1.train."
        )
    v1.logging.info("%s runs as tf_keras.optimizers.legacy.%s, which builds graphs.", name, name)
    return _legacy_copy(optimizer, legacy)


def _legacy_copy(optimizer: Any, legacy: Any) -> Any:
    names = [*inspect.signature(legacy).parameters, "clipnorm", "clipvalue", "global_clipnorm"]
    settings = {n: getattr(optimizer, n) for n in names if getattr(optimizer, n, None) is not None}
    copy = legacy(**{**settings, "learning_rate": _learning_rate(optimizer)})
    step = v1.train.get_global_step()
    if step is not None and optimizer.iterations is step:
        copy.iterations = step  # The user lets the optimizer count the steps.
    return copy


def _learning_rate(optimizer: Any) -> Any:
    """Returns the schedule, number or tensor that the optimizer was made with."""
    rate = learning_rate_as_given(optimizer)
    if not isinstance(rate, tf.Variable):
        return rate
    if not tf.is_symbolic_tensor(rate.handle):
        # Made eagerly; this thread builds a graph, a new one executes eagerly.
        with ThreadPoolExecutor(1) as thread:
            return float(thread.submit(rate.numpy).result())
    tensor = own_initial_value(rate)
    number = tf.get_static_value(tensor)
    return tensor if number is None else float(number)


def forget_dependent_variables(optimizer: Any) -> None:
    """Takes variables of a newer optimizer that a v1 graph cannot initialise out of the graph.

    The current rate of a schedule, or a rate that is a tensor, starts with what other variables
    say, and a v1 graph initialises all of them at once. Nothing uses that variable here. Called in
    every mode: what is evaluated must have the variables that were saved. Others stay, so that
    it does not matter whether the user hands over the optimizer in every mode.
    """
    if hasattr(optimizer, "get_updates") or not isinstance(
        optimizer, tf_keras.optimizers.Optimizer
    ):
        return
    dependent = {
        id(variable)
        for variable in vars(optimizer).values()  # Its `variables` are not all of them.
        if isinstance(variable, tf.Variable)
        and tf.is_symbolic_tensor(variable.handle)
        and tf.get_static_value(own_initial_value(variable)) is None
    }
    graph = v1.get_default_graph()
    for name in graph.collections:
        members = graph.get_collection_ref(name)
        members[:] = [member for member in members if id(member) not in dependent]
