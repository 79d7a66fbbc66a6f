"""The example `mnist/sweep.py`: its hook, with a stand-in for a trial of Optuna."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe

FOLDER = Path(__file__).parents[2] / "examples" / "mnist"


class Trial:
    """A trial that is pruned at the second report."""

    def __init__(self) -> None:
        self.reported: list[tuple[float, int]] = []

    def report(self, value: float, step: int) -> None:
        self.reported.append((value, step))

    def should_prune(self) -> bool:
        return len(self.reported) == 2


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example as a module."""
    optuna = ModuleType("optuna")
    optuna.Trial = Trial  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "optuna", optuna)
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.delitem(sys.modules, "sweep", raising=False)
    yield __import__("sweep")
    sys.modules.pop("sweep")


def test_a_pruned_trial_ends_its_training_at_once(sweep: Any, tmp_path: Path) -> None:
    def model_fn(features: tf.Tensor, mode: str) -> tfe.EstimatorSpec:
        step = v1.assign_add(v1.train.get_global_step(), 1)
        return tfe.EstimatorSpec(mode, loss=tf.cast(step, tf.float32) * features, train_op=step)

    trial = Trial()
    hook = sweep.PruningHook(trial, every_n_steps=3)
    estimator = tfe.Estimator(model_fn, tmp_path)
    estimator.train(lambda: tf.data.Dataset.from_tensors(1.0).repeat(), hooks=[hook], max_steps=20)
    assert trial.reported == [(3.0, 3), (6.0, 6)]
    assert hook.is_pruned
    assert estimator.get_variable_value("global_step") == 6
