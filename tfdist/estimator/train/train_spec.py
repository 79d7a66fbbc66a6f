"""TrainSpec and EvalSpec: the arguments of train_and_evaluate, checked when made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import tensorflow.compat.v1 as v1

from tfdist.cluster.arguments import is_number
from tfdist.estimator.config.arguments import InputFn, check_steps, checked_listeners
from tfdist.estimator.spec import checked_hooks

_HOOKS_RULE = "All hooks must be `SessionRunHook` instances"


class _TrainFields(NamedTuple):
    input_fn: InputFn
    max_steps: float | None
    hooks: tuple[v1.train.SessionRunHook, ...]
    saving_listeners: tuple[v1.train.CheckpointSaverListener, ...]


class TrainSpec(_TrainFields):
    """The input and the settings of training; checked when made.

    Args:
      input_fn: As in `Estimator.train`.
      max_steps: The global step at which training ends; None trains until the input ends.
      hooks: Session hooks.
      saving_listeners: Called around each checkpoint, on worker 0.
    """

    __slots__ = ()

    def __new__(
        cls,
        input_fn: InputFn,
        max_steps: float | None = None,
        hooks: Iterable[v1.train.SessionRunHook] | None = None,
        saving_listeners: Iterable[v1.train.CheckpointSaverListener] | None = None,
    ) -> TrainSpec:
        _check_input_fn(input_fn)
        check_steps("max_steps", max_steps)
        listeners = checked_listeners(saving_listeners)
        hooks = checked_hooks(hooks, _HOOKS_RULE)
        return super().__new__(cls, input_fn, max_steps, hooks, listeners)


class _EvalFields(NamedTuple):
    input_fn: InputFn
    steps: float | None
    name: str | None
    hooks: tuple[v1.train.SessionRunHook, ...]
    exporters: tuple[Any, ...]
    start_delay_secs: float
    throttle_secs: float


class EvalSpec(_EvalFields):
    """The input and the settings of evaluation; checked when made.

    Args:
      input_fn: As in `Estimator.evaluate`.
      steps: Batches to evaluate; None evaluates the whole input.
      name: Event files go to model_dir/eval_<name>.
      hooks: Session hooks.
      exporters: Objects with a `name` and `export(estimator, export_path, checkpoint_path,
        eval_result, is_the_final_export)`, called after each evaluation.
      start_delay_secs: Seconds that an evaluator task waits first.
      throttle_secs: The least number of seconds between the starts of two evaluations.
    """

    __slots__ = ()

    def __new__(
        cls,
        input_fn: InputFn,
        steps: float | None = 100,
        name: str | None = None,
        hooks: Iterable[v1.train.SessionRunHook] | None = None,
        exporters: Any = None,
        start_delay_secs: float = 120,
        throttle_secs: float = 600,
    ) -> EvalSpec:
        _check_input_fn(input_fn)
        check_steps("steps", steps)
        if name is not None and not isinstance(name, str):
            raise TypeError(f"`name` must be string, given: {name!r}.")
        hooks = checked_hooks(hooks, _HOOKS_RULE)
        exporters = _checked_exporters(exporters)
        for delay, secs in (
            ("start_delay_secs", start_delay_secs),
            ("throttle_secs", throttle_secs),
        ):
            if not is_number(secs) or secs < 0:
                raise ValueError(f"Must specify {delay} >= 0, given: {secs!r}.")
        return super().__new__(
            cls, input_fn, steps, name, hooks, exporters, start_delay_secs, throttle_secs
        )


def _check_input_fn(input_fn: Any) -> None:
    if not callable(input_fn):
        raise TypeError(f"`input_fn` must be callable, given: {input_fn!r}.")


def _checked_exporters(exporters: Any) -> tuple[Any, ...]:
    if not exporters:
        return ()
    if _is_exporter(exporters):
        exporters = (exporters,)
    try:
        exporters = tuple(exporters)
    except TypeError:
        exporters = (exporters,)
    for exporter in exporters:
        if not _is_exporter(exporter):
            raise TypeError(
                "`exporters` must be an Exporter, an iterable of Exporter, or `None`, found "
                f"{exporter!r}."
            )
    names = [exporter.name for exporter in exporters]
    for name in names:
        if not name:
            raise ValueError(
                f"An Exporter cannot have a name that is `None` or empty. The names are {names}."
            )
        if not isinstance(name, str):
            raise ValueError(f"An Exporter must have a string name. Given: {name!r}.")
        if names.count(name) > 1:
            raise ValueError(f"`exporters` must have unique names. {name!r} is there twice.")
    return exporters


def _is_exporter(value: object) -> bool:
    """Returns whether a value is an exporter, judged by its attributes; a class is not one."""
    return hasattr(value, "export") and hasattr(value, "name") and not isinstance(value, type)
