"""Divisions: the rows of each worker, their owners, and the pieces of a checkpoint."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.divided import pieces
from tfdist.strategies.divided.initial_rows import own_rows_of
from tfdist.strategies.divided.tables import Tables, check_partitioner, is_divided
from tfdist.strategies.divided.variable import DividedTableError
from tfdist.strategies.eager.table_checkpoints import refuse_remote
from tfdist.strategies.reductions.division import Division


def divide(rows: int, workers: int, index: int = 0, columns: int = 6) -> Division:
    return Division(
        name="table",
        shape=(rows, columns),
        dtype=tf.float32,
        num_workers=workers,
        worker_index=index,
    )


@pytest.mark.parametrize(("rows", "workers"), [(11, 3), (12, 3), (4, 4), (101, 2), (1000, 7)])
def test_each_row_has_one_owner_and_no_worker_has_two_more_than_another(
    rows: int, workers: int
) -> None:
    divisions = [divide(rows, workers, index) for index in range(workers)]
    owned = [range(one.own_start, one.own_stop) for one in divisions]
    assert [row for own in owned for row in own] == list(range(rows))
    sizes = [len(own) for own in owned]
    assert max(sizes) - min(sizes) <= 1
    owners = divisions[0].owners(tf.range(rows)).numpy().tolist()
    assert owners == [index for index, own in enumerate(owned) for _ in own]


@pytest.mark.parametrize("piece_bytes", [1, 100, 1 << 20])
def test_pieces_have_each_row_of_the_other_workers_once(
    piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", piece_bytes)
    division = divide(11, 3)
    found = list(pieces.pieces_of_others(division))
    rows = [
        division.start(piece.owner) + piece.start + i for piece in found for i in range(piece.count)
    ]
    assert rows == list(range(4, 11))
    first = division.start(found[0].owner) + found[0].start
    assert found[0].spec == f"11 6 {first},{found[0].count}:-"


def _initializers() -> dict[str, Any]:
    import keras
    import tf_keras

    found: dict[str, Any] = {"lambda": lambda shape: tf.random.stateless_normal(shape, [1, 2])}
    for library in (keras, tf_keras):
        kinds = library.initializers
        for one in (
            kinds.RandomUniform(seed=3),
            kinds.RandomNormal(seed=3),
            kinds.TruncatedNormal(seed=3),
            kinds.GlorotUniform(seed=3),
            kinds.HeNormal(seed=3),
            kinds.Constant(0.5),
            kinds.Zeros(),
        ):
            found[f"{library.__name__} {type(one).__name__}"] = one
    return found


def test_a_worker_draws_the_rows_of_the_whole_table_without_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, initializer in _initializers().items():
        for index in range(3):
            division = divide(101, 3, index)
            whole = np.asarray(initializer((101, 6)))
            own = own_rows_of(lambda make=initializer: make((101, 6)), division)
            expected = whole[division.own_start : division.own_stop]
            np.testing.assert_array_equal(own, expected, err_msg=name)
    assert "computed whole" not in capsys.readouterr().err


def test_an_unknown_initial_value_is_made_whole_and_one_line_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def make() -> tf.Tensor:
        return tf.cumsum(tf.ones([101, 6]))

    own = own_rows_of(make, divide(101, 3))
    np.testing.assert_array_equal(own, np.cumsum(np.ones([101, 6]), axis=0)[:34])
    assert capsys.readouterr().err.count("\n") == 1


def test_another_axis_is_refused_with_its_fix() -> None:
    with pytest.raises(DividedTableError, match=r"gives \[1, 2\] for table .* axis=0"):
        is_divided(lambda **_: [1, 2], "table", tf.TensorShape([4, 4]), tf.float32)


def test_what_is_no_partitioner_is_refused_with_one_that_divides() -> None:
    with pytest.raises(ValueError, match=r"MinSizePartitioner\(max_shards=2\), got 3\.$"):
        check_partitioner(3)


@pytest.mark.parametrize(("max_shards", "worker"), [(1, 0), (1, 1), (2, 0)])
def test_worker_0_says_once_that_a_partitioner_divides_nothing(
    capsys: pytest.CaptureFixture[str], max_shards: int, worker: int
) -> None:
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=256, max_shards=max_shards
    )
    collectives = SimpleNamespace(num_workers=2, worker_index=worker)
    tables = Tables(partitioner, cast(Any, SimpleNamespace(collectives=collectives)))
    tables.note_gradients()  # Of no variable.
    for name, rows in (("bias", 6), ("words", 100), ("users", 50)):
        tables.plan({"name": name, "initial_value": lambda n=rows: tf.zeros([n, 6])})
    tables.note_gradients()
    tables.note_gradients()
    said = capsys.readouterr().err
    if max_shards == 2 or worker == 1:
        assert said == ""
        return
    assert said.count("\n") == 1
    assert "the largest, words [100, 6] of 2,400 bytes, it gives [1, 1]" in said
    assert "max_shards=1 by default" in said


def test_a_table_is_saved_to_a_folder_of_this_machine_alone() -> None:
    refuse_remote("/models/checkpoint", divide(11, 3))
    with pytest.raises(DividedTableError, match=r"gs://models/checkpoint is not .* this machine"):
        refuse_remote("gs://models/checkpoint", divide(11, 3))
