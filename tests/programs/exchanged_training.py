"""A short training over gRPC that records its ops, with an update and a loss of a test's choice."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.strategies import MultiWorkerStrategy


def train(
    collect_log: Callable[[], list[str]],
    *,
    apply: Any = None,
    report: Any = None,
    iterations: int = 1,
    steps: int = 2,
    times: int = 1,
    model_dir: str | None = None,
    session_config: Any = None,
) -> dict[str, Any]:
    """Trains a few steps in this worker, `times` times in turn.

    Args:
      collect_log: Starts to collect the lines of TensorFlow's logger.
      apply: `apply(optimizer, pairs)` makes the update; None is `apply_gradients`.
      report: `report(loss, train_op)` makes the reported loss, in a model without host_call; None
        is the loss.

    Returns:
      lines: The logged lines. said: Those about reductions. ops: The name, kind and device of each
      op of the last call. first_steps: The global step at the start of each training. values: All
      variables at the end. isolated: Whether the sessions share no state, if they were configured.
    """
    reported: dict[str, Any] = {"lines": collect_log(), "ops": [], "first_steps": []}
    strategy = MultiWorkerStrategy()
    index = strategy.extended.collectives.worker_index

    def input_fn() -> tf.data.Dataset:
        values = np.random.RandomState(index).randn(8, 130).astype(np.float32)
        return tf.data.Dataset.from_tensors((values, values[:, :1])).repeat()

    config = tfe.RunConfig(
        train_distribute=strategy,
        session_config=session_config,
        device=tfe.DeviceConfig(iterations_per_loop=iterations),
    )
    if session_config is not None:
        reported["isolated"] = session_config.isolate_session_state
    estimator = tfe.Estimator(_make_model_fn(index, apply, report), model_dir, config)
    for time in range(times):
        estimator.train(input_fn, hooks=[_Watch(reported)], max_steps=steps * (time + 1))
    reported["said"] = [line for line in reported["lines"] if line.startswith("Reductions: ")]
    return reported


def _make_model_fn(index: int, apply: Any, report: Any) -> Callable[..., tfe.EstimatorSpec]:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        start = v1.random_normal_initializer(seed=index)  # Worker 0's counts.
        weight = v1.get_variable("weight", [130, 130], initializer=start)
        last = v1.get_variable("last", [130, 1], initializer=start)
        output = tf.matmul(tf.matmul(features, weight), last)  # [8, 1]
        loss = tf.reduce_mean(tf.square(output - labels))
        optimizer = v1.train.MomentumOptimizer(1e-6, 0.9)
        pairs = optimizer.compute_gradients(loss)

        def update(*gradients: Any) -> Any:
            given = list(zip(gradients, [v for _, v in pairs], strict=True))
            if apply is not None:
                return apply(optimizer, given)
            return optimizer.apply_gradients(given)

        if report is not None:
            step = v1.train.get_global_step()
            train_op = optimizer.apply_gradients(pairs, global_step=step)
            return tfe.EstimatorSpec(mode, loss=report(loss, train_op), train_op=train_op)
        return tfe.EstimatorSpec(mode, loss=loss, host_call=(update, [g for g, _ in pairs]))

    return model_fn


class _Watch(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
    """Records ops, first steps and final values in `told`."""

    def __init__(self, reported: dict[str, Any]) -> None:
        self.reported = reported

    def begin(self) -> None:
        self.variables = v1.global_variables()

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.reported["first_steps"].append(int(session.run(v1.train.get_global_step())))

    def before_run(self, run_context: Any) -> Any:
        options = v1.RunOptions(output_partition_graphs=True)
        return v1.train.SessionRunArgs(None, options=options)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        graphs = run_values.run_metadata.partition_graphs
        self.reported["ops"] = [(n.name, n.op, n.device) for g in graphs for n in g.node]
        functions = [f for g in graphs for f in g.library.function]
        self.reported["ops"] += [(n.name, n.op, n.device) for f in functions for n in f.node_def]

    def end(self, session: Any) -> None:
        self.reported["values"] = session.run(self.variables)
