"""The network: functions from one activation to the next, made from the segments of a ResNet.

    images -> init/relu -> b1/0/relu -> ... -> b3/0/relu -> head -> logits

A block:

    inputs ---> conv1, norm1, relu ---> conv2, norm2 ---> + ---> relu
       '-----> shortcut, where the shape changes ---------^

First weights are drawn from (seed, name of the variable), so that every layout begins alike.
"""

import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf
import tensorflow.compat.v1 as v1
from architecture import Convolution, Segment

from tfdist import training

EPSILON = 1e-3  # Added to variances; that of tf.compat.v1.layers.


@dataclass(frozen=True, kw_only=True)
class Network:
    """Settings of a network."""

    segments: Sequence[Segment]  # Its parts in order.
    is_training: bool  # Whether batch norms use the statistics of the batch.
    num_groups: int | None  # Groups of channels of the group norms; None has batch norms.
    span: int | None  # Replicas that share batch statistics; None is all of them.
    decay: float  # Decay of the batch norms' moving averages.
    recomputes: bool  # Whether the backward pass computes each segment again.
    seed: int  # Seed of the first weights.
    dtype: tf.DType  # The dtype of activations. Norms and logits are in float32.

    def __call__(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns the logits [batch, classes] of images [batch, height, width, channels]."""
        return self.apply(self.segments, inputs)

    def apply(self, segments: Sequence[Segment], hidden: tf.Tensor) -> tf.Tensor:
        """Passes an activation through some of the segments."""
        for segment in segments:
            function = self._function_of(segment)
            if self.recomputes and self.is_training:
                function = training.recompute(function)
            hidden = function(hidden)
        return hidden

    def _function_of(self, segment: Segment) -> Callable[[tf.Tensor], tf.Tensor]:
        functions = {"stem": self._stem, "block": self._block, "head": self._head}

        def function(hidden: tf.Tensor) -> tf.Tensor:
            with v1.variable_scope(segment.name.removesuffix("/relu")):
                return functions[segment.kind](segment, hidden)

        return function

    def _stem(self, segment: Segment, images: tf.Tensor) -> tf.Tensor:
        hidden = tf.cast(images, self.dtype)
        hidden = tf.nn.relu(self._convolve(segment.convolutions[0], hidden))
        if segment.pools:
            hidden = tf.nn.max_pool2d(hidden, 3, 2, "SAME")
        return hidden  # [batch, height, width, filters]

    def _block(self, segment: Segment, inputs: tf.Tensor) -> tf.Tensor:
        hidden = inputs  # [batch, height, width, channels]
        *inner, last = segment.convolutions
        for convolution in inner:
            hidden = tf.nn.relu(self._convolve(convolution, hidden))
        hidden = self._convolve(last, hidden)  # [batch, height / stride, width / stride, filters]
        if segment.shortcut is not None:
            inputs = self._convolve(segment.shortcut, inputs)
        elif inputs.shape[-1] != hidden.shape[-1]:
            added = hidden.shape[-1] - inputs.shape[-1]
            inputs = tf.pad(inputs[:, ::2, ::2], [[0, 0], [0, 0], [0, 0], [0, added]])
        return tf.nn.relu(hidden + inputs)

    def _head(self, segment: Segment, hidden: tf.Tensor) -> tf.Tensor:
        pooled = tf.cast(tf.reduce_mean(hidden, axis=[1, 2]), tf.float32)  # [batch, channels]
        shape = [segment.channels, segment.classes]
        kernel = self._variable("kernel", shape, deviation=0.01)
        bias = v1.get_variable("bias", segment.classes, initializer=v1.zeros_initializer())
        logits = tf.matmul(pooled, tf.cast(kernel, tf.float32))
        return logits + tf.cast(bias, tf.float32)  # [batch, classes]

    def _convolve(self, convolution: Convolution, hidden: tf.Tensor) -> tf.Tensor:
        """Returns a convolution with its norm: [batch, height / stride, width / stride, filters]"""
        one = convolution
        with v1.variable_scope(one.name):
            shape = [one.kernel, one.kernel, one.channels, one.filters]
            fan_in = one.kernel**2 * one.channels
            # He et al., "Delving Deep into Rectifiers", 2015.
            kernel = self._variable("kernel", shape, deviation=(2 / fan_in) ** 0.5)
            hidden = tf.nn.conv2d(hidden, kernel, one.stride, "SAME")
            return self._normalize(hidden)

    def _normalize(self, hidden: tf.Tensor) -> tf.Tensor:
        if self.num_groups is not None:
            return group_norm(hidden, self.num_groups)
        settings = {
            "momentum": self.decay,
            "epsilon": EPSILON,
            "training": self.is_training,
            "name": "norm",
        }
        if self.span == 1:  # A fused kernel.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # It recommends layers of Keras.
                return v1.layers.batch_normalization(hidden, **settings)
        return training.batch_normalization(hidden, **settings, group_size=self.span)

    def _variable(self, name: str, shape: list[int], deviation: float) -> tf.Variable:
        full_name = f"{v1.get_variable_scope().name}/{name}"
        seed = [self.seed, zlib.crc32(full_name.encode())]

        def draw(shape: list[int], dtype: tf.DType, partition_info: object = None) -> tf.Tensor:
            drawn = tf.random.stateless_normal(shape, seed, stddev=deviation)
            return tf.cast(drawn, dtype)

        return v1.get_variable(name, shape, initializer=draw)


def group_norm(hidden: tf.Tensor, num_groups: int) -> tf.Tensor:
    """Normalises each image by itself, over its pixels and groups of neighbouring channels.

    Wu and He, "Group Normalization", 2018.
    """
    _, height, width, channels = hidden.shape
    with v1.variable_scope("norm"):
        gamma = v1.get_variable("gamma", channels, initializer=v1.ones_initializer())
        beta = v1.get_variable("beta", channels, initializer=v1.zeros_initializer())
    grouped = tf.reshape(
        tf.cast(hidden, tf.float32), [-1, height * width, num_groups, channels // num_groups]
    )  # [batch, pixels, groups, channels of a group]
    mean, variance = tf.nn.moments(grouped, [1, 3], keepdims=True)  # [batch, 1, groups, 1]
    grouped = (grouped - mean) * tf.math.rsqrt(variance + EPSILON)
    normal = tf.reshape(grouped, [-1, height, width, channels])
    return tf.cast(normal * tf.cast(gamma, tf.float32) + tf.cast(beta, tf.float32), hidden.dtype)
