"""A training of a tiny model that may end in an error, with parts that a test replaces."""

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy
from tfdist.training.precision import find_precision


def train_briefly(
    engine: str,
    *,
    loss: Any = None,
    input_fn: Any = None,
    hooks: Any = None,
    iterations: Any = None,
    accumulation: Any = None,
    precision: Any = None,
    limits: Any = None,
    model_dir: str | None = None,
) -> dict[str, Any]:
    """Trains in this worker, over "grpc" or "horovod" or without a strategy.

    Arguments are functions of the worker's index, or None for the correct value: `loss(index,
    weight, features)`, `input_fn(index)`, `hooks(index)`, `iterations(index)`,
    `accumulation(index)`, `precision(index)`, `limits(index)` (the keyword arguments `steps` and
    `max_steps`).

    Returns:
      error: "Type: message" or None. seconds: From the making of the strategy to the end. step: The
      last global step.
    """
    error, watch = None, _Watch()
    start_s = time.monotonic()
    try:
        kinds = {"grpc": MultiWorkerStrategy, "horovod": HorovodStrategy}
        strategy = kinds[engine]() if engine in kinds else None
        index = strategy.extended.collectives.worker_index if strategy is not None else 0
        per_loop = iterations(index) if iterations is not None else 1
        per_step = accumulation(index) if accumulation is not None else 1
        numbers = precision(index) if precision is not None else "float32"
        settings = tfe.DeviceConfig(
            iterations_per_loop=per_loop, gradient_accumulation=per_step, precision=numbers
        )
        config = tfe.RunConfig(train_distribute=strategy, device=settings)
        compute = find_precision(numbers).compute
        tfe.Estimator(_make_model_fn(index, loss, compute), model_dir, config).train(
            input_fn(index) if input_fn is not None else _input_fn,
            hooks=[watch, *(hooks(index) if hooks is not None else [])],
            **(limits(index) if limits is not None else {}),
        )
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
    return {"error": error, "seconds": time.monotonic() - start_s, "step": watch.step}


def _make_model_fn(index: int, loss: Any, compute: tf.DType) -> Callable[..., tfe.EstimatorSpec]:
    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        weight = v1.get_variable("weight", [2, 2], initializer=v1.ones_initializer())
        own = tf.cast(tf.reduce_mean(tf.matmul(tf.cast(features, compute), weight)), tf.float32)
        own = loss(index, weight, features) if loss is not None else own
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        pairs = [(g, v) for g, v in optimizer.compute_gradients(own) if g is not None]

        def apply(*gradients: Any) -> Any:
            return optimizer.apply_gradients(
                [(g, v) for g, (_, v) in zip(gradients, pairs, strict=True)]
            )

        host_call = (apply, [g for g, _ in pairs])
        return tfe.EstimatorSpec(mode, loss=own, host_call=host_call)

    return model_fn


def _input_fn() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors(tf.ones([1, 2])).repeat(20)


class _Watch(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
    step = 0

    def begin(self) -> None:
        self.global_step = v1.train.get_global_step()

    def end(self, session: Any) -> None:
        self.step = int(session.run(self.global_step))
