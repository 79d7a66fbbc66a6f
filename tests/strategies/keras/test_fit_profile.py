"""The profile of `fit` that the launcher requests."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Trains 6 steps with a profile of some of them, and returns the folder."""

    def train(steps: str, epochs: int = 1, steps_per_execution: int = 1) -> Path:
        import keras

        from tfdist.strategies import strategy_for_run
        from tfdist.strategies.eager.step import NOW

        monkeypatch.setenv("TFDIST_PROFILE", str(tmp_path / "profile"))
        monkeypatch.setenv("TFDIST_PROFILE_STEPS", steps)
        monkeypatch.setattr(NOW, "has_profiled", False)
        with strategy_for_run().scope():
            model = keras.Sequential([keras.Input([2]), keras.layers.Dense(3, name="only")])
            at_once = {"steps_per_execution": steps_per_execution}
            model.compile("sgd", "mse", jit_compile=False, **at_once)
        for _ in range(epochs):  # A later call of fit records nothing.
            model.fit(np.ones([24, 2]), np.ones([24, 3]), batch_size=4, verbose=0)
        return tmp_path / "profile"

    return train


def test_the_steps_are_written_as_a_trace(train: Any, capfd: pytest.CaptureFixture[str]) -> None:
    folder = train("3:4", epochs=2)
    [path] = folder.iterdir()
    assert path.name == "trace-worker-0.json"
    events = json.loads(path.read_text())["traceEvents"]
    ops = [event for event in events if event["ph"] == "X"]
    gradients = [
        op for op in ops if "gradient_tape" in op["name"] and op["name"].endswith("/MatMul")
    ]
    assert len(gradients) == 2, ops
    assert min(op["ts"] for op in ops) == 0
    said = capfd.readouterr().err
    assert said.count("Profile of steps 3 to 4: ") == 1


def test_steps_that_one_execution_makes_are_written_together(
    train: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    assert len(list(train("4:5", steps_per_execution=2).iterdir())) == 1
    assert "Profile of steps 3 to 6: " in capfd.readouterr().err


def test_a_profiler_of_the_program_is_named_and_the_training_goes_on(
    train: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with tf.profiler.experimental.Profile(str(tmp_path / "own")):
        assert not train("2:3").exists()
    assert "No profile is written: the program's own profiler runs in step 2. Leave it out" in (
        capfd.readouterr().err
    )


def test_a_training_that_ends_early_writes_what_there_is(
    train: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = train("5:40")
    assert len(list(folder.iterdir())) == 1
    assert "Profile of steps 5 to 6: " in capfd.readouterr().err


def test_a_training_that_ends_before_the_first_step_says_so(
    train: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    assert not train("10:12").exists()
    assert (
        "No profile is written: training ended after 6 step(s), and step 10 was to be the first"
    ) in capfd.readouterr().err
