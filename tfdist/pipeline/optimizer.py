"""The weight update of a pipelined model, and where the optimizer's state is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfdist.cluster.tasks import listed
from tfdist.pipeline.program import Apply
from tfdist.pipeline.settings import OptimizerState
from tfdist.pipeline.tracing import TracedModel
from tfdist.strategies.placement import HOST

_MAKE_SLOT = "add_variable_from_reference"  # Of Keras 3, and of newer optimizers of Keras 2.


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
