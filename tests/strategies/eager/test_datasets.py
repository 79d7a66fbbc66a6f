"""Changes of a distributed dataset to the user's."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.experimental.ops.distribute import _AutoShardDataset
from tensorflow.python.eager import context

from tfdist.strategies import LocalStrategy, strategy_for_run
from tfdist.strategies.eager.datasets import (
    ReplicationModeError,
    too_few_files,
    tuned_for_cores,
    with_own_memory,
)


@pytest.mark.parametrize(
    ("cores", "chosen", "expected"),
    [
        ({0}, None, False),
        ({0}, True, True),
        ({0, 1}, None, None),
        ({0, 1}, False, False),
    ],
)
def test_on_a_single_core_tf_data_tunes_only_what_the_user_wants(
    cores: set[int], chosen: bool | None, expected: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: cores)
    dataset = tf.data.Dataset.range(4).batch(2)
    if chosen is not None:
        options = tf.data.Options()
        options.autotune.enabled = chosen
        dataset = dataset.with_options(options)
    tuned = tuned_for_cores(dataset)
    assert tuned.options().autotune.enabled is expected
    assert [row.tolist() for row in tuned.as_numpy_iterator()] == [[0, 1], [2, 3]]


def test_an_epoch_traces_no_functions_for_its_iterator() -> None:
    strategy = strategy_for_run()
    with strategy.scope():
        dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(2))

    def epoch() -> list[int]:
        return [int(tf.reduce_sum(rows)) for rows in dataset]

    assert epoch() == [1, 5, 9, 13]
    before = len(context.context().list_function_names())
    assert epoch() == [1, 5, 9, 13]
    assert len(context.context().list_function_names()) == before


_PER_REPLICA = tf.distribute.InputOptions(
    experimental_fetch_to_device=False,
    experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
)


@pytest.mark.parametrize("is_fetched", [False, True])
def test_each_replica_may_have_a_dataset_of_its_own(is_fetched: bool) -> None:
    strategy = LocalStrategy(num_replicas=2)
    options = tf.distribute.InputOptions(
        experimental_fetch_to_device=is_fetched,
        experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
    )

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        assert (context.num_input_pipelines, context.num_replicas_in_sync) == (2, 2)
        first = 10 * context.input_pipeline_id
        return tf.data.Dataset.range(first, first + 3).batch(2)

    dataset = strategy.distribute_datasets_from_function(make, options)
    batches = [
        [rows.numpy().tolist() for rows in strategy.experimental_local_results(batch)]
        for batch in dataset
    ]
    assert batches == [[[0, 1], [10, 11]], [[2], [12]]]


def test_one_dataset_for_all_replicas_is_not_one_for_each() -> None:
    with pytest.raises(ReplicationModeError, match="has one dataset for all replicas"):
        LocalStrategy(num_replicas=2).experimental_distribute_dataset(
            tf.data.Dataset.range(4).batch(2), _PER_REPLICA
        )


def test_one_file_for_two_workers_is_an_error_of_one_line_with_both_ways_out(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "one.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(b"row")
    shared = _AutoShardDataset(tf.data.TFRecordDataset([path]).batch(1), 2, 0)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        next(iter(shared))
    assert str(too_few_files(caught.value)) == (
        "the input has 1 file(s) for 2 workers, which share files. Set AutoShardPolicy.DATA "
        "(tf.data.Options().experimental_distribute.auto_shard_policy), so that each keeps its "
        "rows of all files, or write 2 files or more."
    )
    assert too_few_files(tf.errors.InvalidArgumentError(None, None, "another one")) is None


def _aligned(values: np.ndarray) -> np.ndarray:
    """Returns a copy at an address whose memory TensorFlow takes for a tensor."""
    memory = np.zeros(values.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[:] = values
    return copy


def test_training_leaves_the_arrays_of_a_generator_as_they_are() -> None:
    x = _aligned(np.random.RandomState(0).rand(64, 6).astype(np.float32))
    y = _aligned(x.sum(1, keepdims=True))
    before = y.copy()
    strategy = LocalStrategy(num_replicas=2)
    with strategy.scope():
        model = keras.Sequential([keras.Input([6]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    signature = (tf.TensorSpec([None, 6]), tf.TensorSpec([None, 1]))
    batches = [slice(16 * number, 16 * number + 16) for number in range(4)]
    dataset = tf.data.Dataset.from_generator(
        lambda: ((x[rows], y[rows]) for rows in batches), output_signature=signature
    )
    model.fit(dataset.prefetch(2), epochs=2, verbose=0)
    np.testing.assert_array_equal(y, before)


@pytest.mark.parametrize(
    "element",
    [
        np.zeros(2, np.float32),
        (np.zeros(2, np.float32),),
        {"a": np.zeros(2, np.float32)},
        (np.zeros(2, np.float32), {"b": "text"}),
    ],
)
def test_elements_of_a_generator_keep_their_structure(element: Any) -> None:
    signature = tf.nest.map_structure(
        lambda one: tf.TensorSpec(np.shape(one), np.asarray(one).dtype.type), element
    )
    if isinstance(element, tuple) and len(element) > 1:
        signature = (signature[0], {"b": tf.TensorSpec([], tf.string)})
    dataset = tf.data.Dataset.from_generator(lambda: iter([element]), output_signature=signature)
    copied = with_own_memory(dataset)
    assert copied is not dataset and copied.element_spec == dataset.element_spec


def test_a_dataset_without_python_is_not_copied() -> None:
    dataset = tf.data.Dataset.range(3).batch(2).prefetch(1)
    assert with_own_memory(dataset) is dataset
