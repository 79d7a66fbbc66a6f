"""Checkpoints of Estimators with a divided table: any number of workers, and none, read them."""

import importlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.testing import FakeCluster

pytestmark = pytest.mark.processes


def _shared(words: Any) -> Any:
    """Returns the sum of an embedding of two features, from one table: [batch]."""
    identities = [tf.feature_column.categorical_column_with_identity(name, 101) for name in "ab"]
    columns = tf.feature_column.shared_embeddings(
        identities, 4, initializer=tf.compat.v1.truncated_normal_initializer(seed=5)
    )
    found = tf.keras.layers.DenseFeatures(columns)({"a": words[:, :1], "b": words[:, 1:3]})
    return tf.reduce_sum(found * tf.range(8.0), 1) / 8  # [batch]


def _train(optimizers: list[str], folder: str, max_steps: int, warm: str = "") -> list[str]:
    """Trains a table of words by each optimizer; returns the slices that this worker has of it."""
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
    made = {
        # Unlike the others, these see a gradient that is twice as large.
        "gradient descent": lambda: v1.train.GradientDescentOptimizer(0.01),
        "momentum": lambda: v1.train.MomentumOptimizer(0.01, 0.9),
        "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
        "adam": lambda: v1.train.AdamOptimizer(0.01),
        "ftrl": lambda: v1.train.FtrlOptimizer(0.1),
        "rmsprop": lambda: v1.train.RMSPropOptimizer(0.01, momentum=0.5),
    }

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        start = v1.truncated_normal_initializer(seed=3)
        table = v1.get_variable("table", [101, 6], initializer=start)
        kernel = v1.get_variable("kernel", [6], initializer=v1.ones_initializer())
        rows = tf.nn.embedding_lookup(table, features)  # [batch, 5, 6]
        again = v1.nn.safe_embedding_lookup_sparse([table], tf.sparse.from_dense(features))
        out = tf.reduce_sum((tf.reduce_mean(rows, 1) + again) * kernel, 1) + _shared(features)
        loss = tf.reduce_mean(tf.square(out - labels))
        train_op = made[params["optimizer"]]().minimize(loss, v1.train.get_global_step())
        slices.extend(
            f"{v.op.name} {v._save_slice_info.spec}"
            for v in v1.global_variables()
            if getattr(v, "_save_slice_info", None) is not None
        )
        return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn() -> Any:
        own = slice(index * 24 // count, (index + 1) * 24 // count)
        return tf.data.Dataset.from_tensors((words[own], labels[own])).repeat()

    for optimizer in optimizers:
        config = tfe.RunConfig(
            f"{folder}/{optimizer}", train_distribute=strategy, save_checkpoints_steps=7
        )
        settings = {"params": {"optimizer": optimizer}, "warm_start_from": warm or None}
        estimator = tfe.Estimator(model_fn, config=config, **settings)
        estimator.train(input_fn, max_steps=max_steps)
    return slices


_SHARED = "a_b_shared_embedding"
# Names in object-based checkpoints: the objects in it, and of each variable.
_OBJECTS, _VALUE = "_CHECKPOINTABLE_OBJECT_GRAPH", ".ATTRIBUTES/VARIABLE_VALUE"


def _values(folder: Path) -> dict[str, Any]:
    reader = tf.train.load_checkpoint(str(folder))
    names = reader.get_variable_to_shape_map().keys() - {_OBJECTS}
    return {name: reader.get_tensor(name) for name in names}


def _check_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        # A small number may be what is left of large ones.
        atol = 1e-6 * max(1.0, float(np.abs(value).max()))
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=atol, err_msg=name)


OPTIMIZERS = ["gradient descent", "momentum", "adagrad", "adam", "ftrl", "rmsprop"]


@pytest.fixture(scope="module")
def alone(fake_cluster_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of trainings in one process.

    It has one of 10 steps by each optimizer, and "on", in which that by Adam goes on to 16, and
    "warm", in which one by Adagrad starts from that by FTRL.
    """
    folder, cluster = tmp_path_factory.mktemp("alone"), FakeCluster(fake_cluster_server)

    def train_all(optimizers: list[str], folder: str) -> None:
        _train(optimizers, folder, 10)
        shutil.copytree(f"{folder}/adam", f"{folder}/on/adam")
        _train(["adam"], f"{folder}/on", 16)
        _train(["adagrad"], f"{folder}/warm", 2, f"{folder}/ftrl")

    try:
        cluster.run(train_all, OPTIMIZERS, str(folder), engine="none", timeout_s=150)
    finally:
        cluster.close()
    return folder


@pytest.mark.parametrize(
    ("engine", "num_workers", "optimizers"),
    [("grpc", 2, OPTIMIZERS[::2]), ("horovod", 3, OPTIMIZERS[1::2])],
)
def test_a_checkpoint_of_workers_is_that_of_one_process_with_every_optimizer(
    fake_cluster: Any,
    alone: Path,
    tmp_path: Path,
    engine: str,
    num_workers: int,
    optimizers: list[str],
) -> None:
    slices = fake_cluster.run(
        _train,
        optimizers,
        str(tmp_path),
        10,
        engine=engine,
        num_workers=num_workers,
        timeout_s=150,
    )
    assert all(own and own != slices[0] for own in slices[1:])  # Each has other rows.
    assert any(name.startswith(_SHARED) for name in slices[0])
    for optimizer in optimizers:
        found = _values(tmp_path / optimizer)
        _check_equal(found, _values(alone / optimizer))
        first = tf.train.load_variable(f"{tmp_path}/{optimizer}/model.ckpt-0", _SHARED)
        assert not np.array_equal(found[_SHARED], first)
    assert not list(tmp_path.glob("*/.tables-*"))


@pytest.mark.parametrize(("engine", "numbers"), [("grpc", (3, 2, 1)), ("horovod", (2,))])
def test_any_number_of_workers_goes_on_from_a_checkpoint_of_any_number(
    fake_cluster: Any, alone: Path, tmp_path: Path, engine: str, numbers: tuple[int, ...]
) -> None:
    """From that of one process; each number of workers goes on from the one before."""
    shutil.copytree(alone / "adam", tmp_path / "adam")
    for place, workers in enumerate(numbers, 1):
        steps = 10 + place * 6 // len(numbers)
        kind = engine if workers > 1 else "none"
        fake_cluster.run(_train, ["adam"], str(tmp_path), steps, engine=kind, num_workers=workers)
    found = _values(tmp_path / "adam")
    assert found["global_step"] == 16
    _check_equal(found, _values(alone / "on" / "adam"))


@pytest.mark.parametrize("engine", ["grpc", "horovod"])
def test_a_warm_start_gives_each_worker_its_rows(
    fake_cluster: Any, alone: Path, tmp_path: Path, engine: str
) -> None:
    fake_cluster.run(_train, ["adagrad"], str(tmp_path), 2, str(alone / "ftrl"), engine=engine)
    warm = _values(tmp_path / "adagrad")
    _check_equal(warm, _values(alone / "warm" / "adagrad"))
    before = _values(alone / "ftrl")["table"]
    np.testing.assert_array_equal(
        warm["table"][90:100], before[90:100]
    )  # No batch has these words.


def _train_loops(folder: str, num_steps: int, alone: str = "") -> Any:
    """Trains by loops from checkpoint to checkpoint, in `alone` without a break before."""
    programs = importlib.import_module("divided_tables")
    if alone:
        programs.train_from_checkpoints(alone, 3 * num_steps)
    return programs.train_from_checkpoints(folder, num_steps)


def test_loops_of_any_number_of_workers_go_on_from_a_checkpoint_of_any_number(
    fake_cluster: Any, tmp_path: Path
) -> None:
    alone, divided = tmp_path / "alone", tmp_path / "divided"
    fake_cluster.run(_train_loops, str(divided), 5, str(alone), engine="none", num_workers=1)
    fake_cluster.run(_train_loops, str(divided), 5, engine="grpc", num_workers=2)
    found = fake_cluster.run(_train_loops, str(divided), 5, engine="horovod", num_workers=3)

    for library in ("keras", "tf_keras"):
        stored = _values(divided / library)
        num_saves = {f"save_counter/{_VALUE}": 3}
        _check_equal(stored, {**_values(alone / library), **num_saves})
        for worker in found:
            assert worker[library]["seen"] == stored[f"seen/{_VALUE}"] == 15 * 24
            rows = np.array(worker[library]["rows"], np.float32)
            assert any(np.array_equal(rows, value) for value in stored.values())
        assert len(list((divided / library).glob("*.index"))) == 1  # The newest alone is kept.
        assert not list((divided / library).glob(".tables-*"))
    whole = tf.Variable(tf.zeros([101, 6]))
    state = tf.train.Checkpoint(table=tf.train.Checkpoint(embeddings=whole))
    state.restore(tf.train.latest_checkpoint(str(divided / "tf_keras"))).expect_partial()
    np.testing.assert_array_equal(whole, np.array(found[0]["tf_keras"]["rows"], np.float32))
