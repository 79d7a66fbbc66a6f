"""The weight update of a pipelined model, and where the optimizer's state is."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.cluster.tasks import listed
from tfdist.pipeline.program import Apply
from tfdist.pipeline.settings import OptimizerState
from tfdist.pipeline.tracing import TracedModel
from tfdist.strategies.placement import HOST


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

    _make_slots(apply, variables)
    return apply


def _make_slots(apply: Apply, variables: list[tf.Variable]) -> None:
    """Lets the optimizer make its variables now: it can't inside a loop.

    Traces an update that is never run.
    """
    tf.function(
        lambda: apply([(tf.zeros(v.shape, v.dtype), v) for v in variables]), autograph=False
    ).get_concrete_function()


def _refuse_elsewhere(variables: list[tf.Variable]) -> None:
    elsewhere = [v for v in variables if not v.device.upper().endswith(HOST.upper())]
    if elsewhere:
        names = listed([v.name for v in elsewhere[:3]]) + (" ..." if elsewhere[3:] else "")
        raise ValueError(
            f'optimizer_state("host") needs the weights on the host, {HOST}, got {names} on '
            f"{elsewhere[0].device}. Let the training model make them, or make the model under "
            f'tf.device("{HOST}").'
        )
