"""The damage of a checkpoint's files, in one line."""

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.process.endings import OneLineError
from tfdist.strategies.saving.checkpoint_files import (
    CheckpointDamagedError,
    ModelDirError,
    damage,
    damage_named,
)

INDEX = "model.ckpt-7.index"
FIRST, SECOND = (f"model.ckpt-7.data-0000{i}-of-00002" for i in (0, 1))
LONG = "kernel" * 25  # Names so long that the index has several blocks.


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint in two files of values, one for each device."""
    folder: Path = tmp_path_factory.mktemp("saved")
    config = v1.ConfigProto(device_count={"CPU": 2})
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        with tf.device("CPU:0"):
            for i in range(60):
                v1.get_variable(f"layer_{i}/{LONG}", [7, 3])
            parts = v1.fixed_size_partitioner(3)
            v1.get_variable("parts", [20, 10], partitioner=parts)
        with tf.device("CPU:1"):
            v1.get_variable("kernel", [50, 10])
            v1.get_variable("words", initializer=tf.constant(["one", "fourteen"]))
            v1.get_variable("half", initializer=tf.constant([1.0, 2.0], tf.bfloat16))
            v1.get_variable("global_step", initializer=np.int64(7))
        session.run(v1.global_variables_initializer())
        saver = v1.train.Saver(sharded=True)
        saver.save(session, str(folder / "model.ckpt"), global_step=7, write_meta_graph=False)
    return folder


@pytest.fixture
def checkpoint(saved: Path, tmp_path: Path) -> str:
    """The path of a copy of that checkpoint."""
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    return str(tmp_path / "model.ckpt-7")


def values_of(checkpoint: str) -> dict[str, Any]:
    reader = tf.train.load_checkpoint(checkpoint)
    return {name: reader.get_tensor(name).tolist() for name in reader.get_variable_to_shape_map()}


def test_nothing_is_wrong_with_a_whole_checkpoint(checkpoint: str) -> None:
    assert damage(checkpoint) is None
    with damage_named(checkpoint):
        pass


@pytest.mark.parametrize("name", [FIRST, SECOND])
@pytest.mark.parametrize("left", [0, 1, 0.5, -1])
def test_a_file_that_is_cut_short_is_named_with_its_sizes(
    checkpoint: str, name: str, left: float
) -> None:
    file = Path(checkpoint).with_name(name)
    content = file.read_bytes()
    size = {0: 0, 1: 1, 0.5: len(content) // 2, -1: len(content) - 1}[left]
    file.write_bytes(content[:size])
    assert damage(checkpoint) == f"{name} has {size:,} of {len(content):,} bytes"


@pytest.mark.parametrize("name", [INDEX, FIRST, SECOND])
def test_a_file_that_is_gone_is_named(checkpoint: str, name: str) -> None:
    Path(checkpoint).with_name(name).unlink()
    assert damage(checkpoint) == f"{name} is missing"


@pytest.mark.parametrize(
    ("left", "why"),
    [
        (0, "is empty"),
        (10, "cannot be read (file is too short to be an sstable)"),
        (-1, "cannot be read (not an sstable (bad magic number))"),
    ],
)
def test_an_index_that_is_cut_short_is_named(checkpoint: str, left: int, why: str) -> None:
    file = Path(f"{checkpoint}.index")
    file.write_bytes(file.read_bytes()[:left])
    assert damage(checkpoint) == f"{INDEX} {why}"


def test_a_flipped_bit_is_found_and_the_value_is_named(checkpoint: str) -> None:
    file = Path(checkpoint).with_name(SECOND)
    content = bytearray(file.read_bytes())
    for place in random.Random(0).sample(range(len(content)), 40):
        content[place] ^= 4
        file.write_bytes(content)
        text = damage(checkpoint)
        assert text is not None and "\n" not in text
        content[place] ^= 4
    file.write_bytes(content)
    assert damage(checkpoint) is None
    content[2000] ^= 1
    file.write_bytes(content)
    assert damage(checkpoint) == f"in {SECOND} the values of kernel have another checksum"


def test_a_flipped_bit_in_the_index_is_found_where_it_matters(checkpoint: str) -> None:
    before = values_of(checkpoint)
    file = Path(f"{checkpoint}.index")
    content = bytearray(file.read_bytes())
    for place in random.Random(0).sample(range(len(content)), 150):
        content[place] ^= 32
        file.write_bytes(content)
        if damage(checkpoint) is None:
            assert values_of(checkpoint) == before
        content[place] ^= 32


def test_zeros_in_place_of_what_a_power_cut_lost_are_found(checkpoint: str) -> None:
    file = Path(checkpoint).with_name(FIRST)
    file.write_bytes(bytes(file.stat().st_size))
    assert f"in {FIRST} the values of " in str(damage(checkpoint))


def test_values_that_numpy_does_not_have_are_no_damage(tmp_path: Path) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        iterator = v1.data.make_one_shot_iterator(tf.data.Dataset.range(3))
        state = tf.data.experimental.make_saveable_from_iterator(iterator)
        v1.add_to_collection(v1.GraphKeys.SAVEABLE_OBJECTS, state)
        path = v1.train.Saver().save(session, str(tmp_path / "input"))
    assert damage(path) is None


def test_the_old_format_is_not_looked_into(tmp_path: Path) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("kernel", initializer=[1.0])
        session.run(v1.global_variables_initializer())
        saver = v1.train.Saver(write_version=v1.train.SaverDef.V1)
        path = saver.save(session, str(tmp_path / "old"))
    assert not list(tmp_path.glob("*.index"))
    assert damage(path) is None


def test_what_may_not_be_read_is_not_called_damaged(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, mode: str) -> Any:
        raise tf.errors.PermissionDeniedError(None, None, f"{path}; Permission denied")

    monkeypatch.setattr(tf.io.gfile, "GFile", refuse)
    with pytest.raises(ModelDirError, match=r"model.ckpt-7.index; Permission denied. Change"):
        damage(checkpoint)


def test_an_error_of_a_damaged_checkpoint_becomes_one_line(checkpoint: str) -> None:
    file = Path(checkpoint).with_name(FIRST)
    file.write_bytes(b"")
    with pytest.raises(CheckpointDamagedError) as caught, damage_named(checkpoint):
        tf.train.load_variable(checkpoint, f"layer_0/{LONG}")
    assert isinstance(caught.value, OneLineError)
    size = f"{FIRST} has 0 of 5,840 bytes"
    assert (
        str(caught.value) == f"Checkpoint {checkpoint} is damaged: {size}. Use another checkpoint."
    )


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_other_errors_stay_as_they_are(checkpoint: str, has_checkpoint: bool) -> None:
    path = checkpoint if has_checkpoint else None
    with pytest.raises(tf.errors.OutOfRangeError), damage_named(path):
        raise tf.errors.OutOfRangeError(None, None, "End of sequence")
