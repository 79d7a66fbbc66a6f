"""The train op of a head's loss, including the use of Keras optimizers in a v1 graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

from tfdist.estimator.heads import checks
from tfdist.estimator.private_keras import learning_rate_as_given, newer_options
from tfdist.strategies.graph.variables import own_initial_value


def build_train_op(
    loss: tf.Tensor,
    *,
    loss_reduction: str,
    optimizer: Any,
    trainable_variables: Sequence[tf.Variable] | None,
    train_op_fn: Callable[[tf.Tensor], tf.Operation] | None,
    update_ops: Sequence[tf.Operation] | None,
) -> tf.Operation:
    """Builds the op of one training step, from the optimizer or train_op_fn and the update ops.

    The ops are built in the name scope "training", where the Keras optimizers of tf.estimator put
    their variables. The arguments are as in `Head.create_estimator_spec`, with its errors; the
    loss is the scalar of this worker's batch.
    """
    if update_ops is not None:
        _check_list("update_ops", update_ops)
    with v1.name_scope(""), v1.name_scope("training"):
        if optimizer is not None and train_op_fn is not None:
            raise ValueError("train_op_fn and optimizer cannot both be set. Give one of them.")
        if optimizer is not None:
            train_op = minimize(loss, loss_reduction, optimizer, trainable_variables)[0]
        elif train_op_fn is not None:
            train_op = train_op_fn(loss)
        else:
            raise ValueError("train_op_fn and optimizer cannot both be None. Give one of them.")
        return train_op if update_ops is None else tf.group(train_op, *update_ops)


def minimize(
    loss: tf.Tensor,
    loss_reduction: str,
    optimizer: Any,
    variables: Sequence[tf.Variable] | None,
    counts_steps: bool = True,
) -> list[tf.Operation]:
    """Builds the ops by which a Keras or v1 optimizer updates variables; None is all, for a v1 one.

    The loss is the scalar of this worker's batch. A v1 optimizer increments the global step if it
    `counts_steps`.
    """
    if variables is not None:
        _check_list("trainable_variables", variables)
    if isinstance(optimizer, v1.train.Optimizer):
        # A v1 optimizer itself divides a mean loss by the number of workers.
        step = v1.train.get_or_create_global_step() if counts_steps else None
        return [optimizer.minimize(loss, global_step=step, var_list=variables)]
    optimizer = graph_optimizer(optimizer)
    if variables is None:
        raise ValueError(
            "trainable_variables cannot be None with a Keras optimizer. Give the model's: "
            "model.trainable_variables, or tf.compat.v1.trainable_variables()."
        )
    # A Keras optimizer sums the workers' gradients. If the loss is a mean, dividing it by the
    # number of workers makes the sum a mean.
    num_workers = tf.distribute.get_strategy().num_replicas_in_sync
    if num_workers > 1 and loss_reduction != checks.SUM:
        loss = loss / num_workers  # []
    return optimizer.get_updates(loss, variables)


def _check_list(name: str, value: object) -> None:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{name} should be a list or a tuple. Given type: {type(value)}.")


def graph_optimizer(optimizer: Any) -> Any:
    """Returns a Keras 2 optimizer with `get_updates`, which builds the ops of a step.

    Those in `tf_keras.optimizers.legacy` build graphs and are returned unchanged. The newer ones,
    such as `tf_keras.optimizers.Adam`, build updates that a v1 graph does not run. They are
    replaced by the legacy optimizer of the same name with the same settings.

    Raises:
      ValueError: If `optimizer` is of another type, or has an option that the legacy optimizer
        does not have.
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
    extra = newer_options(optimizer)
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
        copy.iterations = step  # The user made the global step the optimizer's step counter.
    return copy


def _learning_rate(optimizer: Any) -> Any:
    """Returns the learning rate that the optimizer was made with: a schedule, number or tensor."""
    rate = learning_rate_as_given(optimizer)
    if not isinstance(rate, tf.Variable):
        return rate
    if not tf.is_symbolic_tensor(rate.handle):
        # The variable was made eagerly. This thread builds a graph; a new one executes eagerly.
        with ThreadPoolExecutor(1) as thread:
            return float(thread.submit(rate.numpy).result())
    tensor = own_initial_value(rate)
    number = tf.get_static_value(tensor)
    return tensor if number is None else float(number)


def forget_dependent_variables(optimizer: Any) -> None:
    """Removes variables of a newer optimizer from the graph that a v1 graph cannot initialize.

    The variable of a schedule's current learning rate, or of a learning rate that is a tensor, is
    initialized from the values of other variables, and a v1 graph initializes all at once. Nothing
    uses that variable here. Heads call this in every mode, because an evaluation must have the
    variables that were saved.
    """
    if isinstance(optimizer, tf_keras.optimizers.Optimizer) and not hasattr(
        optimizer, "get_updates"
    ):
        forget_variables(optimizer, _depends_on_others)


def _depends_on_others(variable: tf.Variable) -> bool:
    is_of_graph = tf.is_symbolic_tensor(variable.handle)
    return is_of_graph and tf.get_static_value(own_initial_value(variable)) is None


def forget_variables(
    optimizer: Any, is_unused: Callable[[tf.Variable], bool] = lambda _: True
) -> None:
    """Removes the unused variables of an optimizer from the graph."""
    unused = {
        id(value)
        for value in vars(optimizer).values()  # `optimizer.variables` is incomplete.
        if isinstance(value, tf.Variable) and is_unused(value)
    }
    graph = v1.get_default_graph()
    for name in graph.collections:
        members = graph.get_collection_ref(name)
        members[:] = [member for member in members if id(member) not in unused]
