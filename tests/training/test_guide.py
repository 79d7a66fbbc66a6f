"""The programs of docs/training.md run and learn."""

import re
from pathlib import Path
from typing import Any

import pytest

GUIDE = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
MODEL, *PROGRAMS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def test_each_program_of_the_guide_learns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # Where each Estimator makes a folder.
    names: dict[str, Any] = {}
    exec(MODEL, names)
    for program in PROGRAMS:
        exec(program, names)
    printed = re.findall(r"^(\S+): (\d+) %$", capsys.readouterr().out, re.MULTILINE)
    expected = ["LAMB", "clipped", "scaled", "mixed", "rounded", "own", "accumulated", "wrapped"]
    expected += ["weighted", "warm-up", "normalized", "recomputed"]
    assert [name for name, _ in printed] == expected
    assert all(int(accuracy) > 80 for _, accuracy in printed), printed
