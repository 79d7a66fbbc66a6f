"""Training and inference models that run in a pipeline, and their weight update."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfdist.cluster.tasks import listed
from tfdist.pipeline.compiled_calls import CompiledCalls
from tfdist.pipeline.graph.program import Apply
from tfdist.pipeline.graph.tracing import TracedModel
from tfdist.pipeline.options import Options
from tfdist.pipeline.settings import OptimizerState, Settings
from tfdist.strategies.placement import HOST

_MAKE_SLOT = "add_variable_from_reference"  # Of Keras 3, and of newer optimizers of Keras 2.


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


class InferenceModel:
    """A model whose calls only compute its outputs. Made by `inference_model`.

    Attributes:
      model: The model as it was given; its variables are the weights, also of those who train it.
    """

    def __init__(self, model: Callable[..., Any], options: Options) -> None:
        self.model = model
        self._calls = CompiledCalls(model, options, user="an inference model", make_update=None)

    @property
    def settings(self) -> Settings:
        """How the model runs."""
        return self._calls.settings

    def __call__(self, *arguments: Any) -> Any:
        """Computes the outputs, with the weights as they are now.

        The first call, and the first with samples of another shape, builds the graph.

        Args:
          *arguments: What the model's forward pass takes: arrays or tensors, or structures of
            these, each [samples, ...] with as many samples: micro-batch x device_iterations x
            replication_factor.

        Returns:
          What the forward pass returns, by default of all samples: [samples, ...]; scalars one for
          each micro-batch.

        Raises:
          ValueError: If the samples do not split, or blocks, stages and options do not fit.
        """
        return self._calls(arguments)


def inference_model(model: Callable[..., Any], options: Options) -> InferenceModel:
    """Makes a model whose forward pass runs in a pipeline.

    Args:
      model: The forward pass. If it takes an argument `training`, it gets False.
      options: How it runs, with gradient_accumulation 1; frozen by this.

    Raises:
      TypeError: If an argument is of another kind.
      ValueError: If the options do not go together.
    """
    return InferenceModel(model, options)


def update_by(optimizer: Any, traced: TracedModel, state: OptimizerState) -> Apply:
    """Makes the optimizer's slots, beside the weights, and returns what updates the weights.

    Args:
      optimizer: Has `apply_gradients`.
      traced: The model, whose trained variables the slots are for.
      state: "host" refuses weights that are elsewhere, since a slot is where its weight is.

    Raises:
      ValueError: If nothing is trained, or a weight is not on the host where its slots shall be.
    """
    trained = {
        id(variable): variable
        for stage in traced.cut_stages
        if stage.backward is not None
        for variable in (
            traced.trained[name] for name in (*stage.backward.dense, *stage.backward.sparse)
        )
    }
    if not trained:
        raise ValueError(
            "no variable of the model gets a gradient. Let the loss depend on a trainable variable."
        )
    variables = list(trained.values())
    if state == "host":
        _refuse_elsewhere(variables)

    def apply(gradients_and_variables: list[tuple[Any, tf.Variable]]) -> None:
        optimizer.apply_gradients(gradients_and_variables)

    _make_slots(optimizer, apply, variables)
    return apply


def _make_slots(optimizer: Any, apply: Apply, variables: list[tf.Variable]) -> None:
    """Lets the optimizer make its variables now: it can't inside a loop.

    An older one makes them when it is used: then an update is traced, and never run.
    """
    if hasattr(optimizer, _MAKE_SLOT):
        with _slots_beside_weights(optimizer), tf.name_scope(optimizer.name):
            optimizer.build(variables)
        return
    tf.function(
        lambda: apply([(tf.zeros(v.shape, v.dtype), v) for v in variables]), autograph=False
    ).get_concrete_function()


@contextmanager
def _slots_beside_weights(optimizer: Any) -> Iterator[None]:
    """Lets an optimizer of Keras make each slot on its weight's device, as older ones do."""
    make_slot = getattr(optimizer, _MAKE_SLOT)

    def make_beside(*args: Any, **kwargs: Any) -> Any:
        weight, *_ = (*args, *kwargs.values())  # Each Keras has a name of its own for it.
        with tf.device(weight.device):
            return make_slot(*args, **kwargs)

    object.__setattr__(optimizer, _MAKE_SLOT, make_beside)
    try:
        yield
    finally:
        object.__delattr__(optimizer, _MAKE_SLOT)


def _refuse_elsewhere(variables: list[tf.Variable]) -> None:
    elsewhere = [v for v in variables if not v.device.upper().endswith(HOST.upper())]
    if elsewhere:
        names = listed([v.name for v in elsewhere[:3]]) + (" ..." if elsewhere[3:] else "")
        raise ValueError(
            f'optimizer_state("host") needs the weights on the host, {HOST}, got {names} on '
            f"{elsewhere[0].device}. Let the training model make them, or make the model under "
            f'tf.device("{HOST}").'
        )
