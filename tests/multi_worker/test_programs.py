"""Programs written for tf.estimator, with two workers: TensorFlow's strategy, tensors as input."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfdist.testing import ReservedPorts


def _train_with_stock_strategy(folder: str, kind: str) -> tuple[list[str], float, Any]:
    """A program of tf.estimator; returns its log, its last loss and the weight."""
    import logging

    import tensorflow as tf
    import tensorflow.compat.v1 as v1

    from tfdist.estimator import enable_compat

    enable_compat()
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tensorflow").addHandler(handler)
    logging.getLogger("tensorflow").setLevel(logging.INFO)
    if kind == "graph":
        v1.disable_eager_execution()
        strategy = v1.distribute.experimental.MultiWorkerMirroredStrategy()
    else:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def input_fn(input_context: Any) -> Any:
        own = float(input_context.input_pipeline_id)
        return tf.data.Dataset.from_tensors([own, 2.0]).repeat(5)

    def model_fn(features: Any, mode: str) -> Any:
        weight = v1.get_variable("weight", initializer=v1.constant([1.0, 1.0]))
        loss = tf.reduce_sum(features * weight)
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    config = tf.estimator.RunConfig(train_distribute=strategy, eval_distribute=strategy)
    estimator = tf.estimator.Estimator(model_fn, folder, config)
    metrics, _ = tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(lambda: input_fn(config.train_distribute.extended.input_context())),
        tf.estimator.EvalSpec(lambda: tf.data.Dataset.from_tensors([1.0, 1.0]), steps=0.5),
    )
    value = estimator.get_variable_value("weight") if config.is_chief else None
    return lines, float(metrics["loss"]), value


@pytest.mark.parametrize("kind", ["eager", "graph"])
def test_a_program_with_tensorflows_strategy_for_workers_runs_unchanged(
    fake_cluster: Any, tmp_path: Path, kind: str
) -> None:
    workers = fake_cluster.run(_train_with_stock_strategy, str(tmp_path), kind)
    for lines, loss, _ in workers:
        said = [line for line in lines if "runs as tfdist.strategies.MultiWorkerStrategy" in line]
        assert len(said) == 1 and "2 worker(s), 1 replica(s) in each" in said[0]
        assert said[0].endswith("TensorFlow has started.") == (kind == "eager")
        assert loss == pytest.approx(0.75 + 0.0, abs=1e-5)
    # Five steps of 0.1 times the mean of the workers' features, [0.5, 2].
    np.testing.assert_allclose(workers[0][2], [0.75, 0.0], atol=1e-6)


def _train_on_tensors(engine: str, folder: str, kind: str, batch: int) -> Any:
    """Trains on tensors until they end; returns the weight and the global step."""
    import numpy as np
    import tensorflow as tf
    import tensorflow.compat.v1 as v1

    import tfdist.estimator as tfe
    from tfdist.estimator.v1 import inputs
    from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy

    kinds = {"grpc": MultiWorkerStrategy, "horovod": HorovodStrategy}
    strategy = kinds[engine]() if engine in kinds else None
    x = np.random.RandomState(0).randn(40, 2).astype(np.float32)

    def from_iterator() -> Any:
        shares, own = (2, strategy.extended.collectives.worker_index) if strategy else (1, 0)
        dataset = tf.data.Dataset.from_tensor_slices({"x": x[own::shares]}).batch(batch)
        return v1.data.make_one_shot_iterator(dataset).get_next()

    def model_fn(features: Any, mode: str) -> Any:
        weight = v1.get_variable("weight", [2], initializer=v1.zeros_initializer())
        loss = tf.reduce_mean(tf.square(features["x"] - weight))
        optimizer = v1.train.AdamOptimizer(0.1)
        return tfe.EstimatorSpec(
            mode, loss=loss, train_op=optimizer.minimize(loss, v1.train.get_global_step())
        )

    input_fn = {
        "numpy": inputs.numpy_input_fn({"x": x}, batch_size=batch, shuffle=False),
        "iterator": from_iterator,
    }[kind]
    config = tfe.RunConfig(train_distribute=strategy)
    estimator = tfe.Estimator(model_fn, folder, config).train(input_fn)
    if strategy is not None and not config.is_chief:
        return None
    return estimator.get_variable_value("weight"), estimator.get_variable_value("global_step")


@pytest.mark.parametrize(("engine", "kind"), [("horovod", "numpy"), ("grpc", "iterator")])
def test_two_workers_train_on_tensors_as_one_with_the_double_batch_to_the_end(
    fake_cluster: Any, tmp_path: Path, engine: str, kind: str
) -> None:
    together = fake_cluster.run(
        _train_on_tensors, engine, str(tmp_path / "two"), kind, 4, engine=engine
    )
    [(weight, step)] = fake_cluster.run(
        _train_on_tensors, "none", str(tmp_path / "one"), kind, 8, engine="none"
    )
    np.testing.assert_allclose(together[0][0], weight, atol=1e-6)
    assert together[0][1] == step == 5


def test_an_optimizer_that_reduces_nothing_is_refused_by_every_worker(fake_cluster: Any) -> None:
    def train() -> str:
        import tensorflow as tf
        import tensorflow.compat.v1 as v1

        import tfdist.estimator as tfe
        from tfdist.strategies import strategy_for_run

        class OwnDescent(v1.train.Optimizer):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__(False, "OwnDescent")

            def apply_gradients(self, pairs: Any, global_step: Any = None, name: Any = None) -> Any:
                return tf.group(*(v.assign_sub(0.1 * g) for g, v in pairs))

        def model_fn(features: Any, mode: str) -> Any:
            weight = v1.get_variable("weight", initializer=v1.constant([1.0, 1.0]))
            loss = tf.reduce_sum(features * weight)
            return tfe.EstimatorSpec(mode, loss=loss, train_op=OwnDescent().minimize(loss))

        config = tfe.RunConfig(train_distribute=strategy_for_run())
        try:
            tfe.Estimator(model_fn, config=config).train(
                lambda: tf.data.Dataset.from_tensors([1.0, 1.0]).repeat(3)
            )
        except tfe.ModelMismatchError as error:
            return str(error)
        return "trained"

    # tests/estimator/loop/test_model_check.py has the other cases.
    for said in fake_cluster.run(train, engine="horovod"):
        assert "OwnDescent.apply_gradients (" in said and "2 different models" in said


_FOR_PARAMETER_SERVERS = """
import sys
import tensorflow.compat.v1 as tf
from tfdist.estimator import enable_compat

enable_compat(parameter_servers=sys.argv[2] or None)
tf.disable_eager_execution()

def input_fn():
    return tf.data.Dataset.from_tensors([1.0, 2.0]).repeat(4)

def model_fn(features, mode):
    weight = tf.get_variable("weight", initializer=tf.constant([1.0, 1.0]))
    loss = tf.reduce_sum(features * weight)
    step = tf.train.get_global_step()
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

strategy = tf.distribute.experimental.ParameterServerStrategy()
config = tf.estimator.RunConfig(train_distribute=strategy)
estimator = tf.estimator.Estimator(model_fn, sys.argv[1], config)
tf.estimator.train_and_evaluate(
    estimator,
    tf.estimator.TrainSpec(input_fn, max_steps=4),
    tf.estimator.EvalSpec(input_fn, steps=1),
)
print("trained as", config.task_type)
if config.is_chief:
    print("weight", *estimator.get_variable_value("weight").round(5))
"""


def test_a_program_for_parameter_servers_trains_in_step_and_its_ps_task_ends(
    fake_cluster: Any, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(_FOR_PARAMETER_SERVERS)
    with ReservedPorts(3) as reserved, ExitStack() as running:
        addresses = (f"localhost:{port}" for port in reserved.ports)
        cluster = {task: [next(addresses)] for task in ("chief", "worker", "ps")}
        runs = []
        for task in cluster:
            tf_config = {"cluster": cluster, "task": {"type": task, "index": 0}}
            env = {"TF_CONFIG": json.dumps(tf_config)}
            command = [str(program), str(tmp_path / "model"), "replace"]
            if task == "ps":  # The two ways to ask for it.
                command[2], env["TFDIST_PARAMETER_SERVERS"] = "", "replace"
            start = fake_cluster.start_script(command, engine="none", env=env, forked=True)
            runs.append(running.enter_context(start))
        chief, worker, server = (run.wait(120)[0] for run in runs)
    for one in (chief, worker):
        assert one.stderr.count("2 worker(s) hold them and train in step") == 1
    # Four steps for both, with the mean of their equal gradients, [1, 2].
    assert chief.stdout.split("\n")[:2] == ["trained as chief", "weight 0.6 0.2"]
    assert worker.stdout == "trained as worker\n"
    assert server.stdout == ""
    lines = [line for line in server.stderr.splitlines() if line.startswith(("ps 0", "chief"))]
    assert len(lines) == 2 and "holds no variables" in lines[0]
    assert lines[1].endswith("is done: ps 0 ends.")
