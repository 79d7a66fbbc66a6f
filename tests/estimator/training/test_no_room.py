"""No room left for a checkpoint: training ends with an error, the last whole checkpoint stays."""

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

NUM_WEIGHTS = 100_000  # 400 kB


def train(folder: Path, *hooks: Any, steps: int = 20) -> None:
    def model_fn(features: Any, mode: str) -> tfe.EstimatorSpec:
        weights = v1.get_variable("weights", [NUM_WEIGHTS], initializer=v1.zeros_initializer())
        loss = tf.reduce_mean(weights * features)
        update = v1.train.GradientDescentOptimizer(NUM_WEIGHTS)
        train_op = update.minimize(loss, v1.train.get_global_step())
        return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)

    config = tfe.RunConfig(save_checkpoints_steps=3, save_summary_steps=None)
    tfe.Estimator(model_fn, folder, config).train(
        lambda: tf.data.Dataset.from_tensors(1.0).repeat(), steps=steps, hooks=hooks
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
    """A hook that, after four steps, limits this process to files of 300 kB."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Limit(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
        steps = 0

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.steps += 1
            if self.steps == 4:
                resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limits[1]))

    yield Limit()
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_checkpoint_above_the_limit_of_a_file_is_an_error(
    limited_files: Any, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="A checkpoint is larger than a file may be") as caught:
        train(tmp_path, limited_files)
    assert caught.value.filename == str(tmp_path)
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


def test_a_full_disk_ends_training_with_tensorflows_error(small_disk: Path) -> None:
    with pytest.raises(tf.errors.ResourceExhaustedError, match="No space left on device"):
        train(small_disk)
    for step in (0, 3):  # make room, as the user would
        (small_disk / f"model.ckpt-{step}.data-00000-of-00001").unlink()
    check_that_a_checkpoint_is_whole(small_disk)
