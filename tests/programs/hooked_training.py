"""A short training with hooks of a test's choice, run by every strategy."""

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy


def train(engine: str, folder: str, hooks: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Trains with hooks in this worker; over "grpc", "horovod" or, in one process, "none".

    The model's loss is 1 / (global step + 1) on worker 0 and three times that on worker 1.

    Args:
      folder: The folder in which each worker has a model_dir of its own.
      hooks: `hooks(index, estimator, say, input_fn)` makes a worker's hooks. `say` collects what
        they report.
      options: `listeners(index, say)` makes the saving listeners. `max_steps` and
        `save_checkpoints_steps` are the Estimator's.

    Returns:
      said: What the hooks have reported. files: The files of the worker's folder. saved: The steps
      of its checkpoints. step: The last of them. model_dir: The folder.
    """
    kind = {"grpc": MultiWorkerStrategy, "horovod": HorovodStrategy}.get(engine)
    strategy = kind and kind()
    index = strategy.extended.collectives.worker_index if strategy is not None else 0
    model_dir = os.path.join(folder, f"worker_{index}")  # Workers share no folder.
    config = tfe.RunConfig(
        train_distribute=strategy,
        save_checkpoints_steps=options.get("save_checkpoints_steps", 1000),
        save_summary_steps=None,
        log_step_count_steps=None,
    )
    estimator = tfe.Estimator(_make_model_fn(index), model_dir, config)
    said: list[Any] = []
    made = hooks(index, estimator, said.append, _input_fn)
    listeners = options["listeners"](index, said.append) if "listeners" in options else None
    estimator.train(
        _input_fn, hooks=made, max_steps=options.get("max_steps"), saving_listeners=listeners
    )
    v1.summary.FileWriterCache.clear()
    latest = estimator.latest_checkpoint()
    files = _files_in(model_dir)
    saved = [int(f.split("-")[1].split(".")[0]) for f in files if f.endswith(".index")]
    return {
        "said": said,
        "files": files,
        "saved": sorted(saved),
        "step": int(estimator.get_variable_value("global_step")) if latest else None,
        "model_dir": model_dir,
    }


class CountCalls(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
    """Reports the number of session calls at the end with `say(("calls", number))`."""

    def __init__(self, say: Callable[[Any], None]) -> None:
        self.say = say
        self.calls = 0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.calls += 1

    def end(self, session: Any) -> None:
        self.say(("calls", self.calls))


class LateHooks(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
    """Runs a summary hook and a final-ops hook that are made when the graph exists.

    At the end it reports the final global step with `say(("final", step))`.
    """

    def __init__(self, model_dir: str, say: Callable[[Any], None]) -> None:
        self.output_dir = model_dir + "/own"
        self.say = say

    def begin(self) -> None:
        step = v1.train.get_global_step()
        own = v1.summary.scalar("own", tf.cast(step, tf.float32), collections=[])
        self.saver = tfe.SummarySaverHook(save_steps=2, output_dir=self.output_dir, summary_op=own)
        self.final = tfe.FinalOpsHook(step)
        self.saver.begin()

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.saver.after_create_session(session, coord)

    def before_run(self, run_context: Any) -> Any:
        return self.saver.before_run(run_context)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.saver.after_run(run_context, run_values)

    def end(self, session: Any) -> None:
        self.saver.end(session)
        self.final.end(session)
        self.say(("final", int(self.final.final_ops_values)))


def _make_model_fn(index: int) -> Callable[..., tfe.EstimatorSpec]:
    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        w = v1.get_variable("w", [], initializer=v1.ones_initializer())
        step = tf.cast(v1.train.get_global_step(), tf.float32)
        loss = w * tf.reduce_mean(features) * (1.0 + 2.0 * index) / (step + 1.0)
        v1.summary.scalar("step_seen", step)
        if mode == tfe.ModeKeys.EVAL:
            return tfe.EstimatorSpec(mode, loss=loss)
        optimizer = v1.train.GradientDescentOptimizer(0.0)
        pairs = optimizer.compute_gradients(loss)

        def update(*gradients: Any) -> Any:
            return optimizer.apply_gradients(zip(gradients, [v for _, v in pairs], strict=True))

        host_call = (update, [g for g, _ in pairs])
        return tfe.EstimatorSpec(mode, loss=loss, host_call=host_call)

    return model_fn


def _input_fn() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors((tf.ones([2]), tf.zeros([2]))).repeat()


def _files_in(folder: str) -> list[str]:
    """Returns the paths of all files below a folder, relative to it."""
    return sorted(
        os.path.relpath(os.path.join(at, name), folder)
        for at, _, names in os.walk(folder)
        for name in names
    )
