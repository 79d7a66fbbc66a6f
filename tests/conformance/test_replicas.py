"""Several replicas in a worker compute what one with all their batches does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

WAYS = [
    {"optimizer": "momentum", "uses_host_call": False},
    {"optimizer": "adam", "variables_on_host": False},
    {"optimizer": "keras"},
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
def test_two_replicas_equal_one_with_the_double_batch(
    fake_cluster: Any, train: Any, train_alone: Any, tmp_path: Path, way: dict[str, Any]
) -> None:
    folder = str(tmp_path / "two")
    options = {"num_replicas": 2, "local_batch": 8, **way}
    two = fake_cluster.run(train, "none", folder, engine="none", **options)[0]
    one = train_alone(local_batch=16, **way)
    assert one["values"].keys() == two["values"].keys()
    for name, value in one["values"].items():
        np.testing.assert_allclose(two["values"][name], value, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(two["losses"], one["losses"], rtol=1e-6)
    assert two["values"]["global_step"] == 6


def test_each_replica_computes_on_its_own_device(
    fake_cluster: Any, train: Any, tmp_path: Path
) -> None:
    three = fake_cluster.run(
        train, "none", str(tmp_path), engine="none", num_replicas=3, local_batch=4
    )[0]
    # oneDNN's product is named _MklMatMul.
    products = {device for op, device in three["placed"].values() if op.endswith("MatMul")}
    assert {device[-5:] for device in products} == {"CPU:1", "CPU:2", "CPU:3"}
    assert {device[-5:] for op, device in three["placed"].values() if "ApplyGradient" in op} == {
        "CPU:0"
    }


def test_replicas_are_as_good_as_workers_for_batch_norm(fake_cluster: Any, tmp_path: Path) -> None:
    def train_with_batch_norm(model_dir: str, num_replicas: int) -> dict[str, Any]:
        import tensorflow as tf
        import tensorflow.compat.v1 as v1

        import tfdist.estimator as tfe
        from tfdist.strategies import strategy_for_run

        numbers = np.random.RandomState(0).randn(64, 4).astype(np.float32)

        def input_fn(input_context: Any) -> tf.data.Dataset:
            parts = tf.data.Dataset.from_tensor_slices(numbers).batch(8)
            return parts.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)

        def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
            weights = v1.get_variable("weights", [4, 3], initializer=v1.ones_initializer())
            hidden = tf.matmul(features, weights)
            normal = v1.layers.batch_normalization(hidden, training=True, momentum=0.5)
            loss = tf.reduce_mean(tf.square(normal - 0.5) * hidden)
            optimizer = v1.train.GradientDescentOptimizer(0.1)
            with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
                train_op = optimizer.minimize(loss, v1.train.get_global_step())
            return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

        config = tfe.RunConfig(train_distribute=strategy_for_run(num_replicas=num_replicas))
        estimator = tfe.Estimator(model_fn, model_dir, config).train(input_fn, steps=3)
        estimator.train(input_fn, steps=1)  # Statistics go on from the saved ones.
        if not config.is_chief:
            return {}
        return {n: estimator.get_variable_value(n) for n in estimator.get_variable_names()}

    folder = str(tmp_path)
    [replicas] = fake_cluster.run(train_with_batch_norm, f"{folder}/replicas", 2, engine="none")
    assert "batch_normalization/moving_mean" in replicas
    workers, _ = fake_cluster.run(train_with_batch_norm, f"{folder}/workers", 1)
    assert workers.keys() == replicas.keys()
    for name, value in workers.items():
        np.testing.assert_allclose(replicas[name], value, atol=1e-6, err_msg=name)
