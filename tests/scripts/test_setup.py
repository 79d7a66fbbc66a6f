import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]

# Stands for the Python of .venv: notes what it is asked for, has no compiler or no TensorFlow 2.15
# if told so, and runs nothing.
FAKE_PYTHON = """#!/bin/sh
echo "$*" >>"$CALLS"
case $1 in
    */old_tensorflow.py) [ -z "$NO_OLD" ] || { echo "No Python 3.9. Install one."; exit 3; } ;;
    -m) case $2-$3 in
        tfdist-horovod)
            [ -z "$NO_COMPILER" ] || { echo "No compiler. Install one." >&2; exit 3; } ;;
        tfdist-*) exit "$RUN_CODE" ;;
        esac ;;
    -c) [ -z "$OLD" ] || { case $2 in *exit*) exit 1 ;; *print*) echo 3.9 ;; esac; } ;;
esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what the set-up depends on, in a folder with a space in its name."""
    folder = tmp_path / "a project"
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    shutil.copy2(ROOT / "pyproject.toml", folder)
    shutil.copytree(ROOT / "tfdist/launch/horovod", folder / "tfdist/launch/horovod")
    return folder


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def project_with_venv(project: Path) -> Path:
    write_program(project / ".venv" / "bin" / "python", FAKE_PYTHON)
    return project


def set_up(project: Path, kind: str = "run", **environ: str) -> "subprocess.CompletedProcess[str]":
    unset = {name: os.environ[name] for name in os.environ if not name.startswith("TFDIST_")}
    calls: Mapping[str, str] = {"CALLS": str(project / "calls")}
    return subprocess.run(
        [project / "scripts" / "setup.sh", kind],
        env={**unset, **calls, **environ},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def calls_of(project: Path) -> list[str]:
    """The requests to .venv's Python since the last look."""
    calls = project / "calls"
    lines = calls.read_text().splitlines() if calls.exists() else []
    calls.unlink(missing_ok=True)
    return lines


def test_a_second_set_up_does_nothing(project_with_venv: Path) -> None:
    assert set_up(project_with_venv).returncode == 0
    calls = calls_of(project_with_venv)
    assert len([call for call in calls if "[bert,cnn,examples,horovod]" in call]) == 1
    again = set_up(project_with_venv)
    assert (again.returncode, again.stderr) == (0, "")
    assert calls_of(project_with_venv) == []


def test_the_set_up_for_tests_serves_a_run_and_not_the_other_way_round(
    project_with_venv: Path,
) -> None:
    set_up(project_with_venv, "run")
    calls_of(project_with_venv)
    set_up(project_with_venv, "test")
    assert any("[bert,cnn,examples,horovod,test]" in call for call in calls_of(project_with_venv))
    (project_with_venv / ".venv" / "set-up" / "run").unlink()
    set_up(project_with_venv, "run")
    assert calls_of(project_with_venv) == []


def test_a_changed_pin_is_installed(project_with_venv: Path) -> None:
    set_up(project_with_venv)
    calls_of(project_with_venv)
    with (project_with_venv / "scripts" / "constraints.txt").open("a") as constraints:
        constraints.write("another==1.0\n")
    set_up(project_with_venv)
    calls = calls_of(project_with_venv)
    assert any("[bert,cnn,examples,horovod]" in call for call in calls)
    assert any("tfdist horovod install" in call for call in calls)


@pytest.mark.parametrize(
    ("fails", "reason", "without_it", "again", "call"),
    [
        (
            "NO_COMPILER",
            "No compiler. Install one.",
            "Everything over gRPC works without it",
            "TFDIST_BUILD_HOROVOD",
            "tfdist horovod install",
        ),
        (
            "NO_OLD",
            "No Python 3.9. Install one.",
            "The tests that compare with it will skip",
            "TFDIST_OLD_TENSORFLOW",
            "old_tensorflow.py",
        ),
    ],
)
def test_what_cannot_be_had_is_left_out_with_the_reason_every_time_until_it_is_asked_for(
    project_with_venv: Path, fails: str, reason: str, without_it: str, again: str, call: str
) -> None:
    first = set_up(project_with_venv, "test", **{fails: "1"})
    assert first.returncode == 0
    assert f"{reason} {without_it}" in first.stderr
    calls_of(project_with_venv)

    second = set_up(project_with_venv, "test", **{fails: "1"})
    assert second.returncode == 0
    (line,) = second.stderr.splitlines()
    assert f"{again}=1 tries again. {reason}" in line
    assert calls_of(project_with_venv) == []

    assert set_up(project_with_venv, "test", **{again: "1"}).stderr == ""
    assert any(call in one for one in calls_of(project_with_venv))
    assert set_up(project_with_venv, "test").stderr == ""
    assert calls_of(project_with_venv) == []


def test_only_the_tests_get_tensorflow_2_15(project_with_venv: Path) -> None:
    set_up(project_with_venv, "run")
    assert not any("old_tensorflow.py" in call for call in calls_of(project_with_venv))
    set_up(project_with_venv, "test")
    assert any("old_tensorflow.py" in call for call in calls_of(project_with_venv))


@pytest.mark.parametrize(
    ("variable", "call"),
    [
        ("TFDIST_BUILD_HOROVOD", "tfdist horovod install"),
        ("TFDIST_OLD_TENSORFLOW", "old_tensorflow.py"),
    ],
)
def test_horovod_and_tensorflow_2_15_can_be_left_out(
    project_with_venv: Path, variable: str, call: str
) -> None:
    result = set_up(project_with_venv, "test", **{variable: "0"})
    assert result.returncode == 0
    assert f"since {variable}=0" in result.stderr
    assert not any(call in one for one in calls_of(project_with_venv))


@pytest.mark.parametrize("where", ["python3 on PATH", ".venv"])
def test_an_unsupported_python_is_refused_in_one_line(
    project: Path, tmp_path: Path, where: str
) -> None:
    old = project / ".venv" / "bin" / "python" if where == ".venv" else tmp_path / "bin" / "python3"
    write_program(old, FAKE_PYTHON)
    path = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
    result = set_up(project, OLD="1", PATH=path, PYTHON="")
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert "3.9, tfdist needs 3.10 to 3.13" in line


def test_a_python_that_is_not_there_is_named(project: Path) -> None:
    result = set_up(project, PYTHON="python3.99")
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert "there is no python3.99 on PATH" in line


def test_a_run_has_tfdist_run_start_two_workers_and_ends_as_it_ends(
    project_with_venv: Path,
) -> None:
    result = subprocess.run(
        [project_with_venv / "scripts" / "run.sh", "--num-steps", "5", "--strategy=grpc"],
        env={**os.environ, "CALLS": str(project_with_venv / "calls"), "RUN_CODE": "137"},
        cwd="/",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout) == (137, b"")
    *of_the_set_up, run = calls_of(project_with_venv)
    assert of_the_set_up
    script = project_with_venv / "examples" / "mnist" / "train.py"
    assert run == f"-m tfdist run --num-instances 2 -- {script} --num-steps 5 --strategy=grpc"


@pytest.mark.parametrize("arguments", [["--strategy", "horovod"], ["--strategy=none"]])
def test_a_run_over_anything_but_grpc_is_refused_before_the_set_up(
    project: Path, arguments: list[str]
) -> None:
    result = subprocess.run(
        [project / "scripts" / "run.sh", *arguments], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "--strategy can only be grpc" in line
    assert not (project / ".venv").exists()
