"""The script test_matrix.sh refuses anything but pairs; a Python that is missing stops nothing."""

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

SCRIPT = Path(__file__).parents[2] / "scripts" / "test_matrix.sh"
# Stands for Python 3.9: makes an environment whose pip installs nothing and whose tests pass once.
FAKE_PYTHON = """#!/bin/sh
case $1-$2 in
    -c-*ensurepip*) exit 0 ;;
    -c-*) printf "Python 3.9.0, TensorFlow 2.1.0: " ;;
    -m-venv) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; cp "$0" "$3/bin/pip" ;;
    -m-pytest) echo "$@"; echo "=== 5 passed in 1.00s ===" ;;
esac
"""


def matrix(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environ = {"PATH": f"{folder}:/usr/bin:/bin", "TFDIST_MATRIX_DIR": str(folder), "HOME": "/"}
    return subprocess.run(
        [SCRIPT, *arguments], env=environ, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "argument", ["2.16", "3.11", "3.11:2.16.2", "python3.11:2.16", "3.11:2.16:2.8"]
)
def test_anything_but_a_pair_is_refused(tmp_path: Path, argument: str) -> None:
    done = matrix(tmp_path, argument)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"got {argument}, allowed is PYTHON:TENSORFLOW" in done.stderr


def test_each_pair_has_a_line_with_its_result_and_nothing_is_left(tmp_path: Path) -> None:
    python = tmp_path / "python3.9"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    done = matrix(tmp_path, "3.99:2.16", "3.9:2.1:3.8", "--", "-x")
    assert done.stdout.split("\n")[1:-1] == [
        "Python 3.99 is not here",
        "Python 3.9.0, TensorFlow 2.1.0:  5 passed in 1.00s ",
    ]
    assert done.returncode == 0
    (command,) = [line for line in done.stderr.splitlines() if line.startswith("-m pytest")]
    assert "-k not horovod" in command
    assert command.endswith("tests/conformance -x")
    assert [path.name for path in tmp_path.iterdir()] == ["python3.9"]
    assert matrix(tmp_path, "3.99:2.16").returncode == 3


def make_python(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def find_python(folder: Path, version: str) -> "subprocess.CompletedProcess[str]":
    environ = {"PATH": f"{folder}:/usr/bin:/bin", "PYENV_ROOT": str(folder / "pyenv")}
    command = ["bash", "-euc", f". {SCRIPT.parent}/find_python.sh; find_python {version}"]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def test_a_shim_that_fails_is_passed_over_for_the_newest_of_pyenvs_versions(
    tmp_path: Path,
) -> None:
    make_python(tmp_path / "python3.9", "echo 'pyenv: python3.9: command not found' >&2; exit 127")
    for patch, body in (("3.9.2", "exit 0"), ("3.9.18", "exit 0"), ("3.9.20", "exit 1")):
        make_python(tmp_path / "pyenv" / "versions" / patch / "bin" / "python", body)
    done = find_python(tmp_path, "3.9")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path}/pyenv/versions/3.9.18/bin/python\n"


def test_a_python_that_is_nowhere_is_named_in_one_line(tmp_path: Path) -> None:
    make_python(tmp_path / "python3.99", "exit 127")
    done = find_python(tmp_path, "3.99")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Python 3.99 is not here: ") and done.stderr.count("\n") == 1
