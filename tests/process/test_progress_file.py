"""The progress file, where the disk has room for it and where it has none."""

import errno
import os
from pathlib import Path

import pytest

from tfdist.process.progress_file import ProgressFile


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path / "progress")
    assert file.read() is None
    file.write(phase="training", total_steps=9)
    file.step_ends(step=3, loss=0.5, examples=96.0)
    progress = ProgressFile(tmp_path / "progress").read()
    assert progress is not None
    assert (progress.phase, progress.total_steps, progress.step) == ("training", 9, 3)


def test_a_training_goes_on_without_progress_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    file = ProgressFile(tmp_path / "progress")
    for step in range(3):
        file.step_begins()
        file.note_input(waits=True)
        file.step_ends(step=step, loss=0.5, examples=96.0)
        file.write(phase="saving")
    assert file.read() is None
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tfdist: the progress of this process is not shown")
    assert line.endswith("progress cannot be written: No space left on device")
