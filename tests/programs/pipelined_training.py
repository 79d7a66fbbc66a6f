"""Short trainings of a pipeline of two stages, run by every engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy

ROWS = 32  # Of a step, in all replicas of all workers.


@dataclass(frozen=True, kw_only=True)
class Options:
    """The differences between trainings.

    With `is_weighted` the loss and a training metric are means over 0 to 8 counts a row. `spec` has
    further arguments of the PipelineEstimatorSpec. `ends_early` is the worker whose input ends one
    micro-batch before the third step; -1 for none.
    """

    count: int  # Micro-batches of a replica in a step.
    micro_batch: int = 4
    num_replicas: int = 1
    iterations: int = 1
    is_weighted: bool = False
    precision: str = "float32"
    ends_early: int = -1
    spec: tuple[tuple[str, Any], ...] = ()


def run_pipelines(
    engine: str, model_dir: str, trainings: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Trains in turn in this worker, over "grpc", "horovod" or, in one process, "none".

    Returns:
      For each training: values: All variables at the end, by name. ops: The name, kind and device
      of each op of the last call. calls: Each stage's function and device. reported: The loss and
      the metric, if any, of each call. threads: How many compute in an operation. reduced:
      Descriptions of the reduced tensors. refused: Over gRPC, the error of a pipeline that then
      needs more devices than those before.
    """
    return [
        _run(engine, f"{model_dir}/{number}", Options(**given))
        for number, given in enumerate(trainings)
    ]


def _run(engine: str, model_dir: str, options: Options) -> dict[str, Any]:
    kind = {"grpc": MultiWorkerStrategy, "horovod": HorovodStrategy}.get(engine)
    strategy = None if kind is None else kind(num_replicas=options.num_replicas)
    device = tfe.DeviceConfig(iterations_per_loop=options.iterations, precision=options.precision)
    config = tfe.RunConfig(train_distribute=strategy, save_checkpoints_steps=1000, device=device)
    input_fn = _make_input_fn(options)
    watch = _Watch()
    params = {"stages": [_look_up, _hide_and_name_words], "options": options}
    tfe.Estimator(_model_fn, model_dir, config, params).train(input_fn, hooks=[watch])
    reported = {"values": watch.values, "ops": watch.ops, "calls": watch.calls, "refused": ""}
    reported["reported"] = watch.reported
    reported["threads"] = tf.config.threading.get_intra_op_parallelism_threads()
    if strategy is None:
        return reported
    reported["reduced"] = list(strategy.extended.reducer.built.described)
    if engine == "grpc" and options.num_replicas == 1:
        params["stages"] = [_look_up, _hide, _name_words, *[lambda *args: args] * 2]
        more = tfe.Estimator(_model_fn, f"{model_dir}_more", config, params)
        try:
            more.train(input_fn, steps=1)
        except ValueError as error:
            reported["refused"] = str(error)
    return reported


def _make_input_fn(options: Options) -> Callable[..., tf.data.Dataset]:
    words = np.random.RandomState(0).randint(0, 9, (ROWS * 3, 2)).astype(np.int32)

    def input_fn(input_context: Any = None) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices((words, words[:, 0]))
        dataset = dataset.batch(options.micro_batch, drop_remainder=True)
        if input_context is None:
            return dataset
        index = input_context.input_pipeline_id
        own = dataset.shard(input_context.num_input_pipelines, index)
        step = options.count * options.num_replicas
        return own.take(step * 3 - 1) if index == options.ends_early else own

    return input_fn


def _variable(name: str, *shape: int) -> tf.Variable:
    values = np.random.RandomState(len(name)).randn(*shape).astype(np.float32) / 2
    with v1.variable_scope("", reuse=v1.AUTO_REUSE):
        return v1.get_variable(name, shape, initializer=v1.constant_initializer(values))


def _look_up(features: Any, labels: Any) -> Any:
    found = tf.nn.embedding_lookup(_variable("table", 9, 4), features)  # [4, 2, 4]
    return tf.reduce_mean(found, axis=1), labels


def _hide(hidden: Any, *labels: Any) -> Any:
    return tf.nn.tanh(tf.matmul(hidden, _variable("hidden", 4, 4))), *labels


def _name_words(hidden: Any, labels: Any) -> Any:
    table = _variable("table", 9, 4)
    return tf.matmul(hidden, table, transpose_b=True) + _variable("bias", 9), labels


def _hide_and_name_words(hidden: Any, labels: Any) -> Any:
    return _name_words(*_hide(hidden, labels))


def _model_fn(mode: str, params: Any) -> tfe.PipelineEstimatorSpec:
    options: Options = params["options"]

    def optimizer_function(logits: Any, labels: Any) -> tfe.OptimizerFunctionOutput:
        logits = tf.cast(logits, tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        optimizer = v1.train.AdamOptimizer(0.01)
        if not options.is_weighted:
            return tfe.OptimizerFunctionOutput(optimizer, tf.reduce_mean(losses))
        counts = tf.cast(labels, tf.float32)  # [micro_batch]
        total = tf.reduce_sum(counts)
        best = tf.reduce_max(logits, axis=1)  # [micro_batch]
        return tfe.OptimizerFunctionOutput(
            optimizer,
            tf.reduce_sum(losses * counts) / total,
            loss_weight=total,
            metrics={"best": tf.reduce_sum(best * counts) / total},
        )

    return tfe.PipelineEstimatorSpec(
        mode=mode,
        computational_stages=params["stages"],
        gradient_accumulation_count=options.count,
        optimizer_function=optimizer_function,
        **{
            "pipeline_schedule": "interleaved" if len(params["stages"]) == 2 else "sequential",
            **dict(options.spec),
        },
    )


class _Watch(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
    """Records the last call's ops, the stages' function calls, and values of all calls."""

    def __init__(self) -> None:
        self.calls: set[tuple[str, str]] = set()
        self.ops: list[tuple[str, str, str]] = []
        self.values: dict[str, Any] = {}
        self.reported: list[list[float]] = []

    def begin(self) -> None:
        self.variables = {v.op.name: v for v in v1.global_variables()}
        named = {op.name for op in v1.get_default_graph().get_operations()}
        self.fetched = ["best:0"] if "best" in named else []

    def before_run(self, run_context: Any) -> Any:
        options = v1.RunOptions(output_partition_graphs=True)
        loss = run_context.original_args.fetches[1]
        return v1.train.SessionRunArgs([loss, *self.fetched], options=options)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.reported.append([float(value) for value in run_values.results])
        self.ops.clear()
        for graph in run_values.run_metadata.partition_graphs:
            for node in graph.node:
                place = node.device.rsplit("device:", 1)[-1]
                self.ops.append((node.name, node.op, place))
                function = node.attr["f"].func.name
                if "ward_" in function:
                    self.calls.add((function.removeprefix("__inference_")[:10], place))

    def end(self, session: Any) -> None:
        self.values.update(session.run(self.variables))
