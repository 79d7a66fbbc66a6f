"""A training of a tiny model that may end in an error, with parts that a test replaces."""

import re
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
    iterations: Any = lambda index: 1,
    accumulation: Any = lambda index: 1,
    precision: Any = lambda index: "float32",
    limits: Any = lambda index: {},
    model_dir: Any = lambda index: None,
    save_steps: int | None = None,
) -> dict[str, Any]:
    """Trains in this worker, over "grpc" or "horovod" or without a strategy.

    Arguments are functions of the worker's index: `loss(index, weight, features)`,
    `input_fn(index)`, `hooks(index)`, `iterations(index)`, `accumulation(index)`,
    `precision(index)`, `limits(index)` (the keyword arguments `steps` and `max_steps`),
    `model_dir(index)`. Every `save_steps` a checkpoint is saved.

    Returns:
      error: "Type: message" or None. seconds: From the making of the strategy to the end.
      is_chief: Whether this worker saves. first_step, step: The global steps before the first
      session call and at the end. values: The variables at the end, by name.
    """
    watch, is_chief = Watch(), None
    start_s = time.monotonic()
    try:
        kinds = {"grpc": MultiWorkerStrategy, "horovod": HorovodStrategy}
        strategy = kinds[engine]() if engine in kinds else None
        index = strategy.extended.collectives.worker_index if strategy is not None else 0
        numbers = precision(index)
        settings = tfe.DeviceConfig(
            iterations_per_loop=iterations(index),
            gradient_accumulation=accumulation(index),
            precision=numbers,
        )
        config = tfe.RunConfig(
            train_distribute=strategy,
            device=settings,
            **({} if save_steps is None else {"save_checkpoints_steps": save_steps}),
        )
        is_chief = config.is_chief
        model_fn = _make_model_fn(index, loss, find_precision(numbers).compute)
        tfe.Estimator(model_fn, model_dir(index), config).train(
            input_fn(index) if input_fn is not None else _input_fn,
            hooks=[watch, *(hooks(index) if hooks is not None else [])],
            **limits(index),
        )
        error = None
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
    seconds = time.monotonic() - start_s
    return {"error": error, "seconds": seconds, "is_chief": is_chief, **vars(watch)}


def _make_model_fn(index: int, loss: Any, compute: tf.DType) -> Callable[..., tfe.EstimatorSpec]:
    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        weight = v1.get_variable("weight", [2, 2], initializer=v1.ones_initializer())
        if loss is not None:
            own = loss(index, weight, features)
        else:
            output = tf.matmul(tf.cast(features, compute), weight)
            own = tf.cast(tf.reduce_mean(output), tf.float32)
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


class Steps(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
    """Counts session calls, and tells `after(steps, run_context)` of each."""

    def __init__(self, after: Callable[[int, Any], Any] = lambda steps, run: None) -> None:
        self.steps = 0
        self._after = after

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.steps += 1
        self._after(self.steps, run_context)


class Fetch(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
    """Remembers in `values` what each session call gives for the tensors of `find(run_context)`."""

    def __init__(self, find: Callable[[Any], Any]) -> None:
        self.values: list[Any] = []
        self._find = find

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs(self._find(run_context))

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.values.append(run_values.results)


class Crossings(Fetch):
    """Collects in `sent` what session calls send from one device to another one.

    It is the name and type of each tensor, and the last digits of the names of both devices.
    """

    def __init__(self, find: Callable[[Any], Any] = lambda run: None) -> None:
        super().__init__(find)
        self.sent: set[tuple[str, tf.DType, str]] = set()

    def before_run(self, run_context: Any) -> Any:
        options = v1.RunOptions(output_partition_graphs=not self.sent)  # Later calls send the same.
        return v1.train.SessionRunArgs(self._find(run_context), options=options)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        super().after_run(run_context, run_values)
        for graph in run_values.run_metadata.partition_graphs:
            for node in graph.node:
                if node.op in ("_Send", "_HostSend"):
                    name = re.sub(r"^edge_\d+_", "", node.attr["tensor_name"].s.decode())
                    places = [node.attr[f"{end}_device"].s.decode()[-1] for end in ("send", "recv")]
                    self.sent.add((name, tf.as_dtype(node.attr["T"].type), "".join(places)))


def loss_in(run_context: Any) -> Any:
    """Finds the loss of the training for a `Fetch`."""
    return run_context.session.graph.get_collection(v1.GraphKeys.LOSSES)[-1]


class Watch(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
    """Tells the global steps before the first call and at the end, and all variables at the end."""

    def __init__(self) -> None:
        self.first_step = self.step = 0
        self.values: dict[str, Any] = {}

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.first_step = int(session.run(v1.train.get_global_step()))

    def end(self, session: Any) -> None:
        self.values = session.run({v.op.name: v for v in v1.global_variables()})
        self.step = int(self.values["global_step"])
