"""Checks of the Estimator's arguments, and calls of the user's functions."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

import tensorflow.compat.v1 as v1

from tfdist.cluster.arguments import is_number

# Returns a dataset, or tensors of one batch: features, or features and labels.
InputFn = Callable[..., Any]

_MODEL_FN_ARGUMENTS = ("features", "labels", "mode", "params", "config")


def whole_steps(name: str, value: float | None) -> int | None:
    """Returns a number of steps, rounded up: 13 for 12.5, which a program may get by division.

    tf.estimator stopped at the first step that was not below the limit.

    Raises:
      ValueError: If it is not above 0.
    """
    check_steps(name, value)
    return None if value is None or value == math.inf else math.ceil(value)


def check_steps(name: str, value: Any) -> None:
    """Raises a ValueError unless a number of steps is None or a number above 0."""
    if value is not None and not (is_number(value) and value > 0):
        raise ValueError(f"Must specify {name} > 0, given: {value!r}.")


def check_multiple(steps: int | None, loops: int) -> None:
    """Raises ValueError for a number of steps that is not a multiple of iterations_per_loop."""
    if steps is not None and steps % loops:
        raise ValueError(
            f"steps ({steps}) must be a multiple of iterations_per_loop ({loops}). Nearest: "
            f"{nearest_multiples(steps, loops)}."
        )


def nearest_multiples(number: int, of: int) -> str:
    """Returns the positive multiples around a number, for a message."""
    below = number - number % of
    return f"{below} and {below + of}" if below else f"{of}"


def checked_listeners(listeners: Any) -> tuple[v1.train.CheckpointSaverListener, ...]:
    """Returns a tuple of checkpoint listeners; raises TypeError for anything else."""
    listeners = [] if listeners is None else listeners
    listeners = tuple(listeners if isinstance(listeners, Iterable) else [listeners])
    for listener in listeners:
        if not isinstance(listener, v1.train.CheckpointSaverListener):
            raise TypeError(
                "All saving_listeners must be `CheckpointSaverListener` instances; the argument "
                f"must be a list of CheckpointSaverListener, given: {listener!r}"
            )
    return listeners


def argument_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the names of a callable's arguments, without those that a partial has bound."""
    return tuple(parameter.name for parameter in _parameters(function))


def check_model_fn(model_fn: Any, params: Any) -> None:
    """Checks that the Estimator can fill the arguments of a model_fn.

    A model_fn that takes neither features nor labels belongs to a pipeline; see
    `PipelineEstimatorSpec`.

    Raises:
      ValueError: If it cannot; the message names the argument.
    """
    if model_fn is None:
        raise ValueError("model_fn must be provided to Estimator.")
    if not callable(model_fn):
        raise ValueError(f"model_fn must be callable, got {model_fn!r}.")
    names = set(argument_names(model_fn))
    if "features" not in names and "labels" in names:
        raise ValueError(f"model_fn ({model_fn}) must include features argument.")
    if params is not None and "params" not in names:
        raise ValueError(
            f"model_fn ({model_fn}) does not include params argument, but params ({params}) is "
            "passed to Estimator."
        )
    # Keyword-only arguments with a default are left to the function.
    own = {p.name for p in _parameters(model_fn) if p.kind is p.KEYWORD_ONLY and not _is_needed(p)}
    check_no_others("model_fn", model_fn, _MODEL_FN_ARGUMENTS, {"self", *own})


def check_no_others(
    name: str, function: Callable[..., Any], allowed: Iterable[str], ignored: Set[str] = frozenset()
) -> None:
    """Raises a ValueError for a function, called `name`, with other arguments than those allowed.

    Those `ignored` may be there, too; the message does not name them.
    """
    unknown = sorted(set(argument_names(function)) - set(allowed) - ignored)
    if unknown:
        raise ValueError(
            f"{name} ({function}) has following not expected args: {unknown}. Allowed are "
            f"{', '.join(allowed)}."
        )


def call_with(function: Callable[..., Any], offered: Mapping[str, Any], *args: Any) -> Any:
    """Calls a function with the offered arguments that its signature names."""
    names = argument_names(function)
    return function(*args, **{k: v for k, v in offered.items() if k in names})


def needed_arguments(function: Callable[..., Any]) -> set[str]:
    """Returns the names of a function's required arguments."""
    return {parameter.name for parameter in _parameters(function) if _is_needed(parameter)}


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Returns the named parameters, without *args, **kwargs and those that a partial has bound."""
    bound: set[str] = set()
    skipped = 0
    while isinstance(function, functools.partial):
        bound |= set(function.keywords or {})
        skipped += len(function.args)
        function = function.func
    # A decorator's own arguments count: it may not pass them on unchanged.
    every = inspect.signature(function, follow_wrapped=False).parameters.values()
    named = [p for p in every if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    wrapped = getattr(function, "__wrapped__", None)
    if callable(wrapped) and any(p.kind is p.VAR_KEYWORD for p in every):
        names = {p.name for p in named}
        named += [p for p in _parameters(wrapped) if p.name not in names]
    return [p for p in named[skipped:] if p.name not in bound]


def _is_needed(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty
