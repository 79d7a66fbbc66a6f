"""Paths on file systems that only TensorFlow knows: ram:// stands for gs://, s3:// and hdfs://."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import tfdist.estimator as tfe
from tfdist.estimator.checkpoints.warm_start import warm_start_settings
from tfdist.monitoring import CsvMetricsHook

Make = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty folder in memory; a local one with its name would be made in the current folder."""
    monkeypatch.chdir(tmp_path)
    return f"ram://{tmp_path.name}"


def test_a_saved_model_to_start_from_may_be_remote(folder: str) -> None:
    variables = f"{folder}/export/variables/variables"
    with tf.io.gfile.GFile(f"{variables}.index", "w") as file:
        file.write("index")
    found = warm_start_settings(f"{folder}/export")
    assert found is not None
    assert found.ckpt_to_initialize_from == variables


def test_a_table_of_metrics_may_be_remote_and_is_continued(
    dense: Make, numbers: Make, folder: str, tmp_path: Path
) -> None:
    model_dir = tmp_path / "model"
    for steps in (2, 4):
        hook = CsvMetricsHook(f"{folder}/tables/loss.csv", every_n_steps=1)
        tfe.Estimator(dense(), model_dir).train(numbers(), hooks=[hook], max_steps=steps)
    with tf.io.gfile.GFile(f"{folder}/tables/loss.csv") as file:
        assert [row.split(",")[0] for row in file] == ["step", "1", "2", "3", "4"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
