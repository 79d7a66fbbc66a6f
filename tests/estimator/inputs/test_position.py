"""The position of an input: its file, and the batches to read again with other workers or sizes."""

from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf

from tfdist.estimator.inputs.position import (
    Batching,
    InputPosition,
    batches_before,
    batching_of,
    read_position,
    write_position,
)
from tfdist.strategies.private_tensorflow import seeds_of_run

SHARED = Batching(size=4, num_shares=2)
ALONE = Batching(size=4)


@pytest.mark.parametrize(
    ("saved", "num_workers", "batching", "expected"),
    [
        ((10, 1, None), 1, Batching(), 10),
        ((10, 2, None), 2, Batching(size=4), 10),  # Not shared in turn: it counts batches.
        ((10, 1, 40), 1, ALONE, 10),
        ((10, 1, 40), 1, Batching(size=8), 5),
        ((10, 1, 40), 1, Batching(size=16), 2),  # The last 8 elements come again.
        ((10, 1, 40), 1, Batching(), 10),
        ((10, 2, 80), 2, SHARED, 10),
        ((10, 2, 80), 1, ALONE, 20),
        ((20, 1, 80), 2, SHARED, 10),
        ((20, 1, 80), 2, Batching(size=2, num_shares=2), 20),
        ((20, 1, 80), 2, Batching(size=4, num_shares=4), None),
        ((20, 1, 80), 2, Batching(size=4), None),
        ((20, 1, 80), 2, Batching(num_shares=2), None),
        ((10, 2, None), 1, ALONE, None),
    ],
)
def test_an_input_goes_on_after_the_same_elements(
    saved: tuple[int, int, int | None], num_workers: int, batching: Batching, expected: int | None
) -> None:
    batches, workers, elements = saved
    position = InputPosition(batches=batches, num_workers=workers, elements=elements, seed=1)
    assert batches_before(position, num_workers, batching) == expected


def _numbers() -> tf.data.Dataset:
    return tf.data.Dataset.range(100)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: _numbers().shuffle(9).repeat().batch(4), ALONE),
        (lambda: _numbers().batch(4).map(lambda x: x + 1, num_parallel_calls=2).prefetch(1), ALONE),
        (lambda: _numbers().batch(2, num_parallel_calls=2).batch(2, drop_remainder=True), ALONE),
        (lambda: _numbers().repeat().shard(2, 1).map(lambda x: x).batch(4), SHARED),
        (lambda: _numbers().shard(2, 1).shuffle(9).batch(4), ALONE),
        (lambda: _numbers().batch(4).repeat(), Batching()),
        (lambda: _numbers().batch(4).shuffle(3), Batching()),
        (lambda: _numbers().map(lambda x: x), Batching()),
        (lambda: tf.zeros([4]), Batching()),
    ],
)
def test_a_datasets_end_says_how_it_is_batched_and_shared(
    graph: tf.Graph, make: Callable[[], object], expected: Batching
) -> None:
    assert batching_of(make()) == expected


def test_elements_are_known_where_the_workers_take_them_in_turn() -> None:
    assert SHARED.elements(10, 2) == 80
    assert SHARED.elements(10, 1) is None
    assert ALONE.elements(10, 1) == 40
    assert ALONE.elements(10, 2) is None
    assert Batching().elements(10, 1) is None


def test_a_file_keeps_a_position(tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "model.ckpt-40")
    assert read_position(checkpoint) is None
    position = InputPosition(batches=40, num_workers=2, elements=None, seed=7)
    write_position(checkpoint, position)
    assert read_position(checkpoint) == position
    write_position(checkpoint, None)
    assert read_position(checkpoint) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"seed": 1, "more": 2}'])
def test_a_file_that_cannot_be_read_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    (tmp_path / "model.ckpt-40.input").write_text(text)
    assert read_position(str(tmp_path / "model.ckpt-40")) is None
    assert "The input begins at its start" in caplog.text


def _seeds(value: tf.Tensor) -> tuple[int, int]:
    op = value.op if value.op.type == "RandomUniform" else value.op.inputs[0].op.inputs[0].op
    return op.get_attr("seed"), op.get_attr("seed2")


def test_seeds_of_a_run_are_for_ops_that_have_none(graph: tf.Graph) -> None:
    with seeds_of_run(5):
        drawn = [tf.random.uniform([]) for _ in range(2)]
        own = tf.random.uniform([], seed=3)
    usual = tf.random.uniform([], seed=3)
    assert [_seeds(one) for one in drawn] == [(5, 0), (5, 1)]
    assert _seeds(own) == _seeds(usual) != (5, 2)
    assert _seeds(tf.random.uniform([])) == (0, 0)  # By chance, in each session.
    tf.compat.v1.set_random_seed(8)
    with seeds_of_run(5):
        assert _seeds(tf.random.uniform([]))[0] == 8


def test_runs_have_seeds_of_their_own() -> None:
    assert len({InputPosition.of_new_run().seed for _ in range(5)}) == 5
