"""A short training of a pipeline of two stages, run by every engine."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy


def run_pipeline(engine: str, model_dir: str, count: int, *, ends_early: int) -> dict[str, Any]:
    """Trains in this worker; over "grpc", "horovod" or, in one process, "none".

    Args:
      count: The number of micro-batches per step.
      ends_early: The worker whose input ends one micro-batch before the third step; -1 for none.

    Returns:
      values: All variables at the end, by name. ops: The name, kind and device of each op of the
      last call. calls: Each stage's function and device. reduced: Descriptions of the reduced
      tensors. refused: Over gRPC, the error of a second pipeline that needs one device more.
    """
    kind = {"grpc": MultiWorkerStrategy, "horovod": HorovodStrategy}.get(engine)
    strategy = None if kind is None else kind()
    config = tfe.RunConfig(train_distribute=strategy, save_checkpoints_steps=1000)
    input_fn = _make_input_fn(count, ends_early)
    watch = _Watch()
    params = {"stages": [_look_up, _hide_and_name_words], "count": count}
    tfe.Estimator(_model_fn, model_dir, config, params).train(input_fn, hooks=[watch])
    told = {"values": watch.values, "ops": watch.ops, "calls": watch.calls, "refused": ""}
    if strategy is None:
        return told
    told["reduced"] = list(strategy.extended.reductions.described)
    if engine == "grpc":
        params = {"stages": [_look_up, _hide, _name_words], "count": count}
        more = tfe.Estimator(_model_fn, f"{model_dir}_more", config, params)
        try:
            more.train(input_fn, steps=1)
        except ValueError as error:
            told["refused"] = str(error)
    return told


def _make_input_fn(count: int, ends_early: int) -> Callable[..., tf.data.Dataset]:
    words = np.random.RandomState(0).randint(0, 9, (4 * 8 * 3, 2)).astype(np.int32)

    def input_fn(input_context: Any = None) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices((words, words[:, 0])).batch(4, True)
        if input_context is None:
            return dataset
        index = input_context.input_pipeline_id
        own = dataset.shard(input_context.num_input_pipelines, index)
        return own.take(count * 3 - 1) if index == ends_early else own

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


def _optimizer_function(logits: Any, labels: Any) -> tfe.OptimizerFunctionOutput:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    optimizer = v1.train.AdamOptimizer(0.01)
    return tfe.OptimizerFunctionOutput(optimizer, tf.reduce_mean(losses))


def _model_fn(mode: str, params: Any) -> tfe.PipelineEstimatorSpec:
    return tfe.PipelineEstimatorSpec(
        mode=mode,
        computational_stages=params["stages"],
        gradient_accumulation_count=params["count"],
        pipeline_schedule="interleaved" if len(params["stages"]) == 2 else "sequential",
        optimizer_function=_optimizer_function,
    )


class _Watch(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
    """Records the ops of the last call, the stages' function calls, and the final variables."""

    def __init__(self) -> None:
        self.calls: set[tuple[str, str]] = set()
        self.ops: list[tuple[str, str, str]] = []
        self.values: dict[str, Any] = {}

    def begin(self) -> None:
        self.variables = {v.op.name: v for v in v1.global_variables()}

    def before_run(self, run_context: Any) -> Any:
        options = v1.RunOptions(output_partition_graphs=True)
        return v1.train.SessionRunArgs(None, options=options)

    def after_run(self, run_context: Any, run_values: Any) -> None:
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
