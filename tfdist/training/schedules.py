"""Learning rates as functions of the global step.

A schedule is called with a step, or without arguments for the current graph's global step; that is
how optimizers call it while they build an update. `steps` is the step at which a decay ends,
counted from the run's start, so that a warm-up in front does not move it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.arguments import check_number
from tfdist.cluster.tasks import checked_count

Schedule = Callable[..., Any]


def warmup(rate_or_schedule: Any, steps: int) -> Schedule:
    """Returns a schedule that rises from 0 in equal parts up to `rate_or_schedule` at `steps`.

    At step t below `steps` it is t / steps times the rate at `steps` (Goyal et al., "Accurate,
    Large Minibatch SGD", 2017, section 2.2).

    Args:
      rate_or_schedule: A number, a tensor, or a schedule of this module.
      steps: The number of steps of the warm-up; 0 is none.
    """
    checked_count("steps of warmup", steps, least=0)
    after = check_rate(rate_or_schedule, "rate of warmup")

    def rate(step: tf.Tensor) -> tf.Tensor:
        rate_after = rate_in_float64(after, tf.maximum(step, float(steps)))  # []
        return rate_after * tf.minimum(step / max(steps, 1), 1.0) if steps else rate_after

    return _Schedule(rate)


def linear_decay(rate: float, steps: int, end_rate: float = 0.0, first_step: int = 0) -> Schedule:
    """Returns a schedule that falls in equal parts from `rate` to `end_rate` at step `steps`.

    Args:
      rate: The rate up to `first_step`.
      steps: The step from which on the rate is `end_rate`.
      end_rate: The last rate.
      first_step: The step at which the decay begins, such as the end of a warm-up.
    """
    return polynomial_decay(rate, steps, end_rate, 1.0, first_step)


def polynomial_decay(
    rate: float,
    steps: int,
    end_rate: float = 0.0,
    power: float = 2.0,
    first_step: int = 0,
) -> Schedule:
    """Returns a schedule end_rate + (rate - end_rate) (1 - t / T)^power, T = steps - first_step.

    t is the number of steps after `first_step`, at most T. A `power` of 1 is a linear decay. The
    other arguments are as in `linear_decay`.
    """
    check_number("power", power, above=0)
    rate, end_rate = check_number("rate", rate), check_number("end_rate", end_rate)
    share = _share_left(steps, first_step)
    return _Schedule(lambda step: end_rate + (rate - end_rate) * share(step) ** power)


def cosine_decay(rate: float, steps: int, end_rate: float = 0.0, first_step: int = 0) -> Schedule:
    """Returns a schedule end_rate + (rate - end_rate) (1 + cos(pi t / T)) / 2, T as above.

    Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017, without
    restarts.

    Args:
      rate: The rate up to `first_step`.
      steps: The step from which on the rate is `end_rate`.
      end_rate: The last rate.
      first_step: The step at which the decay begins, such as the end of a warm-up.
    """
    rate, end_rate = check_number("rate", rate), check_number("end_rate", end_rate)
    share = _share_left(steps, first_step)
    return _Schedule(
        lambda step: end_rate + (rate - end_rate) * 0.5 * (1.0 - tf.cos(math.pi * share(step)))
    )


def stepped(rates: Mapping[int, float]) -> Schedule:
    """Returns a schedule that is constant from each of some steps on: {0: 0.1, 30_000: 0.01}.

    `rates` has the first step of each rate, in increasing order from 0, and the rate.
    """
    steps = increasing_steps(rates, "stepped", "{0: 0.1, 1000: 0.01}")
    values = [check_number(f"the rate from step {step} on", rates[step]) for step in steps]

    def rate(step: tf.Tensor) -> tf.Tensor:
        passed = tf.reduce_sum(tf.cast(step >= tf.constant(steps, step.dtype), tf.int32))
        return tf.gather(tf.constant(values, tf.float64), passed - 1)

    return _Schedule(rate)


def increasing_steps(by_step: Mapping[int, Any], what: str, example: str) -> list[int]:
    """Returns the steps of a schedule after checking that they increase from 0 on (ValueError)."""
    steps = list(by_step)
    for step in steps:
        checked_count(f"a step of {what}", step, least=0)
    if not steps or steps[0] != 0 or steps != sorted(steps):
        raise ValueError(
            f"the steps of {what} must increase from 0 on, got {steps}. Write {example}."
        )
    return steps


class _Schedule:
    """A schedule of this module: a function from the step, a float64 scalar, to the rate.

    A call returns a float32 scalar.
    """

    def __init__(self, rate: Callable[[tf.Tensor], Any]) -> None:
        self._rate = rate

    def __call__(self, step: Any = None) -> tf.Tensor:
        return tf.cast(self.exact(step), tf.float32)

    def exact(self, step: Any = None) -> tf.Tensor:
        """Returns the rate as a float64 scalar, for weights in float64."""
        if step is None:
            step = v1.train.get_global_step()
            if step is None:
                raise ValueError(
                    "a schedule needs the global step, and this graph has none. Call "
                    "tf.compat.v1.train.create_global_step(), or give the schedule a step."
                )
            step = step.read_value()
        return tf.cast(self._rate(tf.cast(step, tf.float64)), tf.float64)


def check_rate(value: Any, name: str = "learning_rate") -> Any:
    """Returns a rate after checking it (ValueError); a tensor, variable or function is not read."""
    if callable(value) or tf.is_tensor(value) or isinstance(value, tf.Variable):
        return value
    return check_number(name, value)


def rate_in_float64(rate: Any, step: Any = None) -> tf.Tensor:
    """Returns a number, a tensor, a schedule or another function's value as a float64 scalar.

    Without a step a function is called without arguments.
    """
    if isinstance(rate, _Schedule):
        return rate.exact(step)
    if callable(rate):
        rate = rate() if step is None else rate(step)
    if tf.is_tensor(rate) or isinstance(rate, tf.Variable):
        return tf.cast(rate, tf.float64)
    return tf.constant(rate, tf.float64)


def _share_left(steps: int, first_step: int) -> Callable[[tf.Tensor], tf.Tensor]:
    checked_count("first_step", first_step, least=0)
    checked_count("steps", steps, least=first_step + 1)
    length = float(steps - first_step)
    return lambda step: 1.0 - tf.clip_by_value((step - float(first_step)) / length, 0.0, 1.0)
