import dataclasses
import subprocess
import time
import venv
from pathlib import Path

import build_horovod
import pytest
from build_horovod import Build, CannotBuildError

SCRIPT = Path(build_horovod.__file__)
BUILD = Build(
    horovod="0.28.1",
    tensorflow="2.21.0",
    python="cp311",
    mpi="openmpi-4.1.8",
    machine="x86_64",
)


@pytest.mark.parametrize(
    ("fact", "other"),
    [
        ("horovod", "0.28.2"),
        ("tensorflow", "2.20.0"),
        ("python", "cp312"),
        ("mpi", "openmpi-5.0.11"),
        ("machine", "aarch64"),
    ],
)
def test_a_wheel_is_kept_apart_from_those_for_other_versions(fact: str, other: str) -> None:
    assert dataclasses.replace(BUILD, **{fact: other}).folder != BUILD.folder


def test_the_cache_folder_is_the_users_own_choice_first() -> None:
    chosen = {"TFDIST_CACHE_DIR": "/a/b", "XDG_CACHE_HOME": "/c"}
    assert build_horovod.cache_folder(chosen) == Path("/a/b")
    assert build_horovod.cache_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/tfdist")
    assert build_horovod.cache_folder({}) == Path.home() / ".cache" / "tfdist"


def test_the_mpi_version_is_read_from_mpirun() -> None:
    assert build_horovod.parse_mpi_version("mpirun (Open MPI) 4.1.8\n\nReport") == "openmpi-4.1.8"


def test_another_mpi_is_refused() -> None:
    with pytest.raises(CannotBuildError, match="needs Open MPI; mpirun says 'HYDRA build details"):
        build_horovod.parse_mpi_version("HYDRA build details:\n    Version: 4.2\n")


def test_the_compiler_the_user_names_is_the_one_looked_for(tmp_path: Path) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("")
    compiler.chmod(0o755)
    path = {"PATH": str(tmp_path)}
    assert build_horovod.find_compiler(path) == str(compiler)
    assert build_horovod.find_compiler({**path, "CXX": "g++ -O1"}) == str(compiler)
    assert build_horovod.find_compiler({**path, "CXX": "icpx"}) is None


def test_the_error_of_the_compiler_is_found_before_what_pip_says_of_any_failure() -> None:
    log = """
  [3/57] Building CXX object mpi_ops.cc.o
  mpi_ops.cc:10:10: fatal error: tensorflow/core.h: No such file or directory
  ninja: build stopped: subcommand failed.
  subprocess.CalledProcessError: Command '['cmake']' returned non-zero exit status 1.
  error: subprocess-exited-with-error
  ERROR: Failed building wheel for horovod
ERROR: Failed to build one or more wheels
"""
    expected = "mpi_ops.cc:10:10: fatal error: tensorflow/core.h: No such file or directory"
    assert build_horovod.find_error(log) == expected


def test_a_refused_download_is_the_error() -> None:
    log = """
WARNING: Retrying (Retry(total=0)) after connection broken
ERROR: Could not find a version that satisfies the requirement horovod==0.28.1
ERROR: No matching distribution found for horovod==0.28.1
"""
    expected = "ERROR: No matching distribution found for horovod==0.28.1"
    assert build_horovod.find_error(log) == expected


def test_the_message_of_cmake_is_found_with_its_place() -> None:
    log = """
  CMake Error at CMakeLists.txt:138 (find_package):

    Could NOT find MPI

  Call Stack (most recent call first):
"""
    expected = "CMake Error at CMakeLists.txt:138 (find_package): Could NOT find MPI"
    assert build_horovod.find_error(log) == expected


def test_a_log_without_any_error_gives_its_last_line() -> None:
    assert build_horovod.find_error("one\nKilled\n\n") == "Killed"
    assert build_horovod.find_error("") == "the log is empty"


def test_progress_is_read_from_the_last_step_in_the_log() -> None:
    log = "  [1/57] Building a\n  [12/57] Building b\n  array[3/4]\n"
    assert build_horovod.find_percentage(log) == 21
    assert build_horovod.find_percentage("Collecting horovod") is None


def test_a_wheel_is_kept_whole_beside_one_kept_at_the_same_time(tmp_path: Path) -> None:
    wheel = tmp_path / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    wheel.write_text("wheel")
    folder = tmp_path / "cache" / BUILD.folder
    build_horovod.keep(wheel, folder)
    build_horovod.keep(wheel, folder)
    assert [path.name for path in folder.iterdir()] == [wheel.name]
    assert (folder / wheel.name).read_text() == "wheel"


def test_a_cache_that_cannot_be_written_is_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = tmp_path / "horovod.whl"
    wheel.write_text("wheel")
    build_horovod.keep(wheel, wheel / "not a folder")
    assert "not kept for the next time" in capsys.readouterr().err


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment that looks as if TensorFlow and Open MPI were in it."""
    folder = tmp_path / "an environment"
    venv.create(folder, with_pip=False, symlinks=True)
    (site_packages,) = folder.glob("lib/python3.*/site-packages")
    tensorflow = site_packages / "tensorflow-2.21.0.dist-info"
    tensorflow.mkdir()
    (tensorflow / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.21.0\n"
    )
    mpirun = folder / "bin" / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.8'\n")
    mpirun.chmod(0o755)
    return folder


def run_script(environment: Path) -> tuple[int, str, str]:
    """Runs the script where no program is on PATH; returns exit code, output and errors."""
    bare = {"PATH": str(environment / "nothing"), "TFDIST_CACHE_DIR": str(environment / "cache")}
    python = environment / "bin" / "python"
    result = subprocess.run(
        [python, SCRIPT], env=bare, capture_output=True, text=True, timeout=60, check=False
    )
    return result.returncode, result.stdout, result.stderr


@pytest.mark.processes
def test_without_a_compiler_one_line_says_so_at_once(environment: Path) -> None:
    started = time.monotonic()
    code, out, err = run_script(environment)
    assert time.monotonic() - started < 3
    assert code == build_horovod.CANNOT_BUILD
    (line,) = out.splitlines()
    assert "no C++ compiler (c++, g++ or clang++) on PATH" in line
    assert "apt install g++" in line
    assert err == ""


@pytest.mark.processes
def test_without_open_mpi_one_line_says_so(environment: Path) -> None:
    (environment / "bin" / "mpirun").unlink()
    code, out, _ = run_script(environment)
    assert code == build_horovod.CANNOT_BUILD
    (line,) = out.splitlines()
    assert "no mpirun" in line
    assert line.endswith("Run: pip install openmpi")


@pytest.mark.processes
def test_without_tensorflow_one_line_says_so(environment: Path) -> None:
    for metadata in environment.glob("lib/python3.*/site-packages/tensorflow-*/METADATA"):
        metadata.unlink()
        metadata.parent.rmdir()
    code, out, _ = run_script(environment)
    assert code == build_horovod.CANNOT_BUILD
    (line,) = out.splitlines()
    assert "built against TensorFlow, which is not installed" in line
