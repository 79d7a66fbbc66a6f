"""Workers with a pipeline each compute what one pipeline with all their micro-batches does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ENGINES = ["grpc", "horovod"]
VARIABLES = {"table", "hidden", "bias"}


@pytest.fixture(scope="module")
def run_pipeline() -> Callable[..., dict[str, Any]]:
    """A function that trains a pipeline of two stages, and tells what came out.

    It is nested so that it goes to the workers by value.
    """

    def run_pipeline(engine: str, model_dir: str, count: int, *, ends_early: int) -> dict[str, Any]:
        import numpy as np
        import tensorflow as tf
        import tensorflow.compat.v1 as v1

        import tfdist.estimator as tfe
        from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy

        kind = {"grpc": MultiWorkerStrategy, "horovod": HorovodStrategy}.get(engine)
        strategy = None if kind is None else kind()
        random = np.random.RandomState(0)
        words = random.randint(0, 9, (4 * 8 * 3, 2)).astype(np.int32)

        def input_fn(input_context: Any = None) -> tf.data.Dataset:
            dataset = tf.data.Dataset.from_tensor_slices((words, words[:, 0])).batch(4, True)
            if input_context is None:
                return dataset
            index = input_context.input_pipeline_id
            own = dataset.shard(input_context.num_input_pipelines, index)
            return own.take(count * 3 - 1) if index == ends_early else own

        def variable(name: str, *shape: int) -> tf.Variable:
            values = np.random.RandomState(len(name)).randn(*shape).astype(np.float32) / 2
            with v1.variable_scope("", reuse=v1.AUTO_REUSE):
                return v1.get_variable(name, shape, initializer=v1.constant_initializer(values))

        def look_up(features: Any, labels: Any) -> Any:
            found = tf.nn.embedding_lookup(variable("table", 9, 4), features)
            return tf.reduce_mean(found, axis=1), labels

        def hide(hidden: Any, *labels: Any) -> Any:
            return tf.nn.tanh(tf.matmul(hidden, variable("hidden", 4, 4))), *labels

        def name_words(hidden: Any, labels: Any) -> Any:
            table = variable("table", 9, 4)
            return tf.matmul(hidden, table, transpose_b=True) + variable("bias", 9), labels

        def two(hidden: Any, labels: Any) -> Any:
            return name_words(*hide(hidden, labels))

        def optimizer_function(logits: Any, labels: Any) -> tfe.OptimizerFunctionOutput:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            optimizer = v1.train.AdamOptimizer(0.01)
            return tfe.OptimizerFunctionOutput(optimizer, tf.reduce_mean(losses))

        def model_fn(mode: str, params: Any) -> tfe.PipelineEstimatorSpec:
            return tfe.PipelineEstimatorSpec(
                mode=mode,
                computational_stages=params["stages"],
                gradient_accumulation_count=count,
                pipeline_schedule="interleaved" if len(params["stages"]) == 2 else "sequential",
                optimizer_function=optimizer_function,
            )

        class Watch(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
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

        config = tfe.RunConfig(train_distribute=strategy, save_checkpoints_steps=1000)
        watch = Watch()
        estimator = tfe.Estimator(model_fn, model_dir, config, {"stages": [look_up, two]})
        estimator.train(input_fn, hooks=[watch])
        told = {"values": watch.values, "ops": watch.ops, "calls": watch.calls, "refused": ""}
        if strategy is None:
            return told
        told["reduced"] = list(strategy.extended.reductions.described)
        if engine == "grpc":
            params = {"stages": [look_up, hide, name_words]}
            more = tfe.Estimator(model_fn, f"{model_dir}_more", config, params)
            try:
                more.train(input_fn, steps=1)
            except ValueError as error:
                told["refused"] = str(error)
        return told

    return run_pipeline


@pytest.fixture(scope="module")
def told_before() -> dict[str, list[dict[str, Any]]]:
    """The results of `alone` and `workers` so far, by engine."""
    return {}


@pytest.fixture
def alone(told_before: Any, run_pipeline: Any, fake_cluster: Any, tmp_path: Path) -> dict[str, Any]:
    if "none" not in told_before:
        told_before["none"] = fake_cluster.run(
            run_pipeline, "none", str(tmp_path / "alone"), 8, engine="none", ends_early=-1
        )
    return told_before["none"][0]


@pytest.fixture(params=ENGINES)
def workers(
    request: Any, told_before: Any, run_pipeline: Any, fake_cluster: Any, tmp_path: Path
) -> list[dict[str, Any]]:
    engine, folder = request.param, str(tmp_path / "workers")
    if engine not in told_before:
        told_before[engine] = fake_cluster.run(
            run_pipeline, engine, folder, 4, engine=engine, num_workers=2, ends_early=-1
        )
    return told_before[engine]


def test_two_workers_equal_one_with_all_micro_batches(
    workers: list[dict[str, Any]], alone: dict[str, Any]
) -> None:
    assert alone["values"].keys() == workers[0]["values"].keys() >= VARIABLES
    assert workers[0]["values"]["global_step"] == 3
    for name, value in alone["values"].items():
        np.testing.assert_allclose(workers[0]["values"][name], value, atol=1e-6, err_msg=name)


def test_the_workers_weights_are_bit_equal(workers: list[dict[str, Any]]) -> None:
    for name, value in workers[0]["values"].items():
        assert np.array_equal(value, workers[1]["values"][name]), name


def test_each_gradient_is_reduced_once_a_step_and_on_the_host(
    request: Any, workers: list[dict[str, Any]]
) -> None:
    gradients = ("all_reduce", "CPU:0")
    loss_and_agreement = ("all_reduce_1", "CPU:0")
    if request.node.callspec.params["workers"] == "grpc":
        expected = [gradients]  # The loss and the agreement travel with them: all are small.
    else:
        expected = [gradients, loss_and_agreement]
    for worker in workers:
        for gradient in (
            "bias (float32 (9,))",
            "table (float32 (9, 4))",
            "hidden (float32 (4, 4))",
        ):
            assert worker["reduced"].count(gradient) == 1, worker["reduced"]
        reductions = [
            (name.split("/")[0], place)
            for name, op, place in worker["ops"]
            if "all_reduce" in name and op.startswith(("QueueEnqueue", "Horovod"))
        ]
        assert sorted(reductions) == expected
        updates = [place for _, op, place in worker["ops"] if op == "ResourceApplyAdam"]
        assert updates == ["CPU:0"] * len(VARIABLES)


def test_each_stage_runs_on_its_own_device(workers: list[dict[str, Any]]) -> None:
    for worker in workers:
        assert worker["calls"] == {
            ("forward_0_", "CPU:1"),
            ("backward_0", "CPU:1"),
            ("forward_1_", "CPU:2"),
            ("backward_1", "CPU:2"),
        }


def test_a_server_that_lacks_a_device_is_named(workers: list[dict[str, Any]]) -> None:
    for worker in workers:
        if worker["refused"]:
            assert worker["refused"] == (
                "the server of this worker was started with 3 logical CPUs, and 4 are needed now: "
                "it cannot get more. Train the model that needs most devices first, or start the "
                "run with `tfdist run --devices-per-replica 3`."
            )
    assert {bool(w["refused"]) for w in workers} == {
        any(op == "QueueEnqueueV2" for _, op, _ in workers[0]["ops"])
    }


@pytest.mark.parametrize("engine", ENGINES)
def test_all_workers_stop_where_the_first_ones_input_ends(
    run_pipeline: Any, fake_cluster: Any, tmp_path: Path, engine: str
) -> None:
    workers = fake_cluster.run(
        run_pipeline, engine, str(tmp_path), 4, engine=engine, num_workers=2, ends_early=1
    )
    # One micro-batch short of a third step.
    assert [worker["values"]["global_step"] for worker in workers] == [2, 2]
