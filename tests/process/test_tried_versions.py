"""A TensorFlow or Keras that is newer than any that was tried: one line, and one if it fails."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.process.tried_versions import NEWEST, explained, newer_lines, tried

DOCS = Path(__file__).parents[2] / "docs"


def test_the_newest_versions_are_those_that_the_guides_name() -> None:
    table = re.findall(
        r"^\| (\d+\.\d+)\.\d+ \| (\d+\.\d+)\.", (DOCS / "keras.md").read_text(), re.M
    )
    assert table[0] == (tried("TensorFlow"), tried("Keras"))
    assert f"\n| {tried('TensorFlow')} | 3.11 | all tests" in (DOCS / "installing.md").read_text()


def test_a_newer_minor_is_reported_and_a_newer_patch_is_not() -> None:
    (major, minor), keras = NEWEST["TensorFlow"], tried("Keras")
    for newer in (f"{major}.{minor + 1}.0rc1", f"{major + 1}.0.0"):
        assert list(newer_lines({"TensorFlow": newer, "Keras": f"{keras}.9"})) == [
            f"tfdist: TensorFlow {newer} is newer than {major}.{minor}, the newest tried with it."
        ]
    for known in (f"{major}.{minor}.9", "2.16.1", "nightly"):
        assert list(newer_lines({"TensorFlow": known})) == []


def test_only_a_name_that_a_newer_tensorflow_lacks_is_explained() -> None:
    error = ImportError("cannot import name 'x' from 'tensorflow.python'", name="tensorflow.python")
    assert explained(error, {"TensorFlow": "2.21.0"}) is error
    other = ImportError("No module named 'rich'", name="rich")
    assert explained(other, {"TensorFlow": "9.0.0"}) is other
    assert explained(error, {"TensorFlow": "9.0.0", "Keras": "3.10.0"}).msg.startswith(
        "tfdist does not work with TensorFlow 9.0.0: cannot import name 'x' from"
    )


@pytest.mark.processes
def test_a_program_with_a_tensorflow_that_lacks_a_name_ends_with_the_versions_that_work(
    tmp_path: Path,
) -> None:
    (tmp_path / "tensorflow.py").write_text("__version__ = '9.1.0'\n")
    paths = f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"
    done = subprocess.run(
        [sys.executable, "-c", "import tfdist.strategies"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    lines = done.stderr.splitlines()
    newest = tried("TensorFlow")
    assert lines[0] == f"tfdist: TensorFlow 9.1.0 is newer than {newest}, the newest tried with it."
    assert lines[-1].startswith(
        "ImportError: tfdist does not work with TensorFlow 9.1.0: No module"
    )
    assert lines[-1].endswith(f'pip install "tensorflow=={newest}.*" "tf-keras=={newest}.*"')
