"""No room left for a checkpoint: training ends with an error, the last whole checkpoint stays."""

import contextlib
import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.process.endings import OneLineError
from tfdist.process.exit_codes import NO_SPACE
from tfdist.strategies.saving.disk_space import CheckpointSpaceError, full_disk_named

pytestmark = pytest.mark.processes

NUM_WEIGHTS = 100_000  # 400 kB
SIZE = "400,008"  # with the global step


def train(
    folder: Path, *, steps: int = 20, listener: Any = None, in_background: bool = True
) -> None:
    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        weights = v1.get_variable("weights", [NUM_WEIGHTS], initializer=v1.zeros_initializer())
        loss = tf.reduce_mean(weights * features)
        update = v1.train.GradientDescentOptimizer(NUM_WEIGHTS)
        train_op = update.minimize(loss, v1.train.get_global_step())
        return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

    config = tfe.RunConfig(
        save_checkpoints_steps=3, save_summary_steps=None, save_checkpoints_async=in_background
    )
    tfe.Estimator(model_fn, folder, config).train(
        lambda: tf.data.Dataset.from_tensors(1.0).repeat(),
        steps=steps,
        saving_listeners=[listener] if listener is not None else None,
    )


def check_that_a_checkpoint_is_whole(folder: Path) -> None:
    newest = tf.train.latest_checkpoint(str(folder))
    reader = tf.train.load_checkpoint(newest)
    step = int(reader.get_tensor("global_step"))
    assert newest.endswith(f"model.ckpt-{step}")
    assert reader.get_tensor("weights").tolist() == [-step] * NUM_WEIGHTS
    train(folder, steps=1)  # goes on from there
    assert tf.train.latest_checkpoint(str(folder)).endswith(f"model.ckpt-{step + 1}")


@pytest.fixture
def limited_files() -> Iterator[Any]:
    """A listener that limits this process to files of 300 kB before the save of step 6."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Limit(v1.train.CheckpointSaverListener):  # type: ignore[misc,name-defined]
        def before_save(self, session: Any, global_step_value: int) -> None:
            if global_step_value == 6:
                resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limits[1]))

    yield Limit()
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("in_background", [True, False])
def test_a_checkpoint_above_the_limit_of_a_file_is_an_error(
    limited_files: Any, tmp_path: Path, in_background: bool
) -> None:
    with pytest.raises(CheckpointSpaceError) as caught:
        train(tmp_path, listener=limited_files, in_background=in_background)
    line = f"File too large: the checkpoint of step 6 needs {SIZE} bytes in {tmp_path}, where "
    assert str(caught.value).startswith(line)
    assert "Raise the limit (ulimit -f), or use another model_dir." in str(caught.value)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    check_that_a_checkpoint_is_whole(tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that has room for some checkpoints."""
    if os.geteuid() != 0:
        pytest.skip("a file system of its own needs root")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tfdist-test", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        pytest.skip(f"this container may not mount a file system: {done.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def checkpoints_in(folder: Path) -> dict[str, bytes]:
    """The file `checkpoint`, and what else TensorFlow calls by a checkpoint's name."""
    paths = (path for path in folder.rglob("*") if "ckpt" in path.name or path.name == "checkpoint")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.is_file()}


@pytest.mark.parametrize("in_background", [True, False])
def test_a_full_disk_ends_training_in_one_line_and_leaves_the_last_checkpoint_alone(
    small_disk: Path, in_background: bool
) -> None:
    before: dict[str, bytes] = {}

    class Watch(v1.train.CheckpointSaverListener):  # type: ignore[misc,name-defined]
        def before_save(self, session: Any, global_step_value: int) -> None:
            before.clear()
            before.update(checkpoints_in(small_disk))

    with pytest.raises(CheckpointSpaceError) as caught:
        train(small_disk, listener=Watch(), in_background=in_background)
    free = int(str(caught.value).split(" where ")[1].split(" are free")[0].replace(",", ""))
    assert str(caught.value) == (
        f"No space left on device: the checkpoint of step 12 needs {SIZE} bytes in {small_disk}, "
        f"where {free:,} are free. Make room there, or use another model_dir. Older checkpoints "
        "are as they were."
    )
    assert 0 < free < 4 * NUM_WEIGHTS
    assert isinstance(caught.value, OneLineError) and caught.value.exit_code == NO_SPACE
    assert checkpoints_in(small_disk) == before
    assert not (small_disk / ".saving").exists()
    for step in (0, 3):  # make room, as the user would
        (small_disk / f"model.ckpt-{step}.data-00000-of-00001").unlink()
    check_that_a_checkpoint_is_whole(small_disk)


def test_a_disk_that_is_full_from_the_start_is_named_in_one_line(small_disk: Path) -> None:
    with contextlib.suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    with pytest.raises(CheckpointSpaceError, match=f"No space left on device: .* in {small_disk}"):
        train(small_disk)
    (small_disk / "filler").unlink()
    train(small_disk, steps=2)
    check_that_a_checkpoint_is_whole(small_disk)


def test_other_errors_of_the_same_classes_stay_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(tf.errors.ResourceExhaustedError), full_disk_named(str(tmp_path)):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
    with pytest.raises(FileNotFoundError), full_disk_named(str(tmp_path)):
        (tmp_path / "none").read_text()
    line = "Disk quota exceeded: the model needs 7 bytes"
    with (
        pytest.raises(CheckpointSpaceError, match=line),
        full_disk_named(str(tmp_path), "the model", 7),
    ):
        raise OSError(errno.EDQUOT, "")
