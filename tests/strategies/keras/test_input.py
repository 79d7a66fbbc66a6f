"""A `fit` that was interrupted in an epoch goes on with the next batch: its weights are the same.

In this process an interruption is an error that a callback raises, in front of a backup.
"""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import interrupted_fit
import pytest
from interrupted_fit import INPUTS, shuffled, undisturbed

from tfdist.strategies.keras.input import InputTooShortError

Fit = partial[Any]


@pytest.fixture(params=["keras", "tf_keras"])
def fit(request: pytest.FixtureRequest) -> Fit:
    """Trains with a backup in a folder, and returns the weights; or an error ends it."""
    return partial(interrupted_fit.fit, request.param)


@pytest.mark.parametrize(
    ("fit", "name"),
    [
        ("keras", "in_an_endless_dataset"),
        ("keras", "of_unknown_length"),
        ("keras", "arrays"),
        ("tf_keras", "in_an_endless_dataset"),
        ("tf_keras", "shuffled"),
        ("tf_keras", "arrays"),
    ],
    indirect=["fit"],
)
def test_two_interruptions_change_no_bit(fit: Fit, name: str, tmp_path: Path) -> None:
    folder = tmp_path / "interrupted"
    fit(folder, INPUTS[name], after=13)  # In epoch 1, with a backup after 4 of its steps.
    fit(folder, INPUTS[name], after=5)  # In epoch 2, with a backup after 7 of epoch 1.
    assert fit(folder, INPUTS[name]) == undisturbed(*fit.args, name)
    assert not folder.exists() or not list(folder.rglob("input.json"))


@pytest.mark.parametrize("fit", ["tf_keras"], indirect=True)
def test_two_replicas_go_on_together_with_the_statistics_of_both(fit: Fit, tmp_path: Path) -> None:
    """Each backup makes the statistics equal, so both trainings have the same ones."""
    options = {"num_replicas": 2, "has_norm": True}
    fit(tmp_path / "interrupted", INPUTS["shuffled"], after=13, **options)
    resumed = fit(tmp_path / "interrupted", INPUTS["shuffled"], **options)
    assert resumed == fit(tmp_path / "undisturbed", INPUTS["shuffled"], **options)


def test_backups_of_whole_epochs_go_on_with_the_next_ones_order(fit: Fit, tmp_path: Path) -> None:
    fit(tmp_path / "interrupted", INPUTS["shuffled"], save_freq="epoch", after=20)
    resumed = fit(tmp_path / "interrupted", INPUTS["shuffled"], save_freq="epoch")
    assert resumed == undisturbed(*fit.args)


def one_step_less(positions: list[dict[str, int]]) -> list[dict[str, int]]:
    (newest,) = positions
    return [{**newest, "steps": newest["steps"] - 1}]


def one_of_an_unfinished_backup(positions: list[dict[str, int]]) -> list[dict[str, int]]:
    return [{"epoch": 1, "steps": 7, "iterations": 15, "num_workers": 1}, positions[0]]


@pytest.mark.parametrize("fit", ["keras"], indirect=True)
@pytest.mark.parametrize(
    ("change", "is_equal"), [(one_step_less, False), (one_of_an_unfinished_backup, True)]
)
def test_the_position_counts_that_was_written_with_the_backup(
    fit: Fit, tmp_path: Path, change: Any, is_equal: bool
) -> None:
    """Of a backup without checksums, whose position may be changed."""
    folder = tmp_path / "interrupted"
    fit(folder, INPUTS["shuffled"], after=13)
    shutil.rmtree(folder / "before")
    (folder / "checksums.json").unlink()
    file = folder / "input.json"
    positions = json.loads(file.read_text())
    assert [(one["epoch"], one["steps"], one["iterations"]) for one in positions] == [(1, 4, 12)]
    file.write_text(json.dumps(change(positions)))
    assert (fit(folder, INPUTS["shuffled"]) == undisturbed(*fit.args)) == is_equal


@pytest.mark.parametrize("fit", ["keras"], indirect=True)
def test_a_fit_says_what_it_reads_again_and_that_a_backup_is_too_long_for_a_stop(
    fit: Fit,
    tmp_path: Path,
    logged: list[str],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TFDIST_GRACE_S", "0")
        fit(tmp_path, INPUTS["shuffled"], after=13)
    assert [line[:16] for line in logged if "a stop by a signal" in line] == ["The backup took "]
    assert "again" not in capfd.readouterr().err
    fit(tmp_path, INPUTS["shuffled"])
    said = "Going on in epoch 2 after 4 of its steps: 4 batch(es) were read again in 0."
    assert said in capfd.readouterr().err


def test_an_input_that_is_too_short_is_refused(fit: Fit, tmp_path: Path) -> None:
    fit(tmp_path, INPUTS["shuffled"], after=13)
    with pytest.raises(InputTooShortError, match="has ended after 3 batches"):
        fit(tmp_path, lambda: {"x": shuffled().take(3)})
