"""Models that all workers save to one file: a worker that reads it finds it whole."""

import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tf_keras

from tfdist.strategies import LocalStrategy
from tfdist.strategies.saving.whole_files import whole_file

LIBRARIES = {"keras": keras, "tf_keras": tf_keras}


@pytest.mark.parametrize("method", ["save", "save_weights"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_file_is_whole_while_it_is_saved_again(tmp_path: Path, library: str, method: str) -> None:
    path = tmp_path / ("model.keras" if method == "save" else "model.weights.h5")
    model, layer = _model(LIBRARIES[library])
    getattr(model, method)(path)
    first = path.read_bytes()
    layer.while_saving = lambda: found.append(path.read_bytes())
    model.set_weights([np.full([2, 1], 7.0)])
    found: list[bytes] = []
    getattr(model, method)(path)
    assert set(found) == {first}
    assert path.read_bytes() != first
    other, _ = _model(LIBRARIES[library])
    other.load_weights(path)
    np.testing.assert_array_equal(other.get_weights()[0], np.full([2, 1], 7.0))
    assert os.listdir(tmp_path) == [path.name]


def test_a_save_that_fails_leaves_the_file_before_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    model, layer = _model(keras)
    model.save(path)
    first = path.read_bytes()

    def fail() -> None:
        raise OSError("no space left")

    layer.while_saving = fail
    with pytest.raises(OSError, match="no space left"):
        model.save(path)
    assert path.read_bytes() == first
    assert os.listdir(tmp_path) == [path.name]


def test_the_next_save_removes_the_draft_of_a_process_that_has_ended(tmp_path: Path) -> None:
    """The draft of a process that runs stays, as does a file of another name."""
    path, other = tmp_path / "model.weights.h5", tmp_path / ".saving-of-others"
    other.touch()
    with whole_file(str(path)) as running:
        Path(running).touch()
        place, pid, start_s, rest = running.rsplit("-", 3)
        ended = Path("-".join([place, pid, str(int(start_s) - 100), rest]))
        ended.touch()  # This number was another process's.
        with whole_file(str(path)) as draft:
            Path(draft).write_text("whole")
        assert set(tmp_path.iterdir()) == {path, other, Path(running)}
    assert set(tmp_path.iterdir()) == {path, other}


def test_a_name_that_keras_refuses_is_named_as_it_was_given(tmp_path: Path) -> None:
    model, _ = _model(keras)
    with pytest.raises(ValueError, match=r"filepath=model\.h4"):
        model.save_weights("model.h4")
    with pytest.raises(FileNotFoundError, match=r"none/model\.keras"):
        model.save(tmp_path / "none" / "model.keras")


def _model(library: Any) -> tuple[Any, Any]:
    """Returns a model in a strategy's scope, and its layer, which calls `while_saving`."""

    class Dense(library.layers.Dense):  # type: ignore[misc, name-defined]
        while_saving = staticmethod(lambda: None)

        def save_own_variables(self, store: Any) -> None:
            self.while_saving()
            super().save_own_variables(store)

    with LocalStrategy().scope():
        layer = Dense(1, use_bias=False)
        return library.Sequential([library.Input([2]), layer]), layer
