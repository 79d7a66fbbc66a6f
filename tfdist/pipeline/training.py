"""training_model: a model that is trained in a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.pipeline.compiled_calls import CompiledCalls
from tfdist.pipeline.optimizer import update_by
from tfdist.pipeline.options import Options
from tfdist.pipeline.settings import Settings


class TrainingModel:
    """A model whose calls train it. Made by `training_model`.

    Attributes:
      model: The model as it was given; its variables are the weights.
      optimizer: What updates them.
    """

    def __init__(self, model: Callable[..., Any], options: Options, optimizer: Any) -> None:
        self.model = model
        self.optimizer = optimizer
        self._calls = CompiledCalls(
            model,
            options,
            user="a training model",
            make_update=lambda traced: update_by(optimizer, traced, self.settings.optimizer_state),
        )

    @property
    def settings(self) -> Settings:
        """How the model runs."""
        return self._calls.settings

    def __call__(self, *arguments: Any) -> Any:
        """Trains on the samples: `device_iterations` weight updates.

        The first call, and the first with samples of another shape, builds the graph.

        Args:
          *arguments: What the model's forward pass takes: arrays or tensors, or structures of
            these, each [samples, ...] with as many samples: micro-batch x device_iterations x
            gradient_accumulation x replication_factor. They are used in this order: first all of
            the first weight update.

        Returns:
          What the forward pass returns, of the micro-batches that the output mode asks for. Outputs
          with a batch dimension: [samples asked for, ...]. Scalars, such as the loss: one for each
          micro-batch, [micro-batches asked for]; with "sum", and with "final" and one replica, a
          scalar.

        Raises:
          TypeError: If the model returns no loss.
          ValueError: If the samples do not split, or blocks, stages and options do not fit.
        """
        return self._calls(arguments)


def training_model(
    model: Callable[..., Any], options: Options, optimizer: Any = None
) -> TrainingModel:
    """Makes a model that trains in a pipeline.

    Args:
      model: The forward pass with its loss: a Keras model of either Keras, a tf.Module or another
        callable. It returns the loss, or other values and the loss last; the loss is a scalar of
        floating type, the mean over the micro-batch. If it takes an argument `training`, it gets
        True, and passes it on to the layers and models that it calls: without it their dropout
        and batch normalisation are off.
      options: How it runs; frozen by this.
      optimizer: An optimizer of Keras 2, Keras 3 or tf.compat.v1.train. By default stochastic
        gradient descent with a learning rate of 0.01.

    Raises:
      TypeError: If an argument is of another kind.
      ValueError: If the options do not go together.
    """
    if optimizer is None:
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.01)
    if not callable(getattr(optimizer, "apply_gradients", None)):
        raise TypeError(
            f"optimizer must be one of Keras or tf.compat.v1.train, got {optimizer!r}. It needs "
            "apply_gradients."
        )
    return TrainingModel(model, options, optimizer)
