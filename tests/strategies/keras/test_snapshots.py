"""Snapshots of a `fit` in this process: taken, used after an interruption, and removed.

An interruption is an error that a callback raises.
"""

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import interrupted_fit
import pytest
from interrupted_fit import INPUTS, STEPS, shuffled, undisturbed

from tfdist.process.snapshot_folders import folder_of_host, name_for
from tfdist.strategies.saving.background_writes import BackgroundWrites

Fit = partial[Any]


@pytest.fixture(autouse=True)
def memory(snapshot_memory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TFDIST_SNAPSHOT_STEPS", "3")
    return snapshot_memory


@pytest.fixture
def here(tmp_path: Path) -> Callable[[], list[str]]:
    """Returns the names of the snapshots that this host has."""

    def names() -> list[str]:
        folder = folder_of_host(os.environ["TFDIST_RUN"]) / name_for(f"{tmp_path}/backup")
        return sorted(path.stem for path in folder.glob("*.index"))

    return names


@pytest.fixture(params=["keras", "tf_keras"])
def fit(request: pytest.FixtureRequest, tmp_path: Path) -> Fit:
    """Trains with a backup after each epoch, and returns the weights; or an error ends it."""
    options = {"folder": tmp_path / "backup", "save_freq": "epoch"}
    return partial(interrupted_fit.fit, request.param, **options)


only_keras = pytest.mark.parametrize("fit", ["keras"], indirect=True)


@pytest.mark.parametrize(
    ("fit", "name"), [("keras", "shuffled"), ("tf_keras", "of_unknown_length")], indirect=["fit"]
)
def test_a_fit_goes_on_from_its_newest_snapshot_which_is_removed_at_the_end(
    fit: Fit,
    name: str,
    here: Callable[[], list[str]],
    memory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    fit(make_input=INPUTS[name], after=14)  # In epoch 1, whose start has a backup.
    (newest,) = here()  # The end of an input may count as a step of the optimizer.
    assert newest == "model.ckpt-12" or name == "of_unknown_length"
    monkeypatch.setenv("TFDIST_RESTART_STEP", str(int(newest[11:]) + 2))
    fit(make_input=INPUTS[name], after=5)
    said = capfd.readouterr().err
    assert f"Going on from the snapshot of step {newest[11:]} (2 steps again)." in said
    assert "Going on in epoch 2 after 4 of its steps: " in said
    (newer,) = here()
    assert newer > newest
    assert fit(make_input=INPUTS[name]) == undisturbed(*fit.args, name)
    assert not list(memory.iterdir())


@pytest.mark.parametrize(
    ("fit", "name", "save_freq"),
    [
        ("keras", "shuffled", "epoch"),
        ("keras", "of_unknown_length", 1000),
        ("tf_keras", "of_unknown_length", 1000),
    ],
    indirect=["fit"],
)
def test_a_snapshot_after_an_epochs_last_step_keeps_what_the_epochs_end_changes(
    fit: Fit,
    name: str,
    save_freq: Any,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TFDIST_SNAPSHOT_STEPS", str(STEPS))
    options = {"make_input": INPUTS[name], "save_freq": save_freq, "decay": 0.5}
    fit(after=STEPS + 1, **options)
    resumed = fit(**options)
    assert "Going on from the snapshot of step " in capfd.readouterr().err
    assert resumed == undisturbed(*fit.args, name, decay=0.5)


@only_keras
def test_a_snapshot_has_the_values_of_its_step_however_late_it_is_written(
    fit: Fit, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    late: list[Callable[[], None]] = []
    with monkeypatch.context() as patch:
        patch.setattr(BackgroundWrites, "start", lambda self, what, write: late.append(write))
        patch.setattr(BackgroundWrites, "wait", lambda self: late.pop()() if late else None)
        fit(make_input=INPUTS["shuffled"], after=14)  # That of step 12 is written at the end.
    resumed = fit(make_input=INPUTS["shuffled"])
    assert "Going on from the snapshot of step 12" in capfd.readouterr().err
    assert resumed == undisturbed(*fit.args, "shuffled")


@only_keras
def test_two_replicas_go_on_together_with_the_statistics_of_both(fit: Fit, tmp_path: Path) -> None:
    """Each snapshot makes the statistics equal, so both trainings have the same ones."""
    options = {"make_input": INPUTS["shuffled"], "num_replicas": 2, "has_norm": True}
    fit(after=14, **options)
    assert fit(**options) == fit(**{**options, "folder": tmp_path / "undisturbed"})


@only_keras
def test_a_backup_that_is_newer_wins(fit: Fit, capfd: pytest.CaptureFixture[str]) -> None:
    fit(make_input=INPUTS["shuffled"], after=14, save_freq=7)
    fit(make_input=INPUTS["shuffled"], after=1)
    said = capfd.readouterr().err
    assert "Going on in epoch 2 after 6 of its steps" in said and "snapshot" not in said


def _cut(folder: Path) -> None:
    path = next(folder.glob("*.data-*"))
    path.write_bytes(path.read_bytes()[:-1])


def _of_another_fit(folder: Path) -> None:
    folder.rename(folder.parent / name_for("/another/backup"))


@only_keras
@pytest.mark.parametrize(("harm", "words"), [(_cut, "bytes"), (_of_another_fit, "")])
def test_a_snapshot_that_is_not_whole_or_not_this_fits_is_not_used(
    harm: Callable[[Path], None],
    words: str,
    fit: Fit,
    tmp_path: Path,
    logged: list[str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    fit(make_input=INPUTS["shuffled"], after=14)
    harm(folder_of_host(os.environ["TFDIST_RUN"]) / name_for(f"{tmp_path}/backup"))
    fit(make_input=INPUTS["shuffled"], after=1)
    assert words in "\n".join(logged)
    assert any("is not used" in line for line in logged) == bool(words)
    assert "Going on from the snapshot" not in capfd.readouterr().err


@only_keras
def test_a_snapshot_of_another_model_is_not_used(
    fit: Fit, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fit(make_input=INPUTS["shuffled"], after=7)
    fit(make_input=INPUTS["shuffled"], after=1, units=4)
    said = capfd.readouterr().err
    assert "is not used: the model has other variables" in said and "Going on" not in said


@only_keras
def test_without_room_a_line_says_so_and_the_fit_goes_on(
    fit: Fit,
    here: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    usage = shutil.disk_usage("/")._replace(free=63)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    fit(make_input=INPUTS["shuffled"], after=14)
    said = [line for line in capfd.readouterr().err.splitlines() if "No snapshot is kept" in line]
    assert len(said) == 1 and "of step 3: " in said[0] and "bytes more are needed" in said[0]
    assert here() == []


@only_keras
def test_a_fit_without_a_backup_keeps_none_and_says_so(
    fit: Fit, memory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fit(make_input=lambda: {"x": shuffled()}, folder=None, after=4)
    said = capfd.readouterr().err
    assert "No snapshots are kept in memory: fit has no BackupAndRestore." in said
    assert not list(memory.iterdir())


@only_keras
def test_a_program_that_no_launcher_starts_again_keeps_none(
    fit: Fit, monkeypatch: pytest.MonkeyPatch, memory: Path
) -> None:
    monkeypatch.delenv("TFDIST_RUN")
    fit(make_input=INPUTS["shuffled"], after=4)
    assert not list(memory.iterdir())
