"""The learning rate and the optimizer of a run."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1
from arguments import Settings
from plan import Plan

from tfdist import training
from tfdist.ipu.optimizers import MapGradientOptimizer

# The learning rate at a step; without a step, at the graph's global step.
Schedule = Callable[..., tf.Tensor]


def make_schedule(settings: Settings, plan: Plan) -> Schedule:
    """Returns the learning rate as a function of the step, with its warm-up."""
    rate, steps = plan.learning_rate, plan.num_steps
    first, last = plan.warmup_steps, settings.abs_end_learning_rate
    if settings.lr_schedule == "cosine":
        schedule = training.cosine_decay(rate, steps, last, first)
    elif settings.lr_schedule == "polynomial_decay_lr":
        power = settings.poly_lr_decay_power
        schedule = training.polynomial_decay(rate, steps, last, power, first)
    elif settings.lr_schedule == "stepped":
        points, factors = settings.learning_rate_schedule, settings.learning_rate_decay
        pairs = zip(points, factors, strict=True)
        later = {round(steps * point): rate * factor for point, factor in pairs}
        schedule = training.stepped({0: rate, **later})
    else:
        schedule = _exponential(rate, settings.learning_rate_decay[-1], steps)
    return training.warmup(schedule, first)


def _exponential(rate: float, factor: float, steps: int) -> Schedule:
    """Returns a schedule that falls by equal factors, to rate x factor at the last step."""

    def schedule(step: Any = None) -> tf.Tensor:
        step = v1.train.get_global_step().read_value() if step is None else step
        return rate * factor ** (tf.cast(step, tf.float32) / steps)

    return schedule


def make_optimizer(settings: Settings, schedule: Schedule) -> v1.train.Optimizer:
    """Returns the optimizer, with weight decay and loss scale around it.

    Weight decay is added to the gradient after the reduction, except in LARS and LAMB, which have
    their own.
    """
    rounding = {"stochastic_rounding": not settings.no_stochastic_rounding}
    momentum, skipped = settings.momentum, list(settings.lars_skip_list)
    decay = settings.weight_decay
    if settings.optimiser == "LARS":
        optimizer: Any = training.LARS(
            schedule,
            momentum,
            settings.lars_weight_decay,
            settings.lars_eeta,
            settings.lars_epsilon,
            exclude_from_weight_decay=skipped,
            **rounding,
        )
    elif settings.optimiser == "LAMB":
        optimizer = training.LAMB(
            schedule, weight_decay=decay, exclude_from_weight_decay=skipped, **rounding
        )
    else:
        optimizer = _with_weight_decay(_make_plain(settings, schedule, rounding), decay)
    if settings.auto_loss_scaling:
        return training.LossScaleOptimizer(optimizer)
    if settings.loss_scaling is not None:
        return training.LossScaleOptimizer(
            optimizer, training.FixedLossScale(settings.loss_scaling)
        )
    return optimizer


def _make_plain(
    settings: Settings, schedule: Schedule, rounding: dict[str, bool]
) -> v1.train.Optimizer:
    if settings.optimiser == "RMSprop":
        decay, epsilon = settings.rmsprop_decay, settings.rmsprop_epsilon
        return v1.train.RMSPropOptimizer(schedule, decay, settings.momentum, epsilon)
    momentum = settings.momentum if settings.optimiser == "momentum" else 0.0
    return training.SGD(schedule, momentum, **rounding)


def _with_weight_decay(optimizer: v1.train.Optimizer, decay: float) -> v1.train.Optimizer:
    """Adds decay x weight to the reduced gradients of kernels; norms and biases do not decay."""
    if not decay:
        return optimizer

    def add(gradient: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
        if not variable.op.name.endswith("kernel"):
            return gradient
        return gradient + decay * tf.cast(variable.read_value(), gradient.dtype)

    return MapGradientOptimizer(optimizer, add)
