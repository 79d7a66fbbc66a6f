import os
import subprocess
import sys
from pathlib import Path

import old_tensorflow
import pytest
from old_tensorflow import CannotBeHadError

FAKE_PYTHON = """#!/bin/sh
[ -n "{version}" ] && echo "{version}" || exit 127
"""


def write_python(path: Path, version: str) -> str:
    """A Python of a version, or one that does not run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(FAKE_PYTHON.format(version=version))
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment whose folders are empty; this Python is too new."""
    new = write_python(tmp_path / "venv" / "python", "3 13")
    monkeypatch.setattr(sys, "executable", new)
    return {
        "PATH": os.pathsep.join([str(tmp_path / "first"), str(tmp_path / "second")]),
        "HOME": str(tmp_path / "home"),
    }


@pytest.mark.processes
def test_this_python_is_taken_if_it_fits(tmp_path: Path, environ: dict[str, str]) -> None:
    write_python(tmp_path / "first" / "python3.11", "3 11")
    write_python(Path(sys.executable), "3 10")
    assert old_tensorflow.find_python(environ) == sys.executable


@pytest.mark.processes
def test_a_shim_that_does_not_run_is_passed_over(tmp_path: Path, environ: dict[str, str]) -> None:
    write_python(tmp_path / "first" / "python3.11", "")
    write_python(tmp_path / "first" / "python3", "3 12")
    found = write_python(tmp_path / "second" / "python3.9", "3 9")
    assert old_tensorflow.find_python(environ) == found


@pytest.mark.processes
def test_a_version_of_pyenv_serves_too(tmp_path: Path, environ: dict[str, str]) -> None:
    versions = tmp_path / "home" / ".pyenv" / "versions"
    write_python(versions / "3.12.1" / "bin" / "python", "3 12")
    found = write_python(versions / "3.10.13" / "bin" / "python", "3 10")
    assert old_tensorflow.find_python(environ) == found


@pytest.mark.processes
def test_without_a_fitting_python_that_is_said(environ: dict[str, str]) -> None:
    with pytest.raises(CannotBeHadError, match=r"needs Python 3.9 to 3.11 .* Install one\.$"):
        old_tensorflow.find_python(environ)


def test_the_reason_is_the_last_error_of_a_log() -> None:
    log = "Collecting x\nERROR: No matching distribution found for x\n[notice] A new release\n"
    assert old_tensorflow.find_error(log) == "ERROR: No matching distribution found for x"
    assert old_tensorflow.find_error("") == "it said nothing"


@pytest.mark.processes
def test_a_failed_installation_is_one_line_and_exit_code_3(tmp_path: Path) -> None:
    """The script in an environment of its own, where nothing can be downloaded."""
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    result = subprocess.run(
        [environment / "bin" / "python", old_tensorflow.__file__],
        env={**environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 3
    (line,) = result.stdout.splitlines()
    assert "No matching distribution found for tensorflow" in line
    assert not (environment / old_tensorflow.FOLDER / old_tensorflow.MARK).exists()


def test_what_is_there_is_not_installed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[Path] = []
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("numpy==1.26.4\n")

    def install(with_python: str, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        installed.append(folder)

    monkeypatch.setattr(old_tensorflow, "install", install)
    monkeypatch.setattr(old_tensorflow, "find_python", lambda environ: "python3.11")
    monkeypatch.setattr(old_tensorflow, "CONSTRAINTS", constraints)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    old_tensorflow.provide_old_tensorflow()
    old_tensorflow.provide_old_tensorflow()
    assert installed == [tmp_path / "tensorflow-2.15"]
    constraints.write_text("numpy==1.26.3\n")
    old_tensorflow.provide_old_tensorflow()
    assert len(installed) == 2
