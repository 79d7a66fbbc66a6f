"""The scaffold that sessions get: few ops look for variables without a value, and it is checked.

A session opens once all variables have a value. TensorFlow's scaffold adds two lists of those that
have none, each of which looks at every variable and takes some ten ops more. That took a tenth of
a small model's start. Here both lists share their ops, and a session reads one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.checkpoints.fit import CheckpointMismatchError, mismatch
from tfdist.strategies.divided.variable import own_rows
from tfdist.strategies.placement import HOST


def checked(scaffold: v1.train.Scaffold, checkpoint: str | None) -> CheckedScaffold:
    """Returns a scaffold that checks that the checkpoint fits; None is no checkpoint."""

    def check(saver: v1.train.Saver) -> None:
        text = None if checkpoint is None else mismatch(saver, checkpoint)
        if text is not None:
            raise CheckpointMismatchError(text)

    return CheckedScaffold(scaffold, check)


class CheckedScaffold:
    """A scaffold that checks the complete model before a session is opened.

    TensorFlow's sessions get this object instead of the model's scaffold. Other objects keep the
    model's scaffold, which is finalized together with this one. `check` gets the built saver, in
    the model's graph.

    Attributes:
      ready_for_local_init_op: The user's; None leaves out TensorFlow's own, whose list of variables
        without a value is that of `ready_op`, in a session call of its own.
    """

    def __init__(
        self, scaffold: v1.train.Scaffold, check: Callable[[v1.train.Saver], None]
    ) -> None:
        self._scaffold = scaffold
        self._check = check
        self.ready_for_local_init_op: tf.Tensor | None = None

    def finalize(self) -> CheckedScaffold:
        users = v1.get_collection(v1.GraphKeys.READY_FOR_LOCAL_INIT_OP)
        users = [self._scaffold.ready_for_local_init_op, *users]
        _add_ready_ops()
        with own_rows():  # A saver writes and reads this worker's rows of divided tables.
            self._scaffold.finalize()
        if any(op is not None for op in users):
            self.ready_for_local_init_op = self._scaffold.ready_for_local_init_op
        self._check(self._scaffold.saver)
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scaffold, name)


def _add_ready_ops() -> None:
    """Adds the lists of variables without a value where a scaffold looks for them first."""
    keys = v1.GraphKeys
    if v1.get_collection(keys.RESOURCES) or v1.get_collection(keys.LOCAL_RESOURCES):
        return  # TensorFlow's lists have these as well.
    with tf.name_scope("without_value"):
        of_global = _without_value(v1.global_variables())
        of_local = _without_value(v1.local_variables())
        with tf.device(HOST):
            of_all = tf.concat([of_global, of_local], 0)
    for key, names in ((keys.READY_FOR_LOCAL_INIT_OP, of_global), (keys.READY_OP, of_all)):
        if not v1.get_collection(key):
            v1.add_to_collection(key, names)


def _without_value(variables: Sequence[tf.Variable]) -> tf.Tensor:
    """Returns the names of the variables that have no value, [number]."""
    has_value = [v1.is_variable_initialized(variable) for variable in variables]
    with tf.device(HOST):
        names = tf.constant([variable.op.name for variable in variables], tf.string)
        if not has_value:
            return names
        missing = tf.raw_ops.Where(condition=tf.logical_not(tf.stack(has_value)))  # [number, 1]
        return tf.raw_ops.GatherNd(params=names, indices=missing)
