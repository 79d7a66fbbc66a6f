"""A training begun in TensorFlow 2.15 goes on here, and the other way round."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Worlds = tuple[Callable[..., Any], Callable[..., Any]]


@pytest.fixture(params=["begun there", "begun here"])
def worlds(
    request: pytest.FixtureRequest, here: Callable[..., Any], there: Callable[..., Any]
) -> Worlds:
    """The side that begins the training, and the side that goes on."""
    return (there, here) if request.param == "begun there" else (here, there)


def test_a_training_goes_on_as_if_it_had_not_been_interrupted(
    worlds: Worlds, tmp_path: Path, files_of: Callable[[Path], list[str]]
) -> None:
    first, second = worlds
    whole = second("resume.py", "--model-dir", tmp_path / "whole", "--steps", 9).result
    half = first("resume.py", "--model-dir", tmp_path / "parts", "--steps", 5).result
    parts = second("resume.py", "--model-dir", tmp_path / "parts", "--steps", 4, "--skip", 5).result

    # Slots, averages, moments and parts of variables have the same names.
    assert parts.keys() == half.keys() == whole.keys()
    slots = {"words/Adam_1", "hidden/kernel/Momentum", "kernel/Ftrl_1", "Adam/norm/gamma/v"}
    assert slots | {"norm/moving_variance", "words/ExponentialMovingAverage"} <= whole.keys()
    assert parts["global_step"] == whole["global_step"] == 9
    for name, value in whole.items():
        np.testing.assert_allclose(parts[name], value, rtol=1e-6, atol=1e-6, err_msg=name)

    # Both keep the other's checkpoints in mind.
    kept = (0, 3, 5, 8, 9)
    state = (tmp_path / "parts" / "checkpoint").read_text().splitlines()
    paths = [f'all_model_checkpoint_paths: "model.ckpt-{step}"' for step in kept]
    assert state == ['model_checkpoint_path: "model.ckpt-9"', *paths]
    files = [file for file in files_of(tmp_path / "parts") if file.startswith("model.ckpt")]
    endings = ("data-00000-of-00001", "index", "meta")
    assert files == sorted(f"model.ckpt-{step}.{ending}" for step in kept for ending in endings)
