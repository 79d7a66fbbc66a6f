"""Short runs that may end in an error, and results that the tests of a module share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf


@pytest.fixture(scope="module")
def made_before() -> dict[Any, Any]:
    """Results that the tests of a module have made for each other so far."""
    return {}


@pytest.fixture
def saved() -> Callable[[Path], dict[str, np.ndarray]]:
    """Returns the values of the last checkpoint in the folder "model" of a folder."""

    def saved(folder: Path) -> dict[str, np.ndarray]:
        reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(folder / "model")))
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}

    return saved


@pytest.fixture(scope="session")
def train_briefly() -> Callable[..., dict[str, Any]]:
    """A function that trains a tiny model in a worker, and returns how that ended."""
    import brief_training

    return brief_training.train_briefly
