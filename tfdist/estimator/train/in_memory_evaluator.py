"""Evaluation inside a training, without a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
import tensorflow.compat.v1 as v1
from tensorflow.compat.v1.train import SessionRunContext, SessionRunValues

from tfdist.cluster.arguments import is_whole
from tfdist.estimator.config.arguments import InputFn, whole_steps
from tfdist.estimator.estimator import Estimator
from tfdist.estimator.evaluation.evaluate import run_evaluation
from tfdist.estimator.spec import ModeKeys, checked_hooks
from tfdist.strategies.values.sync_on_read import variables_of


class InMemoryEvaluatorHook(v1.train.SessionRunHook):  # type: ignore[misc]
    """Evaluates when training starts, every so many session calls, and when it ends.

    The evaluation's graph is built once. Each evaluation copies the variables that both graphs
    have, and writes to `estimator.eval_dir(name)`. No checkpoint is saved. Give it to `train` as a
    hook.

    Under a strategy with several workers, worker 0 evaluates. The others, which may also have the
    hook, wait for it in their next step. Variables with a separate value on each worker until they
    are saved (`synchronization=ON_READ`) cannot be evaluated with this hook.

    Args:
      estimator: The Estimator to evaluate.
      input_fn: As for `evaluate`, as are all arguments not listed here. A dataset is read from its
        start each time.
      hooks: They run in every evaluation, on a graph that is finalized after the first one.
      every_n_iter: Session calls between two evaluations.

    Raises:
      ValueError: If `every_n_iter` is below 1, there are several workers without a strategy, or
        parameter servers. At the start of training: if the model's scaffold defines a saver or an
        init_fn, or the training graph has other objects to save than variables.
      TypeError: If a hook is not a SessionRunHook.
    """

    def __init__(
        self,
        estimator: Estimator,
        input_fn: InputFn,
        steps: int | None = None,
        hooks: Sequence[v1.train.SessionRunHook] | None = None,
        name: str | None = None,
        every_n_iter: int = 100,
    ) -> None:
        if not is_whole(every_n_iter) or every_n_iter <= 0:
            raise ValueError(f"invalid every_n_iter={every_n_iter}. It must be at least 1.")
        config = estimator.config
        has_other_workers = config.num_worker_replicas > 1 and config.train_distribute is None
        if config.num_ps_replicas > 0 or has_other_workers:
            raise ValueError(
                "InMemoryEvaluator supports only single machine (aka Local) setting, or a strategy "
                f"of tfdist; got {config.num_worker_replicas} workers and "
                f"{config.num_ps_replicas} parameter servers without one."
            )
        self._estimator = estimator
        self._input_fn = input_fn
        self._steps = whole_steps("steps", steps)
        self._hooks = checked_hooks(hooks, "All hooks must be SessionRunHook instances")
        self._name = name
        self._timer = v1.train.SecondOrStepTimer(every_steps=every_n_iter)
        self._is_evaluator = config.is_chief
        self._calls = 0

    def begin(self) -> None:
        self._refuse_own_variables()
        self._timer.reset()
        self._calls = 0
        if not self._is_evaluator:
            return
        params = self._estimator._params_in(ModeKeys.EVAL, self._input_fn)
        self._evaluation = self._estimator._build_evaluation(
            self._input_fn, params, has_checkpoint=False
        )
        scaffold = self._evaluation.scaffold
        for what, value in (("saver", scaffold.saver), ("init_fn", scaffold.init_fn)):
            if value is not None:
                raise ValueError(
                    f"InMemoryEvaluator does not support custom {what}, and the model's scaffold "
                    "has one. Use train_and_evaluate."
                )

    def after_create_session(self, session: v1.Session, coord: v1.train.Coordinator) -> None:
        if not self._is_evaluator:
            return
        if v1.get_collection(v1.GraphKeys.SAVEABLE_OBJECTS):
            raise ValueError(
                "InMemoryEvaluator does not support saveables other than global variables, and the "
                "training graph has some. Use train_and_evaluate."
            )
        self._build_copies(v1.global_variables())
        self._evaluate(session)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        self._calls += 1
        if self._is_evaluator and self._timer.should_trigger_for_step(self._calls):
            self._evaluate(run_context.session)

    def end(self, session: v1.Session) -> None:
        if self._is_evaluator:
            self._evaluate(session)

    def _evaluate(self, session: v1.Session) -> None:
        values = session.run(self._sources)
        fed = {self._fed[name]: value for name, value in values.items()}
        run_evaluation(
            self._evaluation,
            master=self._estimator.config.evaluation_master,
            steps=self._steps,
            hooks=self._hooks,
            events_dir=self._estimator.eval_dir(self._name),
            init_fn=lambda own: own.run(self._assign, fed),
        )
        self._timer.update_last_triggered_step(self._calls)

    def _build_copies(self, variables: Sequence[tf.Variable]) -> None:
        """Adds the copy of the training's variables to those of the same names in its graph."""
        with self._evaluation.graph.as_default():
            targets = {variable.name: variable for variable in v1.global_variables()}
            self._sources = {v.name: v for v in variables if v.name in targets}
            self._fed = {
                name: v1.placeholder(variable.dtype.base_dtype, variable.shape)
                for name, variable in self._sources.items()
            }
            self._assign = tf.group(
                *(v1.assign(targets[name], value) for name, value in self._fed.items())
            )

    def _refuse_own_variables(self) -> None:
        """Raises an error, on every worker, for variables with a separate value on each worker."""
        config = self._estimator.config
        own = variables_of(v1.get_default_graph()) if config.num_worker_replicas > 1 else []
        if own:
            raise ValueError(
                f"InMemoryEvaluator does not support variables that each worker keeps for itself, "
                f"such as {own[0].name}. Use train_and_evaluate with an evaluator task."
            )
