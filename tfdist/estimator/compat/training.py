"""`tensorflow_estimator.python.estimator.training`: the parts of a train_and_evaluate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow.compat.v1 as v1

from tfdist.estimator.spec import checked_hooks
from tfdist.estimator.train.evaluator import (
    EvaluationListener,
    EvaluationResult,
    EvaluationStatus,
)
from tfdist.estimator.train.train_and_evaluate import (
    Results,
    check_types,
    evaluate_as_task,
    run_task,
    train_and_evaluate_alone,
)
from tfdist.estimator.train.train_and_evaluate import train_and_evaluate as train_and_evaluate
from tfdist.estimator.train.train_spec import EvalSpec as EvalSpec
from tfdist.estimator.train.train_spec import TrainSpec as TrainSpec

_ContinuousEvalListener = EvaluationListener
_EvalResult, _EvalStatus = EvaluationResult, EvaluationStatus


class _TrainingExecutor:
    """The part of this process's task in train_and_evaluate, with more hooks, and a listener."""

    def __init__(
        self,
        estimator: Any,
        train_spec: TrainSpec,
        eval_spec: EvalSpec,
        train_hooks: Iterable[v1.train.SessionRunHook] | None = None,
        continuous_eval_listener: EvaluationListener | None = None,
    ) -> None:
        listener = continuous_eval_listener or EvaluationListener()
        if not isinstance(listener, EvaluationListener):
            raise TypeError(
                "`continuous_eval_listener` must have type `_ContinuousEvalListener`, got "
                f"{listener!r}."
            )
        if eval_spec is not None:
            check_types(estimator, train_spec, eval_spec)
        self.estimator = estimator
        self._train_spec, self._eval_spec, self._listener = train_spec, eval_spec, listener
        self._hooks = checked_hooks(train_hooks, "All hooks must be `SessionRunHook` instances")

    def run(self) -> Results:
        """Trains and evaluates, according to this process's task in the run."""
        return run_task(self.estimator, self._with_hooks(), self._eval_spec, self._listener)

    def run_local(self) -> Results:
        """Trains, and evaluates after checkpoints, in this process."""
        _assert_eval_spec(self._eval_spec)
        return train_and_evaluate_alone(
            self.estimator, self._with_hooks(), self._eval_spec, self._listener
        )

    def run_evaluator(self) -> Results:
        """Evaluates each new checkpoint until the training has ended."""
        _assert_eval_spec(self._eval_spec)
        return evaluate_as_task(self.estimator, self._train_spec, self._eval_spec, self._listener)

    def _with_hooks(self) -> TrainSpec:
        spec = self._train_spec
        return spec._replace(hooks=(*spec.hooks, *self._hooks)) if self._hooks else spec


def _assert_eval_spec(eval_spec: object) -> None:
    if not isinstance(eval_spec, EvalSpec):
        raise TypeError(f"`eval_spec` must have type `tf.estimator.EvalSpec`. Got: {eval_spec!r}")


def should_run_distribute_coordinator(config: object) -> bool:
    """Returns False: `_TrainingExecutor` knows what each task of a cluster does."""
    return False
