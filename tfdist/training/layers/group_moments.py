"""Normalisation by the mean and variance over a group of replicas, with one message each way.

    replica:  x --> (count, mean, M2) --.                           .--> y = (x - mean) / deviation
                                        +--> one message, combined--+
    other:    x --> (count, mean, M2) --'                           '--> y

M2 is the sum of squared deviations from the mean. In the backward pass the sums of dy and of dy * y
(without gamma and beta) make the second message: the gradient of x needs both over the whole group
(Ioffe and Szegedy, "Batch Normalization", 2015, section 3).

Deviations from the own mean, combined by Chan's formula, keep their digits at any mean, where
E[x^2] - E[x]^2 loses most of them at a mean of 1000 and a deviation of 1. The mean itself has only
4 decimals there in float32. So it is the sum of two numbers, `center` and `rest`; a deviation is
(x - center) - rest. The sum of the deviations from the rounded mean gives the rest, which corrects
M2 as well (the two-pass algorithm of Chan, Golub and LeVeque, "Algorithms for Computing the Sample
Variance", 1983, eq. 1.7).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import tensorflow as tf

from tfdist.training.layers.graph_slices import keep_for_backward
from tfdist.training.layers.replica_groups import ReplicaGroups, combine_in_group


def normalize_over_group(
    x: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    *,
    axes: list[int],
    epsilon: float,
    groups: ReplicaGroups,
    weights: tf.Tensor | None = None,
    name: str,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Normalises a batch by the moments over a group of replicas, then scales and shifts it.

    A collective, forward and backward: see `combine_in_group`.

    Args:
      x: This replica's batch, [batch, ...]; batches of replicas may differ in size, or be empty.
      gamma: The scale, of the shape of `x` with 1 in `axes`.
      beta: The offset, of the shape of `gamma`.
      axes: The axes that the moments are computed over.
      epsilon: Added to the variance.
      groups: The groups of replicas.
      weights: How much each element counts, [batch, ..., 1]; None is 1.
      name: The layer's name.

    Returns:
      (the result, of the shape of `x`; mean and variance over the group, of the shape of `gamma`).
      Mean and variance have no gradient of their own.
    """

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def normalize(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> Any:
        what = f"{name} over groups of {groups.size} replicas"
        own_center, deviations, own_row = _own_moments(x, axes, weights)
        # Kept: `recompute` would repeat what other replicas in this process have computed.
        row = keep_for_backward(combine_in_group(groups, own_row, combine_moments, what))
        # TensorFlow looks for variables behind the result, and would find other replicas'.
        row = tf.stop_gradient(row)
        count = row[0]
        center, rest, m2 = (tf.reshape(part, tf.shape(gamma)) for part in tf.split(row[1:], 3))
        variance = tf.math.divide_no_nan(m2, count)
        inverse = tf.math.rsqrt(variance + epsilon)  # of the deviation
        scale = inverse * gamma
        # From the own center to the mean of the group: x - mean is deviations - shift.
        shift = (center - own_center) + rest
        y = deviations * scale + (beta - shift * scale)

        def gradient(dy: tf.Tensor, *_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            d_beta = tf.reduce_sum(dy, axes, keepdims=True)  # as beta
            of_deviations = tf.reduce_sum(dy * deviations, axes, keepdims=True)  # as gamma
            d_gamma = (of_deviations - shift * d_beta) * inverse
            own = tf.concat([tf.reshape(d_beta, [-1]), tf.reshape(d_gamma, [-1])], 0)
            add = partial(tf.reduce_sum, axis=0)
            sums = combine_in_group(groups, own, add, f"gradient of {what}")
            of_mean, of_deviation = (
                tf.reshape(tf.math.divide_no_nan(part, count), tf.shape(gamma))
                for part in tf.split(sums, 2)
            )
            slope = of_deviation * inverse
            through_moments = deviations * slope + (of_mean - shift * slope)  # as x
            if weights is not None:
                through_moments *= weights
            return (dy - through_moments) * scale, d_gamma, d_beta

        return (y, center + rest, variance), gradient

    y, mean, variance = normalize(x, gamma, beta)
    y.set_shape(x.shape)
    for moment in (mean, variance):
        moment.set_shape(gamma.shape)
    return y, mean, variance


def _own_moments(
    x: tf.Tensor, axes: list[int], weights: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the moments of this replica's batch.

    Returns:
      (centers, with 1 in `axes`; deviations from them, as `x`; count, centers, rests and M2,
      [1 + 3 * channels]).
    """

    def total(values: tf.Tensor) -> tf.Tensor:
        weighted = values if weights is None else values * weights
        return tf.reduce_sum(weighted, axes, keepdims=True)  # as gamma

    if weights is None:
        count = tf.cast(tf.reduce_prod(tf.gather(tf.shape(x), axes)), x.dtype)  # []
    else:
        count = tf.reduce_sum(weights * tf.ones_like(x[..., :1]))  # []
    center = tf.math.divide_no_nan(total(x), count)
    deviations = x - center  # as x
    rest = tf.math.divide_no_nan(total(deviations), count)
    m2 = total(tf.square(deviations)) - count * tf.square(rest)
    row = tf.concat([[count], *(tf.reshape(part, [-1]) for part in (center, rest, m2))], 0)
    return center, deviations, row


def combine_moments(rows: tf.Tensor) -> tf.Tensor:
    """Combines moments of disjoint parts of a batch, [parts, 1 + 3 * channels].

    Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
    Variances", 1979, for several parts at once; means are taken relative to the first center. Each
    row is [count, centers, rests, M2] of one part. Returns one such row for the whole batch,
    [1 + 3 * channels].
    """
    counts = rows[:, :1]
    centers, rests, m2 = tf.split(rows[:, 1:], 3, axis=1)  # [parts, channels] each
    total = tf.reduce_sum(counts, 0)  # [1]
    shifts = (centers - centers[:1]) + rests  # [parts, channels]
    shift = tf.math.divide_no_nan(tf.reduce_sum(counts * shifts, 0), total)  # [channels]
    between = tf.reduce_sum(counts * tf.math.squared_difference(shifts, shift), 0)  # [channels]
    return tf.concat([total, centers[0], shift, tf.reduce_sum(m2, 0) + between], 0)
