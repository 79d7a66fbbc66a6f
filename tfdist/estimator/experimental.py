"""`tf.estimator.experimental`: early stopping, evaluation inside training, and more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.estimator.config.arguments import call_with
from tfdist.estimator.export.receivers import build_raw_supervised_input_receiver_fn
from tfdist.estimator.missing import find_missing
from tfdist.estimator.train.early_stopping import (
    make_early_stopping_hook,
    make_stop_at_checkpoint_step_hook,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)
from tfdist.estimator.train.in_memory_evaluator import InMemoryEvaluatorHook

__all__ = [
    "InMemoryEvaluatorHook",
    "build_raw_supervised_input_receiver_fn",
    "call_logit_fn",
    "make_early_stopping_hook",
    "make_stop_at_checkpoint_step_hook",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]


def call_logit_fn(
    logit_fn: Callable[..., Any], features: Any, mode: str, params: Any, config: Any
) -> Any:
    """Calls a logit_fn with `features` and the other arguments that its signature names.

    Args:
      logit_fn: A function of `features`, and of any of `mode`, `params` and `config`.
      features: The features of a batch.
      mode: One of `ModeKeys`.
      params: The model's parameters.
      config: The Estimator's `RunConfig`.

    Returns:
      The result of the logit_fn: a tensor, or a dict of string to tensor.

    Raises:
      ValueError: If the result is something else.
    """
    offered = {"features": features, "mode": mode, "params": params, "config": config}
    logits = call_with(logit_fn, offered)
    is_dict = isinstance(logits, dict) and all(
        isinstance(name, str) and isinstance(value, tf.Tensor) for name, value in logits.items()
    )
    if not (is_dict or isinstance(logits, tf.Tensor)):
        raise ValueError(
            "logit_fn should return a Tensor or a dictionary mapping strings to Tensors, got "
            f"{logits!r}."
        )
    return logits


def __getattr__(name: str) -> Any:
    return find_missing("experimental", name)
