"""Whole programs: the same losses and metrics here and in TensorFlow 2.15, from equal starts."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

EXAMPLES = Path(__file__).parents[2] / "examples" / "estimator"
PROGRAMS = {
    "iris_wide_deep": ["--num-steps", "20"],
    "digits_cnn": ["--num-steps", "10"],
    "cars_keras": ["--num-steps", "20"],
    "reviews_warm_start": ["--num-steps", "20"],
    "ring_gan": ["--num-steps", "40"],
    "wine_train_and_evaluate": ["--num-steps", "100", "--steps-between", "16", "--patience", "1"],
}


def copy_start(old: Path, new: Path) -> None:
    """Lets a program begin with another one's first weights, which are random."""
    for index in old.rglob("model.ckpt-0.index"):
        if index.parent.name == "second":  # The first model's weights are its start.
            continue
        folder = new / index.parent.relative_to(old)
        folder.mkdir(parents=True)
        for file in index.parent.glob("model.ckpt-0.*"):
            shutil.copy2(file, folder)
        (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-0"\n')


def weights_of(folder: Path) -> dict[str, Any]:
    """Reads the newest checkpoints of a folder and those below it."""
    values = {}
    for state in folder.rglob("checkpoint"):
        reader = tf.train.load_checkpoint(str(state.parent))
        for name in reader.get_variable_to_shape_map():
            values[f"{state.parent.relative_to(folder)}: {name}"] = reader.get_tensor(name)
    return values


@pytest.fixture(scope="module")
def ran_before() -> dict[str, tuple[Path, Path, Any, Any]]:
    """The results of `ran` in this module."""
    return {}


@pytest.fixture
def ran(
    here: Callable[..., Any],
    there: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
    ran_before: dict[str, Any],
) -> Callable[[str], tuple[Path, Path, Any, Any]]:
    """Runs a program in both worlds; returns its folders and results, this world's first."""

    def ran(program: str) -> tuple[Path, Path, Any, Any]:
        if program not in ran_before:
            folder = tmp_path_factory.mktemp(program)
            new, old = folder / "new", folder / "old"
            path, options = EXAMPLES / f"{program}.py", PROGRAMS[program]
            expected = there(path, "--model-dir", old, *options).result
            copy_start(old, new)
            result = here(path, "--model-dir", new, *options).result
            # There a hook reads the step beside its increment, so that on a busy machine early
            # stopping may come a step sooner or later. Equal steps are compared.
            for _ in range(5):
                if result.get("global_step") == expected.get("global_step"):
                    break
                shutil.rmtree(old)
                expected = there(path, "--model-dir", old, *options).result
            ran_before[program] = new, old, result, expected
        return ran_before[program]

    return ran


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_ends_with_the_same_losses_metrics_and_weights(
    program: str, ran: Callable[..., Any], assert_close: Callable[[Any, Any], None]
) -> None:
    new, old, result, expected = ran(program)
    assert_close(result, expected)
    assert list(result) == list(expected)
    weights, expected_weights = weights_of(new), weights_of(old)
    assert weights.keys() == expected_weights.keys()
    for name, value in expected_weights.items():
        is_number = not isinstance(value, bytes)  # A saved Keras model describes itself.
        # Here this stays False; there a worker that resumes from True stops at once.
        if is_number and not name.endswith("signal_early_stopping/STOP"):
            np.testing.assert_allclose(weights[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


def test_early_stopping_and_the_best_exporter_had_their_say(ran: Callable[..., Any]) -> None:
    new, old, result, _ = ran("wine_train_and_evaluate")
    assert result["global_step"] < 100  # Which it was to train; both stopped at the same one.
    for folder in (new, old):
        (export,) = (folder / "export" / "best").iterdir()
        assert (export / "saved_model.pb").exists()


@pytest.mark.parametrize("exported_by", ["here", "there"])
def test_an_export_is_served_by_the_other_tensorflow(
    here: Callable[..., Any],
    there: Callable[..., Any],
    ran: Callable[..., Any],
    exported_by: str,
    assert_close: Callable[[Any, Any], None],
) -> None:
    new, old, _, _ = ran("iris_wide_deep")
    (folder,) = ((new if exported_by == "here" else old) / "export").iterdir()
    served, expected = here("serve.py", folder).result, there("serve.py", folder).result
    assert_close(served, expected)
    assert served.keys() == {"serving_default", "classification", "predict"}
    assert served["classification"]["method"] == "tensorflow/serving/classify"
    assert served["predict"]["inputs"] == ["examples"]
    assert np.shape(served["predict"]["outputs"]["probabilities"]) == (2, 3)
