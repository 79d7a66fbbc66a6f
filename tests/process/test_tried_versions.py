"""A TensorFlow or Keras that is newer than any that was tried, or lacks a name: one line each."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.process.tried_versions import NEWEST, explained, newer_lines, tried

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


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


def test_a_name_that_tensorflow_lacks_is_explained_with_the_versions_that_work() -> None:
    error = ImportError("cannot import name 'x' from 'tensorflow.a' (/a.py)", name="tensorflow.a")
    newest = tried("TensorFlow")
    wanted = f'"tensorflow=={newest}.*" "tf-keras=={newest}.*"'
    assert str(explained(error, {"TensorFlow": "9.0.0", "Keras": "3.10.0"})) == (
        "tfdist does not work with TensorFlow 9.0.0: cannot import name 'x' from 'tensorflow.a'. "
        f"It works with TensorFlow 2.16 to {newest}. Run: pip install {wanted}"
    )
    # A known version that is changed or damaged is installed again.
    assert str(explained(error, {"TensorFlow": f"{newest}.0"})).endswith(
        f"to {newest}. Run: pip install --force-reinstall {wanted}"
    )


def test_the_package_is_the_one_that_lacks_the_name() -> None:
    of_class = AttributeError("type object 'Adam' has no attribute 'x'", obj=keras_class())
    of_module = AttributeError("module 'keras.src.models' has no attribute 'x'")
    for error in (of_class, of_module):
        assert str(explained(error, {"Keras": "3.10.0"})).startswith(
            "tfdist does not work with Keras 3.10.0: "
        )
    others = (
        ImportError("No module named 'rich'", name="rich"),
        ModuleNotFoundError("No module named 'tf_keras'", name="tf_keras"),
        AttributeError("'NoneType' object has no attribute 'x'", obj=None),
    )
    for error in others:
        assert explained(error, {"TensorFlow": "9.0.0"}) is error


def keras_class() -> type:
    return type("Adam", (), {"__module__": "keras.src.optimizers.adam"})


def environment(*folders: Path) -> dict[str, str]:
    paths = os.pathsep.join(map(str, (*folders, ROOT)))
    return {**os.environ, "PYTHONPATH": paths, "TF_CPP_MIN_LOG_LEVEL": "3"}


@pytest.mark.processes
def test_a_program_with_a_newer_tensorflow_that_lacks_a_name_ends_with_the_versions_that_work(
    tmp_path: Path,
) -> None:
    (tmp_path / "tensorflow.py").write_text("__version__ = '9.1.0'\n")
    command = [sys.executable, "-c", "import tfdist.strategies"]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True)
    newer, error = done.stderr.splitlines()
    newest = tried("TensorFlow")
    assert newer == f"tfdist: TensorFlow 9.1.0 is newer than {newest}, the newest tried with it."
    assert error.startswith(
        "VersionError: tfdist does not work with TensorFlow 9.1.0: No module named 'tensorflow."
    )
    assert f"It works with TensorFlow 2.16 to {newest}. Run: pip install" in error
    assert done.returncode == 2


# A start-up file: takes a name from a module of TensorFlow or Keras, as a release may do.
REMOVES = """
import importlib
from importlib.machinery import PathFinder
import sys

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target)
        if name == {module!r}.partition(".")[0]:
            execute = spec.loader.exec_module

            def execute_and_remove(module):
                execute(module)
                owner = importlib.import_module({module!r})
                *owners, last = {name!r}.split(".")
                for one in owners:
                    owner = getattr(owner, one)
                delattr(owner, last)

            spec.loader.exec_module = execute_and_remove
        return spec

sys.meta_path.insert(0, Finder)
"""
FIT = """
import keras
from tfdist.strategies import LocalStrategy
with LocalStrategy().scope():
    keras.Sequential([keras.layers.Dense(1)])
"""
GONE = [
    ("tensorflow.python.ops.op_selector", "UnliftableError", "import tfdist.strategies"),
    ("tf_keras.src.mixed_precision.autocast_variable", "AutoCastVariable", "import tfdist.ipu"),
    ("keras.src.callbacks.backup_and_restore", "BackupAndRestore._load_model", FIT),
]


@pytest.mark.processes
@pytest.mark.parametrize(("module", "name", "program"), GONE)
def test_a_private_name_that_is_gone_ends_a_program_with_one_line(
    module: str, name: str, program: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(REMOVES.format(module=module, name=name))
    (tmp_path / "train.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
    )
    package = "Keras" if module.startswith("keras") else "TensorFlow"
    assert "Traceback" not in done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"VersionError: tfdist does not work with {package} ")
    assert name.rpartition(".")[2] in line
    assert f". It works with {package} " in line
    assert done.returncode == 2


@pytest.mark.processes
def test_the_command_says_which_private_name_is_gone_and_what_works(tmp_path: Path) -> None:
    module, name, program = GONE[0]
    (tmp_path / "sitecustomize.py").write_text(REMOVES.format(module=module, name=name))
    (tmp_path / "train.py").write_text(program)
    words = {"run": ["train.py"], "doctor": ["--no-self-test"]}
    ended = {
        command: subprocess.run(
            [sys.executable, "-m", "tfdist", command, *words[command]],
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
        )
        for command in words
    }
    said = "tfdist does not work with TensorFlow"
    assert (ended["run"].returncode, ended["doctor"].returncode) == (2, 1)
    assert "Traceback" not in ended["run"].stderr + ended["doctor"].stderr
    assert said in ended["run"].stderr
    [line] = [one for one in ended["doctor"].stdout.splitlines() if said in one]
    assert name in line and "It works with TensorFlow" in line
    assert "Run: pip install --force-reinstall" in line
