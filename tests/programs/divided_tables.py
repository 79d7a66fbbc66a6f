"""Small programs of TensorFlow 2 with tables that are divided between the workers.

Each takes the strategy and returns a dict of arrays, as those of `own_loops`.
"""

from __future__ import annotations

import functools
import importlib
import os
import tempfile
import traceback
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

Case = Callable[[Any], dict[str, Any]]
CASES: dict[str, Case] = {}
ROWS, BATCH, STEPS = 101, 24, 20
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"learning_rate": 0.5}),
    "momentum": ("SGD", {"learning_rate": 0.1, "momentum": 0.9}),
    "adam": ("Adam", {"learning_rate": 0.01}),
    "adagrad": ("Adagrad", {"learning_rate": 0.1}),
    "ftrl": ("Ftrl", {"learning_rate": 0.1}),
    "global_clipnorm": ("SGD", {"learning_rate": 0.5, "global_clipnorm": 0.02}),
    "clipnorm": ("Adam", {"learning_rate": 0.01, "clipnorm": 0.01}),
}


def run_all(num_replicas: int = 1, names: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Runs the programs in turn; one that fails returns its error as "error"."""
    strategy = _strategy(num_replicas)
    results: dict[str, dict[str, Any]] = {}
    for name in names or CASES:
        try:
            found = CASES[name](strategy)
        except Exception:  # A test shows it.
            found = {"error": traceback.format_exc()}
        results[name] = {
            key: value if isinstance(value, str) else np.asarray(value).tolist()
            for key, value in found.items()
        }
    return results


def _strategy(num_replicas: int) -> Any:
    from tfdist.strategies import strategy_for_run

    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=256, max_shards=1 << 20
    )
    strategy = strategy_for_run(num_replicas=num_replicas, variable_partitioner=partitioner)
    strategy.scope()  # Meets the other workers.
    return strategy


def train_from_checkpoints(folder: str, num_steps: int) -> dict[str, Any]:
    """Trains layers of both Keras libraries by loops that go on from their newest checkpoint.

    They restore before they have variables. All workers save together, after some steps.
    """
    strategy = _strategy(1)
    return {
        library: _train_from_checkpoint(
            strategy, importlib.import_module(library), f"{folder}/{library}", num_steps
        )
        for library in ("keras", "tf_keras")
    }


def _train_from_checkpoint(strategy: Any, keras: Any, folder: str, num_steps: int) -> Any:
    with strategy.scope():
        table = keras.layers.Embedding(
            ROWS, 6, embeddings_initializer=keras.initializers.RandomUniform(seed=3)
        )
        dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=4))
        optimizer = keras.optimizers.Adam(0.01)
        step = tf.Variable(0, dtype=tf.int64, trainable=False)
        seen = tf.Variable(
            0.0,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
    state = tf.train.Checkpoint(table=table, dense=dense, optimizer=optimizer, step=step, seen=seen)
    manager = tf.train.CheckpointManager(state, folder, max_to_keep=1)
    state.restore(manager.latest_checkpoint)
    with strategy.scope():
        table.build([None, 5])
        dense.build([None, 6])
        weights = [table.embeddings, dense.kernel, dense.bias]
        optimizer.build(weights)

    def replica_step(batch: Any) -> None:
        ids, labels = batch
        with tf.GradientTape() as tape:
            out = dense(tf.reduce_mean(table(ids), 1))
            loss = tf.reduce_sum(tf.square(out - labels)) / BATCH
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        seen.assign_add(tf.cast(tf.shape(ids)[0], tf.float32))

    @tf.function
    def train(batch: Any) -> None:
        strategy.run(replica_step, (batch,))

    data = batches().skip(int(step)).take(num_steps)
    for batch in strategy.experimental_distribute_dataset(data):
        train(batch)
        step.assign_add(1)
    manager.save(checkpoint_number=int(step))
    return {"rows": all_rows(strategy, table.embeddings).tolist(), "seen": float(seen)}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def examples(number: int = BATCH * STEPS) -> tuple[Any, Any]:
    """Words of which some occur again and again, and labels."""
    random = np.random.RandomState(0)
    words = np.minimum(random.zipf(1.3, (number, 5)), ROWS).astype("int64") - 1
    return words, random.rand(number, 1).astype("float32")


def batches(number: int = BATCH * STEPS) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(examples(number)).batch(BATCH)


def all_rows(strategy: Any, table: Any) -> Any:
    return strategy.read_rows(table, np.arange(ROWS)).numpy()


def _fit(library: str, optimizer: str, strategy: Any) -> dict[str, Any]:
    keras = importlib.import_module(library)
    kind, options = OPTIMIZERS[optimizer]
    with strategy.scope():
        table = keras.layers.Embedding(
            ROWS, 6, embeddings_initializer=keras.initializers.RandomUniform(seed=3)
        )
        dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=4))
        model = keras.Sequential(
            [keras.layers.Input((5,), dtype="int64"), table, keras.layers.Flatten(), dense]
        )
        model.compile(getattr(keras.optimizers, kind)(**options), "mse")
    before = all_rows(strategy, table.embeddings)
    losses = model.fit(batches(), verbose=0).history["loss"]
    return {
        "before": before,
        "losses": losses,
        "rows": all_rows(strategy, table.embeddings),
        "kernel": dense.get_weights()[0],
        "evaluated": model.evaluate(batches(50), verbose=0),  # The last batch has two rows.
        "predicted": model.predict(batches(50), verbose=0),
    }


_FITS = {
    "keras": ("sgd", "adam", "adagrad", "global_clipnorm"),
    "tf_keras": ("momentum", "adam", "ftrl", "clipnorm"),
}
for _library, _optimizers in _FITS.items():
    for _optimizer in _optimizers:
        CASES[f"{_library}_{_optimizer}"] = functools.partial(_fit, _library, _optimizer)


@case
def own_loop(strategy: Any) -> dict[str, Any]:
    """Two look-ups of one table in a step, one of another, and batches of other sizes."""
    import keras

    with strategy.scope():
        words = tf.Variable(lambda: tf.random.stateless_normal([ROWS, 4], [1, 2]), name="words")
        users = tf.Variable(lambda: tf.random.stateless_uniform([50, 4], [3, 4]), name="users")
        optimizer = keras.optimizers.Adam(0.05)
    start = [all_rows(strategy, words), strategy.read_rows(users, np.arange(50)).numpy()]

    def step(batch: Any) -> Any:
        ids, labels = batch
        with tf.GradientTape() as tape:
            first = tf.nn.embedding_lookup(words, ids[:, :2])  # [batch, 2, 4]
            last = tf.gather(words, tf.cast(ids[:, 2:], tf.int32))  # [batch, 3, 4]
            of_users = tf.gather(users, ids[:, 0] % 50)  # [batch, 4]
            out = tf.reduce_sum(first, [1, 2]) + tf.reduce_sum(last * of_users[:, None], [1, 2])
            loss = tf.reduce_sum(tf.square(out - labels[:, 0])) / BATCH
        gradients = tape.gradient(loss, [words, users])
        optimizer.apply_gradients(zip(gradients, [words, users], strict=True))
        return loss

    @tf.function
    def train(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(step, (batch,)), axis=None)

    # The last batch has one row: of three workers two have none.
    losses = [train(b) for b in strategy.experimental_distribute_dataset(batches(49))]
    return {
        "start": np.concatenate(start),
        "losses": losses,
        "words": all_rows(strategy, words),
        "users": strategy.read_rows(users, np.arange(50)),
    }


@case
def sparse_look_ups(strategy: Any) -> dict[str, Any]:
    """The combiners of TensorFlow's sparse look-ups, with features that have no value."""
    import tf_keras

    with strategy.scope():
        table = tf.Variable(lambda: tf.random.stateless_normal([ROWS, 4], [1, 2]), name="table")
        optimizer = tf_keras.optimizers.SGD(0.5)

    def step(batch: Any) -> Any:
        ids, labels = batch
        # Features of 1 to 5 values; and of none where the first word is even.
        kept = tf.sequence_mask(1 + tf.cast(ids[:, 0] % 5, tf.int32), 5)
        some = tf.sparse.from_dense(tf.where(kept, ids + 1, 0))
        some = tf.SparseTensor(some.indices, some.values - 1, some.dense_shape)
        may_be_empty = tf.where(kept & (ids[:, :1] % 2 == 1), ids + 1, 0)
        few = tf.sparse.from_dense(may_be_empty)
        few = tf.SparseTensor(few.indices, few.values - 1, few.dense_shape)
        with tf.GradientTape() as tape:
            mean = tf.nn.embedding_lookup_sparse(table, some, None, combiner="mean")
            root = tf.nn.safe_embedding_lookup_sparse(table, few, combiner="sqrtn", default_id=7)
            out = tf.reduce_sum(mean * root, axis=1)
            loss = tf.reduce_sum(tf.square(out - labels[:, 0])) / BATCH
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        return loss

    @tf.function
    def train(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(step, (batch,)), axis=None)

    losses = [train(b) for b in strategy.experimental_distribute_dataset(batches())]
    return {"losses": losses, "table": all_rows(strategy, table)}


@case
def masked_and_ragged(strategy: Any) -> dict[str, Any]:
    """Embedding layers with a mask, and with ragged ids."""
    found: dict[str, Any] = {}
    for library in ("keras", "tf_keras"):
        keras = importlib.import_module(library)
        with strategy.scope():
            table = keras.layers.Embedding(
                ROWS, 4, mask_zero=True, embeddings_initializer=keras.initializers.Ones()
            )
            model = keras.Sequential(
                [
                    keras.layers.Input((5,), dtype="int64"),
                    table,
                    keras.layers.GlobalAveragePooling1D(),
                    keras.layers.Dense(1, kernel_initializer="ones"),
                ]
            )
            model.compile(keras.optimizers.SGD(0.02), "mse")
        model.fit(batches(), verbose=0)
        found[f"{library}_masked"] = all_rows(strategy, table.embeddings)
        ragged = tf.RaggedTensor.from_row_splits(examples(2)[0].reshape(-1), [0, 3, 3, 10])
        found[f"{library}_ragged"] = table(ragged).to_tensor()
    return found


@case
def exports(strategy: Any) -> dict[str, Any]:
    """SavedModels of both Keras libraries, and of a tf.function that is called before and after."""
    found: dict[str, Any] = {}
    ids = tf.reshape(tf.range(ROWS - 1, dtype=tf.int64), [-1, 5])
    for library in ("keras", "tf_keras"):
        keras = importlib.import_module(library)
        with strategy.scope():
            model = keras.Sequential(
                [keras.layers.Input((5,), dtype="int64"), keras.layers.Embedding(ROWS, 6)]
            )
            model.compile("sgd", "mse")
        found[f"{library}_predicted"] = model.predict(ids, batch_size=20, verbose=0)
        found[f"own_{library}"] = _exported(model.export, "serve", ids)
    module = tf.Module()
    with strategy.scope():
        module.table = tf.Variable(lambda: tf.random.stateless_normal([ROWS, 4], [1, 2]))
    module.look_up = tf.function(
        lambda ids: tf.gather(module.table, ids),
        input_signature=[tf.TensorSpec([None, 5], tf.int64)],
    )
    before = module.look_up(ids)
    found["own_module"] = _exported(lambda to: tf.saved_model.save(module, to), "look_up", ids)
    return {**found, "module_predicted": module.look_up(ids), "before": before}


def _exported(export: Callable[[str], Any], function: str, ids: tf.Tensor) -> Any:
    """Exports to a folder of this worker, and returns what comes of it; [] where nothing is."""
    with tempfile.TemporaryDirectory() as folder:
        export(f"{folder}/model")
        if not os.path.exists(f"{folder}/model"):
            return []
        loaded = tf.saved_model.load(f"{folder}/model")
        return getattr(loaded, function)(ids).numpy()


def _export_of_a_trace(table: Any) -> None:
    module = tf.Module()
    module.table = table
    trace = tf.function(lambda: tf.gather(table, [1, 2])).get_concrete_function()
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, signatures=trace)


@case
def refusals(strategy: Any) -> dict[str, Any]:
    """Uses that would need the whole table, or would be wrong: the error of each."""
    import keras

    class Normed(keras.optimizers.SGD):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            raise AssertionError

    with strategy.scope():
        table = tf.Variable(lambda: tf.zeros([ROWS, 4]), name="table")
        layer = keras.layers.Embedding(ROWS, 4)
        layer.build()

    def dense_gradient() -> None:
        gradients = [(tf.zeros([ROWS, 4]), table)]
        strategy.run(lambda: keras.optimizers.SGD().apply_gradients(gradients))

    def other_optimizer() -> None:
        rows = tf.IndexedSlices(tf.ones([1, 4]), tf.constant([2]), tf.constant([ROWS, 4]))
        strategy.run(lambda: Normed().apply_gradients([(rows, table)]))

    def other_axis() -> None:
        def columns(shape: Any, dtype: Any) -> list[int]:
            return [1, 2]

        from tfdist.strategies.divided.tables import is_divided

        is_divided(columns, "table", tf.TensorShape([4, 4]), tf.float32)

    attempts: dict[str, Callable[[], Any]] = {
        "convert": lambda: tf.convert_to_tensor(table),
        "multiply": lambda: tf.matmul(tf.ones([1, ROWS]), table),
        "numpy": table.numpy,
        "get_weights": layer.get_weights,
        "column": lambda: keras.ops.take(layer.embeddings, [0], axis=1),
        "assign_add": lambda: table.assign_add(tf.ones([ROWS, 4])),
        "dense_gradient": dense_gradient,
        "other_optimizer": other_optimizer,
        "other_axis": other_axis,
        "export": lambda: _export_of_a_trace(table),
    }
    found = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except ValueError as error:
            found[f"own_{name}"] = f"{type(error).__name__}: {error}"
        else:
            found[f"own_{name}"] = "nothing"
    return found


@case
def noted_gradients(strategy: Any) -> dict[str, Any]:
    """Counts how often each kind of optimizer tells the strategy's tables of gradients."""
    import keras
    import tf_keras

    with strategy.scope():
        weight = tf.Variable([1.0, 2.0])
    optimizers = {
        "keras": keras.optimizers.SGD(0.1),
        "tf_keras": tf_keras.optimizers.SGD(0.1),
        "v1": tf.compat.v1.train.GradientDescentOptimizer(0.1),
    }
    before, found = strategy.extended.tables, {}
    for name, optimizer in optimizers.items():
        tables = strategy.extended.tables = mock.Mock(spec=type(before))
        gradients = [(tf.constant([1.0, 1.0]), weight)]
        strategy.run(functools.partial(optimizer.apply_gradients, gradients))
        found[f"own_{name}"] = tables.note_gradients.call_count
    strategy.extended.tables = before
    return found


@case
def wrong_ids(strategy: Any) -> dict[str, Any]:
    with strategy.scope():
        table = tf.Variable(lambda: tf.zeros([ROWS, 4]), name="table")
    try:
        tf.gather(table, [3, ROWS + 4])
    except tf.errors.InvalidArgumentError as error:
        return {"own_error": str(error.message)}
    return {"own_error": "nothing"}
