"""`tfdist horovod install`: the facts that it reads, and its steps with an emulated pip."""

import dataclasses
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tfdist.launch.cli import main
from tfdist.launch.horovod.build import (
    Build,
    CannotBuildError,
    cache_folder,
    keep_wheel,
    parse_mpi_version,
)
from tfdist.launch.horovod.command import CANNOT_BUILD
from tfdist.launch.horovod.compilation import build_folder
from tfdist.launch.horovod.recipe import find_compiler, find_error, find_percentage

BUILD = Build(
    horovod="0.28.1",
    tensorflow="2.21.0",
    python="cp311",
    mpi="openmpi-4.1.8",
    machine="x86_64",
)


def test_a_wheel_is_kept_apart_from_those_for_other_versions() -> None:
    for fact in dataclasses.fields(BUILD):
        assert dataclasses.replace(BUILD, **{fact.name: "other"}).folder != BUILD.folder


def test_the_cache_folder_is_the_users_own_choice_first() -> None:
    chosen = {"TFDIST_CACHE_DIR": "/a/b", "XDG_CACHE_HOME": "/c"}
    assert cache_folder(chosen) == Path("/a/b")
    assert cache_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/tfdist")
    assert cache_folder({}) == Path.home() / ".cache" / "tfdist"


def test_the_mpi_version_is_read_from_mpirun_and_another_mpi_is_refused() -> None:
    assert parse_mpi_version("mpirun (Open MPI) 4.1.8\n\nReport") == "openmpi-4.1.8"
    with pytest.raises(CannotBuildError, match="needs Open MPI; mpirun says 'HYDRA build details"):
        parse_mpi_version("HYDRA build details:\n    Version: 4.2\n")


def test_the_compiler_named_by_the_user_is_looked_up(tmp_path: Path) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("")
    compiler.chmod(0o755)
    path = {"PATH": str(tmp_path)}
    assert find_compiler(path) == str(compiler)
    assert find_compiler({**path, "CXX": "g++ -O1"}) == str(compiler)
    assert find_compiler({**path, "CXX": "icpx"}) is None


COMPILER = """
  [3/57] Building CXX object mpi_ops.cc.o
  mpi_ops.cc:10:10: fatal error: tensorflow/core.h: No such file or directory
  ninja: build stopped: subcommand failed.
  subprocess.CalledProcessError: Command '['cmake']' returned non-zero exit status 1.
  error: subprocess-exited-with-error
  ERROR: Failed building wheel for horovod
ERROR: Failed to build one or more wheels
"""
DOWNLOAD = """
WARNING: Retrying (Retry(total=0)) after connection broken
ERROR: Could not find a version that satisfies the requirement horovod==0.28.1
ERROR: No matching distribution found for horovod==0.28.1
"""
CMAKE = """
  CMake Error at CMakeLists.txt:138 (find_package):

    Could NOT find MPI

  Call Stack (most recent call first):
"""


@pytest.mark.parametrize(
    ("log", "error"),
    [
        (COMPILER, "mpi_ops.cc:10:10: fatal error: tensorflow/core.h: No such file or directory"),
        (DOWNLOAD, "ERROR: No matching distribution found for horovod==0.28.1"),
        (CMAKE, "CMake Error at CMakeLists.txt:138 (find_package): Could NOT find MPI"),
        ("one\nKilled\n\n", "Killed"),
        ("", "the log is empty"),
    ],
)
def test_the_error_that_tells_most_is_found_in_a_log(log: str, error: str) -> None:
    assert find_error(log) == error


def test_progress_is_read_from_the_last_step_in_the_log() -> None:
    log = "  [1/57] Building a\n  [12/57] Building b\n  array[3/4]\n"
    assert find_percentage(log) == 21
    assert find_percentage("Collecting horovod") is None


def test_a_wheel_is_kept_whole_beside_one_kept_at_the_same_time(tmp_path: Path) -> None:
    wheel = tmp_path / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    wheel.write_text("wheel")
    folder = tmp_path / "cache" / BUILD.folder
    assert keep_wheel(wheel, folder) == ""
    assert keep_wheel(wheel, folder) == ""
    assert [path.name for path in folder.iterdir()] == [wheel.name]
    assert (folder / wheel.name).read_text() == "wheel"


def test_a_cache_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    wheel = tmp_path / "horovod.whl"
    wheel.write_text("wheel")
    assert "Not a directory" in keep_wheel(wheel, wheel / "not a folder")


Install = Callable[..., "subprocess.CompletedProcess[str]"]
Calls = Callable[[], list[str]]
CACHED = f"cache/{BUILD.folder}"


@pytest.mark.processes
def test_a_killed_build_resumes_where_it_stopped_and_every_python_then_finds_open_mpi(
    install: Install, calls: Calls, environment: Path, tmp_path: Path
) -> None:
    assert install(CUT="1").returncode == -signal.SIGKILL
    assert calls() == ["download", "wheel", "compiled 1"]
    done = install()
    assert done.stdout.startswith("Continuing to build Horovod 0.28.1 for TensorFlow 2.21.0")
    assert (done.returncode, done.stderr) == (0, "")
    assert calls() == ["wheel", "compiled 2", "install"]
    assert {path.name for path in (tmp_path / CACHED).iterdir()} == {
        "lock",
        "horovod-0.28.1-none-any.whl",
    }
    seen = "import os, sys; print(os.environ['OPAL_PREFIX'], 'tfdist_horovod_keras' in sys.modules)"
    python = environment / "bin" / "python"
    found = subprocess.run([python, "-c", seen], env={}, capture_output=True, text=True)
    assert found.stdout == f"{environment} True\n"


@pytest.mark.processes
def test_a_build_for_another_compiler_environment_starts_from_the_beginning(
    install: Install, calls: Calls, tmp_path: Path
) -> None:
    install(CUT="1")
    recipe = tmp_path / CACHED / "build" / "recipe.json"
    recipe.write_text(recipe.read_text().replace("Ninja", "Unix Makefiles"))
    calls()
    assert install().stdout.startswith("Building Horovod")
    assert calls() == ["download", "wheel", "compiled 1", "compiled 2", "install"]


@pytest.mark.processes
def test_an_installed_horovod_is_checked_and_replaced_only_if_it_does_not_work(
    install: Install, calls: Calls, environment: Path
) -> None:
    assert install().returncode == 0
    calls()
    again = install()
    assert again.stdout.endswith("is installed and works.\n")
    assert calls() == []
    (library,) = environment.glob("lib/python3.*/site-packages/horovod/tensorflow.py")
    library.write_text("import libmpi_of_another_version")
    repaired = install()
    assert "from the cache" in repaired.stdout
    assert (repaired.returncode, calls()) == (0, ["install"])


@pytest.mark.processes
def test_a_wheel_of_the_cache_that_does_not_work_is_built_again(
    install: Install, calls: Calls, tmp_path: Path
) -> None:
    wheel = tmp_path / CACHED / "horovod-0.28.1-none-any.whl"
    wheel.parent.mkdir(parents=True)
    wheel.write_text("mpi_built = gloo_built = lambda: False")
    done = install()
    assert "The wheel in the cache is not used." in done.stdout
    assert done.returncode == 0
    assert calls()[:3] == ["install", "uninstall", "download"]
    assert "True" in wheel.read_text()


@pytest.mark.processes
def test_a_second_process_waits_and_takes_the_wheel_of_the_first(
    start: Callable[..., "subprocess.Popen[str]"], calls: Calls, tmp_path: Path
) -> None:
    with build_folder(tmp_path / CACHED):
        second = start()
        assert second.stdout is not None
        assert second.stdout.readline().startswith("Waiting for another process")
        wheel = tmp_path / CACHED / "horovod-0.28.1-none-any.whl"
        wheel.write_text("mpi_built = gloo_built = lambda: True")
    output, errors = second.communicate(timeout=60)
    assert "from the cache" in output
    assert (second.returncode, errors) == (0, "")
    assert calls() == ["install"]


@pytest.mark.processes
def test_a_built_horovod_that_does_not_work_is_removed_and_not_kept(
    install: Install, calls: Calls, environment: Path, tmp_path: Path
) -> None:
    done = install(WORKS="False")
    assert done.returncode == CANNOT_BUILD
    assert "was built but does not work: 'MPI or gloo is missing from it'" in done.stderr
    assert calls()[-1] == "uninstall"
    assert not (environment / "horovod-build.txt").exists()
    assert not list((tmp_path / CACHED).glob("*.whl"))


@pytest.mark.processes
def test_a_file_of_the_environment_that_cannot_be_written_is_named(
    install: Install, environment: Path
) -> None:
    note = environment / "horovod-build.txt"
    note.mkdir()
    done = install()
    assert done.returncode == CANNOT_BUILD
    assert done.stderr == f"tfdist horovod: [Errno 21] Is a directory: '{note}'\n"


@pytest.mark.processes
def test_a_dry_run_shows_commands_and_variables_and_changes_nothing(
    install: Install, calls: Calls, tmp_path: Path
) -> None:
    done = install("--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert "HOROVOD_WITH_TENSORFLOW=1" in done.stdout
    assert "-m pip download" in done.stdout
    assert "horovod==0.28.1" in done.stdout
    assert not (tmp_path / "cache").exists()
    assert calls() == []


@pytest.mark.processes
def test_a_cache_with_a_space_in_its_path_is_used_for_wheels_alone(
    install: Install, tmp_path: Path
) -> None:
    done = install(TFDIST_CACHE_DIR=str(tmp_path / "a cache"))
    assert "An interrupted build can't be continued later" in done.stdout
    assert done.returncode == 0
    assert [path.name for path in (tmp_path / "a cache" / BUILD.folder).iterdir()] == [
        "horovod-0.28.1-none-any.whl"
    ]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("file", "missing", "fix"),
    [
        ("bin/g++", "no C++ compiler (c++, g++ or clang++) on PATH", "apt install g++)."),
        ("bin/mpirun", "no mpirun in", 'Run: pip install "tfdist[horovod]"'),
        ("bin/ninja", "ninja missing from", 'Run: pip install "tfdist[horovod]"'),
        (
            "lib/python3.*/site-packages/tensorflow-*",
            "TensorFlow, which is not installed",
            "Run: pip install tensorflow",
        ),
    ],
)
def test_a_missing_requirement_is_named_in_one_line_before_anything_starts(
    file: str,
    missing: str,
    fix: str,
    environment: Path,
    install: Install,
    calls: Calls,
) -> None:
    (path,) = environment.glob(file)
    path.rename(environment / "gone")
    for options in ([], ["--dry-run"]):
        done = install(*options)
        assert done.returncode == CANNOT_BUILD
        (line,) = done.stderr.splitlines()
        assert missing in line
        assert line.endswith(fix)
    assert calls() == []


@pytest.mark.parametrize("words", [[], ["instal"], ["build", "--dry-run"]])
def test_a_word_other_than_install_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["horovod", *words]) == 2
    assert "allowed is install. Write: tfdist horovod install" in capsys.readouterr().err
