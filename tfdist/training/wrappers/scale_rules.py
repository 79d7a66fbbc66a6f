"""Rules of the loss scale: pure functions of its state and of a step's reduced gradients.

The state is a dict of scalars by name. The optimizer keeps each in a variable, on every worker with
the same bits, so that all workers scale alike without a message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import tensorflow as tf

from tfdist.cluster.arguments import check_number
from tfdist.cluster.tasks import checked_count
from tfdist.training.schedules import increasing_steps, stepped

State = dict[str, Any]

# Processors take reciprocals below float32's smallest normal number, 2**-126, for 0.
_LIMIT = 2.0**126

# The original's two bins divide the magnitudes of float16 gradients here: on an IPU larger ones are
# saturated, elsewhere they are infinite.
_SATURATED = float(np.finfo(np.float16).max)


@runtime_checkable
class ScaleRule(Protocol):
    """A rule that gives each step its loss scale."""

    def first_state(self) -> State:
        """Returns the state before the first step: NumPy scalars, in a fixed order."""

    def scale(self, state: State, step: Any) -> Any:
        """Returns the scale of the step after `step` steps, a float32 scalar above 0."""

    def next_state(self, state: State, is_finite: Any, gradients: Sequence[Any]) -> State:
        """Returns the state after a step.

        `is_finite` says, as a boolean scalar, whether all reduced gradients are finite. The
        `gradients` are reduced and scaled, float32 of any shapes.
        """

    def is_lowest(self, state: State) -> Any:
        """Returns whether the scale cannot fall any further, a boolean scalar."""

    def describe(self) -> str:
        """Returns the settings in words, to compare them between workers."""


class _Stateless:
    """A rule that does not adapt to the gradients."""

    def first_state(self) -> State:
        return {}

    def next_state(self, state: State, is_finite: Any, gradients: Sequence[Any]) -> State:
        return {}

    def is_lowest(self, state: State) -> Any:
        return tf.constant(True)


class _Adaptive:
    """A rule that keeps its scale in the state."""

    initial_scale: float
    min_scale: float
    max_scale: float

    def _check_scales(self) -> None:
        for name in ("min_scale", "max_scale", "initial_scale"):
            _check_scale(name, getattr(self, name))

    def scale(self, state: State, step: Any) -> Any:
        return state["scale"]

    def is_lowest(self, state: State) -> Any:
        return state["scale"] <= np.float32(self.min_scale)


@dataclass(frozen=True)
class FixedLossScale(_Stateless):
    """The same scale in every step.

    Examples:
      >>> optimizer = training.LossScaleOptimizer(training.SGD(0.1), training.FixedLossScale(1024))
      >>> float(optimizer.get_scaled_loss(tf.constant(2.0)))
      2048.0

    Attributes:
      value: The scale.

    Raises:
      ValueError: If it is out of range.
    """

    value: float

    def __post_init__(self) -> None:
        _check_scale("a fixed loss scale", self.value)

    def scale(self, state: State, step: Any) -> Any:
        return tf.constant(self.value, tf.float32)

    def describe(self) -> str:
        return f"fixed at {self.value:g}"


@dataclass(frozen=True)
class ScheduledLossScale(_Stateless):
    """A scale that is constant from each of some global steps on.

    Examples:
      >>> rule = training.ScheduledLossScale({0: 4096, 1500: 256})
      >>> optimizer = training.LossScaleOptimizer(training.SGD(0.1), rule)
      >>> float(optimizer.loss_scale)
      4096.0

    Attributes:
      scales: The first step of each scale, in increasing order from 0, and the scale.

    Raises:
      ValueError: If a step or a scale is out of range.
    """

    scales: Mapping[int, float]

    def __post_init__(self) -> None:
        increasing_steps(self.scales, "the loss scales", "{0: 4096, 1500: 256}")
        for step, scale in self.scales.items():
            _check_scale(f"the loss scale from step {step} on", scale)

    def scale(self, state: State, step: Any) -> Any:
        return stepped(self.scales)(step)

    def describe(self) -> str:
        return f"scheduled {dict(self.scales)}"


@dataclass(frozen=True, kw_only=True)
class DynamicLossScale(_Adaptive):
    """Falls when a gradient is not finite, rises after a number of steps without one.

    Micikevicius et al., "Mixed Precision Training", 2018, section 3.2 and 5.

    Examples:
      >>> rule = training.DynamicLossScale(initial_scale=8, growth_steps=1)
      >>> weight = tf.Variable(3.0)
      >>> optimizer = training.LossScaleOptimizer(training.SGD(0.1), rule)
      >>> optimizer.minimize(lambda: 2.0 * weight)
      >>> float(optimizer.loss_scale)
      16.0

    Attributes:
      initial_scale: The first scale.
      growth_steps: The number of finite steps in a row after which the scale rises.
      growth_factor: The factor by which it rises, up to `max_scale`.
      backoff_factor: The factor by which it falls after a skipped step, down to `min_scale`.
      min_scale: The lowest scale.
      max_scale: The highest scale.

    Raises:
      ValueError: If a number is out of range.
    """

    initial_scale: float = 2.0**15
    growth_steps: int = 2000
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    min_scale: float = 1.0
    max_scale: float = 2.0**24

    def __post_init__(self) -> None:
        checked_count("growth_steps", self.growth_steps)
        check_number("growth_factor", self.growth_factor, above=1)
        check_number("backoff_factor", self.backoff_factor, above=0, below=1)
        self._check_scales()
        if not self.min_scale <= self.initial_scale <= self.max_scale:
            raise ValueError(
                f"initial_scale must lie between min_scale and max_scale, got "
                f"{self.initial_scale:g} and {self.min_scale:g} to {self.max_scale:g}."
            )

    def first_state(self) -> State:
        return {"scale": np.float32(self.initial_scale), "good_steps": np.int64(0)}

    def next_state(self, state: State, is_finite: Any, gradients: Sequence[Any]) -> State:
        scale = state["scale"]
        good_steps = tf.where(is_finite, state["good_steps"] + 1, np.int64(0))
        grows = good_steps >= self.growth_steps
        larger = tf.minimum(scale * np.float32(self.growth_factor), np.float32(self.max_scale))
        smaller = tf.maximum(scale * np.float32(self.backoff_factor), np.float32(self.min_scale))
        return {
            "scale": tf.where(is_finite, tf.where(grows, larger, scale), smaller),
            "good_steps": tf.where(grows, np.int64(0), good_steps),
        }

    def describe(self) -> str:
        return (
            f"dynamic from {self.initial_scale:g}, x {self.growth_factor:g} after "
            f"{self.growth_steps} steps, x {self.backoff_factor:g} if not finite, "
            f"{self.min_scale:g} to {self.max_scale:g}"
        )


@dataclass(frozen=True, kw_only=True)
class HistogramLossScale(_Adaptive):
    """Graphcore's automatic loss scaling: falls when too many values are saturated.

    Gradient values are counted in two bins: magnitudes below float16's largest number, and others.
    After each `update_steps` steps the scale is max(scale decrease_factor, min_scale) if the share
    of the upper bin is above `ratio_threshold`, else scale increase_factor, unless that reached
    `max_scale`.

    Examples:
      >>> rule = training.HistogramLossScale(initial_scale=8, update_steps=1)
      >>> weight = tf.Variable(3.0)
      >>> optimizer = training.LossScaleOptimizer(training.SGD(0.1), rule)
      >>> optimizer.minimize(lambda: 70_000.0 * weight)  # More than float16's largest number.
      >>> float(optimizer.loss_scale)
      4.0

    Attributes:
      initial_scale: The first scale.
      update_steps: Steps between two changes.
      increase_factor: See above.
      decrease_factor: See above.
      min_scale: The lowest scale.
      max_scale: The scale stays below it.
      ratio_threshold: See above.
      accumulates: Whether the values of all steps since the last change are counted, or only those
        of the last step.

    Raises:
      ValueError: If a number is out of range.
    """

    initial_scale: float = 1.0
    update_steps: int = 8
    increase_factor: float = 2.0
    decrease_factor: float = 0.5
    min_scale: float = 1.0
    max_scale: float = 2.0**15
    ratio_threshold: float = 1e-5
    accumulates: bool = True

    def __post_init__(self) -> None:
        checked_count("update_steps", self.update_steps)
        check_number("increase_factor", self.increase_factor, above=0)
        check_number("decrease_factor", self.decrease_factor, above=0, below=self.increase_factor)
        check_number("ratio_threshold", self.ratio_threshold, above=0, below=1)
        self._check_scales()
        if not self.min_scale <= self.initial_scale < self.max_scale:
            raise ValueError(
                f"initial_scale must be at least min_scale and below max_scale, got "
                f"{self.initial_scale:g} and {self.min_scale:g} to {self.max_scale:g}."
            )

    def first_state(self) -> State:
        zero = np.int64(0)
        scale = np.float32(self.initial_scale)
        return {"scale": scale, "steps": zero, "saturated": zero, "values": zero}

    def next_state(self, state: State, is_finite: Any, gradients: Sequence[Any]) -> State:
        # NaN is in the upper bin, too. Not `~(a < b)`: sessions rewrite it to `a >= b`, which is
        # False for NaN.
        is_lower = [tf.abs(gradient) < _SATURATED for gradient in gradients]
        values = tf.add_n([tf.size(gradient, tf.int64) for gradient in gradients])
        saturated = values - tf.add_n(
            [tf.math.count_nonzero(is_one_lower) for is_one_lower in is_lower]
        )
        if self.accumulates:
            saturated, values = saturated + state["saturated"], values + state["values"]
        steps = state["steps"] + 1
        share = tf.cast(saturated, tf.float64) / tf.cast(tf.maximum(values, 1), tf.float64)
        scale = state["scale"]
        larger = scale * np.float32(self.increase_factor)
        larger = tf.where(larger < np.float32(self.max_scale), larger, scale)
        smaller = tf.maximum(scale * np.float32(self.decrease_factor), np.float32(self.min_scale))
        changed = tf.where(share > self.ratio_threshold, smaller, larger)
        is_due = steps >= self.update_steps
        zero = np.int64(0)
        return {
            "scale": tf.where(is_due, changed, scale),
            "steps": tf.where(is_due, zero, steps),
            "saturated": tf.where(is_due, zero, saturated),
            "values": tf.where(is_due, zero, values),
        }

    def describe(self) -> str:
        return (
            f"by histogram from {self.initial_scale:g}, each {self.update_steps} steps x "
            f"{self.increase_factor:g} or x {self.decrease_factor:g} above "
            f"{self.ratio_threshold:g}{'' if self.accumulates else ' of the last step'}, "
            f"{self.min_scale:g} to below {self.max_scale:g}"
        )


def _check_scale(name: str, value: Any) -> float:
    """Returns a loss scale after checking that it is above 0 and that its reciprocal is not 0."""
    return check_number(name, value, above=0, below=_LIMIT)
