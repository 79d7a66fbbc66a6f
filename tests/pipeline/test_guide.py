"""The programs and drawings of docs/pipelining.md are what they say."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tf_keras

from tfdist import estimator, pipeline
from tfdist.pipeline.schedule import SCHEDULES, draw, training_ticks
from tfdist.strategies import strategy_for_run

GUIDE = (Path(__file__).parents[2] / "docs" / "pipelining.md").read_text()
PROGRAM, LOADER, ESTIMATOR, WEIGHTED = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def test_the_program_learns_and_so_does_the_loop_over_a_loader(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names: dict[str, Any] = {"DataLoader": pipeline.DataLoader}
    exec(PROGRAM, names)
    printed = re.fullmatch(r"loss (\S+), accuracy (\S+)%\n", capsys.readouterr().out)
    assert printed and float(printed[1]) < 0.3 and float(printed[2]) > 95
    exec(LOADER, names)
    assert names["logits"].shape == (4, 10)  # Of the last micro-batch.


def test_the_model_fn_trains_and_evaluates(tmp_path: Path) -> None:
    images = np.random.default_rng(0).normal(size=(128, 20)).astype("float32")
    labels = (images[:, 0] > 0).astype("int32")

    def input_fn() -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices((images, labels)).repeat()
        return dataset.batch(4, drop_remainder=True)

    def config(train_distribute: Any) -> estimator.RunConfig:
        return estimator.RunConfig(str(tmp_path), train_distribute=train_distribute)

    names = {
        **{name: getattr(estimator, name) for name in estimator.__all__},
        "RunConfig": config,
        "input_fn": input_fn,
        "strategy_for_run": strategy_for_run,
        "tf": tf,
        "tf_keras": tf_keras,
        "v1": v1,
    }
    exec(ESTIMATOR, names)
    result = names["estimator"].evaluate(input_fn, steps=32)
    assert result["global_step"] == 100
    assert result["accuracy"] > 0.9
    exec(WEIGHTED, names)
    names["estimator"].train(input_fn, steps=1)
    assert names["estimator"].get_variable_value("global_step") == 101


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_schedules_are_drawn_as_they_are(schedule: Any) -> None:
    count = 2 if schedule == "sequential" else 7
    assert f"```text\n{draw(training_ticks(schedule, 4, count), 4)}\n```" in GUIDE
