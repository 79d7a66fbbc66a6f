"""Checkpoints of Estimators with a divided table: any number of workers, and none, read them."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.processes


def _train(optimizer: str, folder: str, max_steps: int) -> list[str]:
    """Trains a table of words; returns the slice of the table that this worker has."""
    import numpy as np
    import tensorflow as tf
    import tensorflow.compat.v1 as v1

    import tfdist.estimator as tfe
    from tfdist.strategies import strategy_for_run

    strategy = strategy_for_run(
        variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(
            min_shard_bytes=256, max_shards=1 << 20
        )
    )
    collectives = strategy.extended.collectives
    index, count = collectives.worker_index, collectives.num_workers
    random = np.random.RandomState(0)
    words = np.minimum(random.zipf(1.3, (24, 5)), 101).astype("int64") - 1
    labels = random.rand(24).astype("float32")
    slices: list[str] = []

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        start = v1.truncated_normal_initializer(seed=3)
        table = v1.get_variable("table", [101, 6], initializer=start)
        kernel = v1.get_variable("kernel", [6], initializer=v1.ones_initializer())
        rows = tf.nn.embedding_lookup(table, features)  # [batch, 5, 6]
        again = v1.nn.safe_embedding_lookup_sparse([table], tf.sparse.from_dense(features))
        out = tf.reduce_sum((tf.reduce_mean(rows, 1) + again) * kernel, 1)
        loss = tf.reduce_mean(tf.square(out - labels))
        made = {
            "adam": lambda: v1.train.AdamOptimizer(0.01),
            # Unlike the others, these see a gradient that is twice as large.
            "gradient descent": lambda: v1.train.GradientDescentOptimizer(0.01),
            "momentum": lambda: v1.train.MomentumOptimizer(0.01, 0.9),
            "ftrl": lambda: v1.train.FtrlOptimizer(0.1),
        }[optimizer]()
        train_op = made.minimize(loss, v1.train.get_global_step())
        slices.extend(
            v._save_slice_info.spec
            for v in v1.global_variables()
            if getattr(v, "_save_slice_info", None) is not None
        )
        return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn() -> Any:
        own = slice(index * 24 // count, (index + 1) * 24 // count)
        return tf.data.Dataset.from_tensors((words[own], labels[own])).repeat()

    config = tfe.RunConfig(folder, train_distribute=strategy, save_checkpoints_steps=7)
    tfe.Estimator(model_fn, config=config).train(input_fn, max_steps=max_steps)
    return slices


def _values(folder: Path) -> dict[str, Any]:
    reader = tf.train.load_checkpoint(str(folder))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def _check_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("engine", "num_workers", "optimizer"),
    [
        ("grpc", 2, "momentum"),
        ("grpc", 3, "ftrl"),
        ("horovod", 2, "adam"),
        ("horovod", 2, "gradient descent"),
    ],
)
def test_a_checkpoint_of_workers_is_that_of_one_process_and_goes_on_with_any_number(
    fake_cluster: Any, tmp_path: Path, engine: str, num_workers: int, optimizer: str
) -> None:
    alone, divided = tmp_path / "alone", tmp_path / "divided"
    fake_cluster.run(_train, optimizer, str(alone), 10, engine="none", num_workers=1)
    slices = fake_cluster.run(
        _train, optimizer, str(divided), 10, engine=engine, num_workers=num_workers
    )
    assert all(own and own != slices[0] for own in slices[1:])  # Each has other rows.
    _check_equal(_values(divided), _values(alone))
    assert not list(divided.glob(".tables-*"))

    one, other = tmp_path / "one", tmp_path / "other"
    shutil.copytree(divided, one)
    shutil.copytree(alone, other)
    fake_cluster.run(_train, optimizer, str(alone), 16, engine="none", num_workers=1)
    fake_cluster.run(_train, optimizer, str(one), 16, engine="none", num_workers=1)
    workers = 5 - num_workers if engine == "grpc" else num_workers
    fake_cluster.run(_train, optimizer, str(other), 16, engine=engine, num_workers=workers)
    expected = _values(alone)
    assert expected["global_step"] == 16
    _check_equal(_values(one), expected)
    _check_equal(_values(other), expected)
