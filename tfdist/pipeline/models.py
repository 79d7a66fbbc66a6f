"""Training and inference models in a pipeline, and their weight update."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfdist.pipeline.compiled_calls import CompiledCalls
from tfdist.pipeline.graph.program import Apply
from tfdist.pipeline.graph.tracing import TracedModel
from tfdist.pipeline.options import Options
from tfdist.pipeline.settings import OptimizerState, Settings
from tfdist.process.text import listed
from tfdist.strategies.placement import HOST

_MAKE_SLOT = "add_variable_from_reference"  # In Keras 3 and the newer optimizers of Keras 2.


class TrainingModel:
    """A model that is trained by its calls. Created by `training_model`.

    Args:
      model: The user's model; its variables are the weights.
      options: The options of the run; frozen by this call.
      optimizer: The optimizer that updates the weights.

    Attributes:
      model: The user's model; its variables are the weights.
      optimizer: The optimizer that updates the weights.
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
        """The settings of the run."""
        return self._calls.settings

    def __call__(self, *arguments: Any) -> Any:
        """Trains on the samples: `device_iterations` weight updates.

        The first call builds the graph, and so does the first call with samples of another shape.

        Args:
          *arguments: The arguments of the model's forward pass: arrays or tensors, or structures of
            these, [samples, ...] each. All have the same number of samples: micro-batch x
            device_iterations x gradient_accumulation x replication_factor. The samples are used in
            order: first all samples of the first weight update.

        Returns:
          The results of the forward pass for the micro-batches that the output mode selects.
          Outputs with a batch dimension are [samples selected, ...]. A scalar, such as the loss, is
          returned for each micro-batch, [micro-batches selected]. With "sum", and with "final" and
          one replica, it stays a scalar.

        Raises:
          TypeError: If the model returns no loss.
          ValueError: If the samples do not split into micro-batches, or blocks, stages and options
            do not agree.
        """
        return self._calls(arguments)


def training_model(
    model: Callable[..., Any], options: Options, optimizer: Any = None
) -> TrainingModel:
    """Returns a model that trains in a pipeline.

    Args:
      model: The forward pass with its loss: a model of Keras 2 or Keras 3, a tf.Module or another
        callable. It returns the loss, or other values and the loss last. The loss is a scalar of
        floating type, the mean over the micro-batch. If the model has an argument `training`, it
        gets True. It must pass this on to the layers and models that it calls: otherwise their
        dropout and batch normalisation are off.
      options: The options of the run; frozen by this call.
      optimizer: An optimizer of Keras 2, Keras 3 or tf.compat.v1.train. By default stochastic
        gradient descent with a learning rate of 0.01.

    Raises:
      TypeError: If an argument has a wrong type.
      ValueError: If the options contradict each other.
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
    """A model that only computes its outputs. Created by `inference_model`.

    Args:
      model: The user's model; its variables are the weights. A training model of the same model
        uses the same variables.
      options: The options of the run, with gradient_accumulation 1; frozen by this call.

    Attributes:
      model: The user's model; its variables are the weights. A training model of the same model
        uses the same variables.
    """

    def __init__(self, model: Callable[..., Any], options: Options) -> None:
        self.model = model
        self._calls = CompiledCalls(model, options, user="an inference model", make_update=None)

    @property
    def settings(self) -> Settings:
        """The settings of the run."""
        return self._calls.settings

    def __call__(self, *arguments: Any) -> Any:
        """Computes the outputs with the current weights.

        The first call builds the graph, and so does the first call with samples of another shape.

        Args:
          *arguments: The arguments of the model's forward pass: arrays or tensors, or structures of
            these, [samples, ...] each. All have the same number of samples: micro-batch x
            device_iterations x replication_factor.

        Returns:
          The results of the forward pass, by default of all samples, [samples, ...]. A scalar is
          returned for each micro-batch, [micro-batches].

        Raises:
          ValueError: If the samples do not split into micro-batches, or blocks, stages and options
            do not agree.
        """
        return self._calls(arguments)


def inference_model(model: Callable[..., Any], options: Options) -> InferenceModel:
    """Returns a model that runs its forward pass in a pipeline.

    Args:
      model: The forward pass. If it has an argument `training`, it gets False.
      options: The options of the run, with gradient_accumulation 1; frozen by this call.

    Raises:
      TypeError: If an argument has a wrong type.
      ValueError: If the options contradict each other.
    """
    return InferenceModel(model, options)


def update_by(optimizer: Any, traced: TracedModel, state: OptimizerState) -> Apply:
    """Creates the optimizer's slots, each beside its weight, and returns what updates the weights.

    With the state "host", weights that are not on the host are refused, since a slot is where its
    weight is.

    Raises:
      ValueError: If no variable is trained, or the slots must be on the host and a weight is not.
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
    """Makes the optimizer create its variables now, since it cannot inside a loop.

    An older optimizer creates them at its first use. For such an optimizer an update is traced and
    never run.
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
    """Makes a Keras optimizer create each slot on its weight's device, as older optimizers do."""
    make_slot = getattr(optimizer, _MAKE_SLOT)

    def make_beside(*args: Any, **kwargs: Any) -> Any:
        weight, *_ = (*args, *kwargs.values())  # Its name differs between Keras 2 and 3.
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
