"""Batch normalisation by the statistics of all replicas of all workers, or of groups of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

from tfdist.training.layers.group_moments import normalize_over_group
from tfdist.training.layers.replica_groups import ReplicaGroups, current_groups, refusing_place

# Variants of tf_keras' layers that have statistics of their own.
_NOT_COMBINED = ("adjustment", "renorm", "synchronized", "virtual_batch_size")


class _OverReplicas:
    """The part of the layers below that differs from tf_keras': the computation while training."""

    # Whether `trainable=False` means inference: in tf_keras' layers and not in those of v1.layers.
    _is_frozen_by_trainable = True

    def __init__(self, group_size: int | None = None, **arguments: Any) -> None:
        _check_group_size(group_size)
        for name in _NOT_COMBINED:
            if arguments.pop(name, None):
                raise ValueError(
                    f"BatchNormalization of tfdist.training takes no {name}: group_size alone says "
                    "over which replicas statistics are. Leave it out."
                )
        super().__init__(**arguments)
        self.group_size = group_size

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def call(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> tf.Tensor:
        """Normalises a batch.

        While training a collective, forward and backward, unless the group is one replica: every
        replica of every worker must call it.

        Args:
          inputs: [batch, ...]
          training: Whether to use the batch's statistics; True or False where several replicas
            take part, and no tensor.
          mask: [batch, ...] without the channels: which elements the statistics count.

        Returns:
          A tensor of the shape of `inputs`.

        Raises:
          ValueError: If the group size does not divide the replicas, in a pipeline's stage or a
            function of `recompute`, or if `training` is a tensor and the group has several
            replicas.
        """
        static = self._static_training(training)
        if static is False:
            return super().call(inputs, training=False, mask=mask)  # type: ignore[misc]
        groups = self._groups()
        if static is None:
            if groups.size > 1:
                return self._without_training(inputs, training, mask)
            return super().call(inputs, training=training, mask=mask)  # type: ignore[misc]
        inputs = tf.cast(inputs, self.compute_dtype)
        # Statistics of half precision are in float32, as the layer's variables are.
        dtype = self.moving_mean.dtype.base_dtype
        shape = [n if i in self.axis else 1 for i, n in enumerate(inputs.shape)]
        one, zero = tf.ones([], dtype), tf.zeros([], dtype)
        y, mean, variance = normalize_over_group(
            tf.cast(inputs, dtype),
            tf.broadcast_to(one, shape) if self.gamma is None else tf.reshape(self.gamma, shape),
            tf.broadcast_to(zero, shape) if self.beta is None else tf.reshape(self.beta, shape),
            axes=[i for i in range(len(shape)) if i not in self.axis],
            epsilon=self.epsilon,
            groups=groups,
            weights=None if mask is None else tf.cast(mask, dtype)[..., tf.newaxis],
            name=self.name,
        )
        # A batch that overflows spoils its own step only. The variance overflows first.
        is_finite = tf.reshape(tf.math.is_finite(variance), self.moving_variance.shape)
        for moving, value in ((self.moving_mean, mean), (self.moving_variance, variance)):
            self._move(moving, tf.reshape(value, moving.shape), is_finite)
        return tf.cast(y, inputs.dtype)

    def _without_training(self: Any, inputs: Any, training: Any, mask: Any) -> tf.Tensor:
        """Refuses a call that does not say whether it trains.

        A functional model calls its layers so when it is made, and again when it is called. What
        the first calls compute has the right shape, and fails where a session needs it.
        """
        message = (
            f"layer {self.name} needs training=True or training=False, got {training!r}: a message "
            "to other replicas cannot depend on a tensor. Write training=mode == ModeKeys.TRAIN."
        )
        if not tf_keras.backend.is_keras_tensor(inputs):
            raise ValueError(message)
        with tf.control_dependencies([v1.Assert(tf.constant(False), [message])]):
            return super().call(tf.identity(inputs), training=False, mask=mask)  # type: ignore[misc]

    def _move(self: Any, moving: Any, value: tf.Tensor, is_finite: tf.Tensor) -> None:
        """Adds the update of a moving average, as tf_keras' layer does, where it is finite."""

        def update() -> Any:
            change = (moving - value) * (1.0 - self.momentum)
            return v1.assign_sub(moving, tf.where(is_finite, change, tf.zeros_like(change)))

        self.add_update(update)

    def _static_training(self: Any, training: Any) -> bool | None:
        """Returns the argument's value; None if only a session knows it."""
        if self._is_frozen_by_trainable and not self.trainable:
            return False
        if training is None:
            training = tf_keras.backend.learning_phase()
        value = tf.get_static_value(training) if tf.is_tensor(training) else training
        return None if value is None else bool(value)

    def _groups(self) -> ReplicaGroups:
        place = refusing_place()
        if place is None or self.group_size == 1:
            return current_groups(self.group_size)
        raise ValueError(
            f"BatchNormalization over replicas is in {place}, where group_size is "
            f"{self.group_size}. Set group_size=1: the statistics of the own micro-batch; or move "
            "the layer out."
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "group_size": self.group_size}  # type: ignore[misc]


class BatchNormalization(_OverReplicas, tf_keras.layers.BatchNormalization):  # type: ignore[misc]
    """Batch normalisation by the statistics of several replicas: N workers equal a large batch.

    A layer of tf_keras. While training, mean and variance are over all replicas of all workers,
    or of groups of neighbours; a replica counts by the size of its batch. One message forward and
    one backward. Evaluation and prediction use the moving averages and send nothing.

    With gradient accumulation the statistics are over one micro-batch of each replica.

    Examples:
      >>> layer = training.BatchNormalization(epsilon=0.0)
      >>> layer(tf.constant([[1.0], [3.0]]), training=True).numpy()
      array([[-1.],
             [ 1.]], dtype=float32)

    Args:
      group_size: The number of replicas that share statistics: replicas 0 to n - 1, n to 2n - 1,
        and so on, counted over the workers. It divides the number of all replicas. None is all of
        them; 1 is each replica's own, without a message. Equal on all workers.
      **arguments: Those of `tf_keras.layers.BatchNormalization`, without `synchronized`.

    Raises:
      TypeError: If `group_size` is not an integer.
      ValueError: If it is below 1.
    """


@cache
def _v1_layer() -> type[Any]:
    # Not at import: v1.layers would decide which Keras the process uses.
    class BatchNormalization(_OverReplicas, v1.layers.BatchNormalization):  # type: ignore[misc]
        _is_frozen_by_trainable = False

    return BatchNormalization


def batch_normalization(
    inputs: tf.Tensor,
    axis: int = -1,
    momentum: float = 0.99,
    epsilon: float = 1e-3,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Any = None,
    gamma_initializer: Any = None,
    moving_mean_initializer: Any = None,
    moving_variance_initializer: Any = None,
    beta_regularizer: Any = None,
    gamma_regularizer: Any = None,
    beta_constraint: Any = None,
    gamma_constraint: Any = None,
    training: bool = False,
    trainable: bool = True,
    name: str | None = None,
    reuse: bool | None = None,
    fused: bool | None = None,
    *,
    group_size: int | None = None,
) -> tf.Tensor:
    """Normalises a batch as `v1.layers.batch_normalization`, over replicas as `BatchNormalization`.

    The variables have the names that `v1.layers.batch_normalization` gives them, so checkpoints
    fit. The updates of the moving averages are in the collection UPDATE_OPS.

    `axis`, `momentum`, `epsilon`, `center`, `scale`, `beta_initializer`, `gamma_initializer`,
    `moving_mean_initializer`, `moving_variance_initializer`, `beta_regularizer`,
    `gamma_regularizer`, `beta_constraint`, `gamma_constraint`, `trainable`, `name` and `reuse` are
    those of that function, where an initializer of None is its default. `fused` has no effect.
    `inputs` is [batch, ...], `training` True or False, or a tensor if the group is one replica, and
    `group_size` as in `BatchNormalization`.

    Returns:
      A tensor of the shape of `inputs`.
    """
    initializers = {
        "beta_initializer": beta_initializer,
        "gamma_initializer": gamma_initializer,
        "moving_mean_initializer": moving_mean_initializer,
        "moving_variance_initializer": moving_variance_initializer,
    }
    layer = _v1_layer()(
        group_size,
        axis=axis,
        momentum=momentum,
        epsilon=epsilon,
        center=center,
        scale=scale,
        **{key: value for key, value in initializers.items() if value is not None},
        beta_regularizer=beta_regularizer,
        gamma_regularizer=gamma_regularizer,
        beta_constraint=beta_constraint,
        gamma_constraint=gamma_constraint,
        trainable=trainable,
        fused=fused,
        name=name,
        _reuse=reuse,
        _scope=name,
    )
    return layer(inputs, training=training)


def _check_group_size(size: Any) -> None:
    if size is None:
        return
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(
            f"group_size must be an integer or None, got {size!r}. None is all replicas."
        )
    if size < 1:
        raise ValueError(
            f"group_size must be at least 1, got {size}. 1 is each replica's own statistics; None "
            "is those of all replicas."
        )
