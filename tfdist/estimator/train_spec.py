"""What train_and_evaluate works with: TrainSpec and EvalSpec, checked when made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as v1

from tfdist.estimator.spec import checked_hooks


class _TrainFields(NamedTuple):
    input_fn: Callable[..., Any]
    max_steps: int | None
    hooks: tuple[Any, ...]
    saving_listeners: tuple[Any, ...]


class TrainSpec(_TrainFields):
    """What to train with; checked when made.

    Args:
      input_fn: As in `Estimator.train`.
      max_steps: The global step at which training ends; None is until the input ends.
      hooks: Session hooks.
      saving_listeners: Called around each checkpoint, on worker 0.
    """

    __slots__ = ()

    def __new__(
        cls,
        input_fn: Callable[..., Any],
        max_steps: int | None = None,
        hooks: Iterable[Any] | None = None,
        saving_listeners: Iterable[Any] | None = None,
    ) -> TrainSpec:
        _check_input_fn(input_fn)
        _check_at_least("max_steps", max_steps, 1)
        listeners = tuple(saving_listeners or ())
        for listener in listeners:
            if not isinstance(listener, v1.train.CheckpointSaverListener):
                raise TypeError(
                    f"saving_listeners must be CheckpointSaverListener objects, got {listener!r}."
                )
        hooks = checked_hooks(hooks, "All hooks must be SessionRunHook instances")
        return super().__new__(cls, input_fn, max_steps, hooks, listeners)


class _EvalFields(NamedTuple):
    input_fn: Callable[..., Any]
    steps: int | None
    name: str | None
    hooks: tuple[Any, ...]
    exporters: tuple[Any, ...]
    start_delay_secs: float
    throttle_secs: float


class EvalSpec(_EvalFields):
    """What to evaluate with; checked when made.

    Args:
      input_fn: As in `Estimator.evaluate`.
      steps: Batches to evaluate; None is all of the input.
      name: Event files go to model_dir/eval_<name>.
      hooks: Session hooks.
      exporters: Objects with a `name` and `export(estimator, export_path, checkpoint_path,
        eval_result, is_the_final_export)`, called after each evaluation.
      start_delay_secs: Seconds that an evaluator task waits first.
      throttle_secs: Seconds between the starts of two evaluations, at least.
    """

    __slots__ = ()

    def __new__(
        cls,
        input_fn: Callable[..., Any],
        steps: int | None = 100,
        name: str | None = None,
        hooks: Iterable[Any] | None = None,
        exporters: Any = None,
        start_delay_secs: float = 120,
        throttle_secs: float = 600,
    ) -> EvalSpec:
        _check_input_fn(input_fn)
        _check_at_least("steps", steps, 1)
        _check_at_least("start_delay_secs", start_delay_secs, 0)
        _check_at_least("throttle_secs", throttle_secs, 0)
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name must be string, given: {name!r}.")
        hooks = checked_hooks(hooks, "All hooks must be SessionRunHook instances")
        return super().__new__(
            cls,
            input_fn,
            steps,
            name,
            hooks,
            _checked_exporters(exporters),
            start_delay_secs,
            throttle_secs,
        )


def _check_input_fn(input_fn: Any) -> None:
    if not callable(input_fn):
        raise TypeError(f"input_fn must be callable, given: {input_fn!r}.")


def _check_at_least(name: str, value: float | None, least: int) -> None:
    if value is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, given: {value}.")


def _checked_exporters(exporters: Any) -> tuple[Any, ...]:
    if exporters is None:
        return ()
    if hasattr(exporters, "export"):
        exporters = (exporters,)
    if not isinstance(exporters, Sequence | set | frozenset):
        raise TypeError(f"exporters must be an Exporter or an iterable of them, got {exporters!r}.")
    names: set[str] = set()
    for exporter in exporters:
        if not hasattr(exporter, "export"):
            raise TypeError(f"exporters must be Exporter objects, given: {exporter!r}.")
        name = exporter.name
        if not isinstance(name, str) or not name:
            raise ValueError(
                f"An Exporter must have a name that is a non-empty string, got {name!r}."
            )
        if name in names:
            raise ValueError(f"Exporter names must be unique, got {name!r} twice.")
        names.add(name)
    return tuple(exporters)
