"""Losses of Keras under a strategy: a replica's counts by its share of the rows.

Keras divides the mean loss of a replica by the number of replicas. Here it is multiplied by the
replica's share where replicas have different numbers of rows. Keras 3 leaves out a loss function
that returns one number, such as `lambda y, p: tf.reduce_mean(...)`: it is scaled here.

For the logs Keras takes the scale off again. The loss of a model is then counted by a replica's
rows. In Keras 3 the loss of each output counts once for a batch of any size, so there the share
stays in it.

Private names: the modules of `scale_loss_for_distribution`, and Keras 3's `CompileLoss`.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import tensorflow as tf

from tfdist.strategies.eager.step import NOW, own_share
from tfdist.strategies.keras.extension import extends

_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")
# For each loss that is being called, one inside the other: how often it has been scaled.
_scalings: list[int] = []
_is_loss_of_outputs = False


def adapt_losses(library: ModuleType, *, is_keras_3: bool) -> None:
    """Makes the losses of a library count by the share of a replica."""
    name = "losses.loss" if is_keras_3 else "utils.losses_utils"
    module: Any = importlib.import_module(f"{library.__name__}.src.{name}")

    @extends(module, "scale_loss_for_distribution")
    def scaled(scale: Any, value: Any) -> Any:
        if _scalings:
            _scalings[-1] += 1
        if NOW.step is not None:
            NOW.step.has_scaled_loss = True
        share = own_share()
        return scale(value) if share is None else value * tf.cast(share, value.dtype)

    if not is_keras_3:
        return
    _scale_single_numbers(library.losses.Loss, module)

    @extends(module, "unscale_loss_for_distribution")
    def unscaled(unscale: Any, value: Any) -> Any:
        share = own_share()
        if share is None or _is_loss_of_outputs:
            return unscale(value)
        return tf.math.divide_no_nan(value, tf.cast(share, value.dtype))

    kind = importlib.import_module(f"{library.__name__}.src.trainers.compile_utils").CompileLoss

    @extends(kind, "call")
    def call_marked(call: Any, *args: Any, **kwargs: Any) -> Any:
        global _is_loss_of_outputs
        _is_loss_of_outputs = True
        try:
            return call(*args, **kwargs)
        finally:
            _is_loss_of_outputs = False


def _scale_single_numbers(kind: Any, module: Any) -> None:
    """Makes Keras 3 scale a mean loss whose function returns one number."""

    @extends(kind, "__call__")
    def call_scaled(call: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        _scalings.append(0)
        try:
            loss = call(self, *args, **kwargs)
        finally:
            times = _scalings.pop()
        if not times and self.reduction in _MEANS:
            times, loss = 1, module.scale_loss_for_distribution(loss)
        if _scalings:
            _scalings[-1] += times
        return loss
