"""Builds Horovod against the TensorFlow of this environment, installs it and keeps the wheel.

    .venv/bin/python scripts/build_horovod.py

Progress goes to standard error. Exit code 0: Horovod is installed and works. Exit code 3: it cannot
be had here; nothing is installed then, and standard output has one line, the reason and the fix.
"""

import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

HOROVOD_VERSION = "0.28.1"
CANNOT_BUILD = 3  # exit code
GRACE_S = 5.0  # from SIGTERM to SIGKILL

# Horovod includes a header that TensorFlow has moved since.
MOVED_HEADER = "tensorflow/compiler/xla/client/xla_builder.h"
MOVED_HEADER_TEXT = '#include "xla/hlo/builder/xla_builder.h"\n'
# Include folders of TensorFlow's own dependencies that its compile flags do not name.
TENSORFLOW_INCLUDES = ("external/highwayhash", "external/farmhash_archive/src")

# The library, in lib/python3.x/site-packages/horovod/tensorflow, finds libmpi relative to itself:
# a wheel built in one virtual environment works in another.
TOOLCHAIN_TEXT = """\
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../../../..")
"""
# Horovod passes these two options of GNU make to whatever builds. Ninja, which is there without a
# system package since it comes from PyPI, knows neither.
CMAKE_TEXT = """\
#!/bin/sh
for argument do
    shift
    case $argument in -j8|VERBOSE=1) ;; *) set -- "$@" "$argument" ;; esac
done
exec "${0%/*}/environment/bin/cmake" "$@"
"""


class CannotBuildError(Exception):
    """Horovod cannot be built or does not work here; the message is one line for the user."""


@dataclass(frozen=True, kw_only=True)
class Build:
    """Everything that a Horovod wheel depends on: it works with these and with no others."""

    horovod: str
    tensorflow: str
    python: str
    mpi: str
    machine: str

    @property
    def folder(self) -> str:
        """The name of its folder in the cache."""
        return (
            f"horovod-{self.horovod}-tensorflow-{self.tensorflow}"
            f"-{self.python}-{self.mpi}-{self.machine}"
        )


def say(text: str) -> None:
    """Prints a line of progress."""
    print(text, file=sys.stderr, flush=True)


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Returns the folder in which built wheels are kept."""
    if chosen := environ.get("TFDIST_CACHE_DIR"):
        return Path(chosen).expanduser()
    return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tfdist"


def parse_mpi_version(text: str) -> str:
    """Returns for example "openmpi-4.1.8" from what `mpirun --version` prints."""
    found = re.search(r"Open MPI\) (\S+)", text)
    if not found:
        raise CannotBuildError(
            f"Horovod needs Open MPI; mpirun says {text.strip()[:60]!r}. Run: pip install openmpi"
        )
    return f"openmpi-{found[1]}"


def find_compiler(environ: Mapping[str, str]) -> str | None:
    """Returns the C++ compiler that CMake will find."""
    candidates = ["c++", "g++", "clang++"]
    if chosen := environ.get("CXX"):
        candidates = shlex.split(chosen)[:1]
    found = (shutil.which(name, path=environ.get("PATH", "")) for name in candidates)
    return next(filter(None, found), None)


def find_error(log: str) -> str:
    """Returns the last line of a build log that says what went wrong."""
    # CMake puts the message under the line that says where it is from.
    log = re.sub(r"(CMake Error.*:)\s*\n\s*", r"\1 ", log)
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b.*:|CMake Error", line, re.IGNORECASE)]
    # What pip, CMake and Horovod's setup.py say about any failure at all.
    empty = r"Failed (to build|building)|subprocess-exited|CalledProcessError|metadata-generation"
    telling = [line for line in errors if not re.search(empty, line)]
    return next(reversed(telling or errors or lines), "the log is empty")


def find_percentage(log: str) -> int | None:
    """Returns how much is compiled, from the last of Ninja's "[12/57]" in a build log."""
    found = re.findall(r"^\s*\[(\d+)/(\d+)\]", log, re.MULTILINE)
    return 100 * int(found[-1][0]) // int(found[-1][1]) if found else None


def mpi_environment(environ: Mapping[str, str], prefix: Path) -> dict[str, str]:
    """Returns the environment in which the tools of the virtual environment at `prefix` work."""
    changed = {**environ, "PATH": os.pathsep.join([f"{prefix}/bin", environ.get("PATH", "")])}
    if (prefix / "bin" / "mpirun").exists():
        # The PyPI package was compiled for another folder.
        changed["OPAL_PREFIX"] = str(prefix)
    return changed


def find_build() -> Build:
    """Looks at this environment."""
    try:
        tensorflow = metadata.version("tensorflow")
    except metadata.PackageNotFoundError:
        raise CannotBuildError(
            f"Horovod {HOROVOD_VERSION} is built against TensorFlow, which is not installed in "
            f"{sys.prefix}. Run: pip install tensorflow"
        ) from None
    environ = mpi_environment(os.environ, Path(sys.prefix))
    mpirun = shutil.which("mpirun", path=environ["PATH"])
    if mpirun is None:
        raise CannotBuildError(
            f"Horovod {HOROVOD_VERSION} can't be built: no mpirun in {sys.prefix}/bin or on PATH. "
            "Run: pip install openmpi"
        )
    version = subprocess.run([mpirun, "--version"], env=environ, capture_output=True, text=True)
    return Build(
        horovod=HOROVOD_VERSION,
        tensorflow=tensorflow,
        python=f"cp{sys.version_info.major}{sys.version_info.minor}",
        mpi=parse_mpi_version(version.stdout),
        machine=platform.machine(),
    )


def build_environment(environ: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """Writes what the build needs into `scratch`; returns its environment variables."""
    # Through a link: the paths in compiler flags must not have spaces, and the user's may.
    prefix = scratch / "environment"
    prefix.symlink_to(sys.prefix)
    header = scratch / "include" / MOVED_HEADER
    header.parent.mkdir(parents=True)
    header.write_text(MOVED_HEADER_TEXT)
    toolchain = scratch / "toolchain.cmake"
    toolchain.write_text(TOOLCHAIN_TEXT)
    if (prefix / "bin" / "opal_wrapper").exists():
        # PyPI's mpicxx follows links, then calls this, which goes by its name and OPAL_PREFIX.
        for language, name in (("CXX", "mpicxx"), ("C", "mpicc")):
            (scratch / name).symlink_to(prefix / "bin" / "opal_wrapper")
            with toolchain.open("a") as file:
                file.write(f'set(MPI_{language}_COMPILER "{scratch / name}" CACHE FILEPATH "")\n')
    cmake = scratch / "cmake"
    cmake.write_text(CMAKE_TEXT)
    cmake.chmod(0o755)

    spec = importlib.util.find_spec("tensorflow")
    assert spec and spec.submodule_search_locations
    tensorflow = Path(spec.submodule_search_locations[0], "include")
    includes = [str(scratch / "include"), *(str(tensorflow / path) for path in TENSORFLOW_INCLUDES)]
    return {
        **mpi_environment(environ, prefix),
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_CMAKE": str(cmake),
        "CMAKE_GENERATOR": "Ninja",
        "TMPDIR": str(scratch),  # pip, when stopped, leaves its own temporary folders behind
        "CMAKE_TOOLCHAIN_FILE": str(toolchain),
        "CMAKE_BUILD_PARALLEL_LEVEL": str(len(os.sched_getaffinity(0))),
        "CPLUS_INCLUDE_PATH": os.pathsep.join(
            [*includes, *filter(None, [environ.get("CPLUS_INCLUDE_PATH")])]
        ),
    }


def run_with_progress(command: Sequence[str], environ: Mapping[str, str], log: Path) -> int:
    """Runs a long command with its output in `log`, says how far it is; returns its exit code."""
    on_terminal = sys.stderr.isatty()
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while True:
            try:
                return process.wait(timeout=1.0 if on_terminal else 15.0)
            except subprocess.TimeoutExpired:
                percentage = find_percentage(log.read_text(errors="replace"))
                done = "preparing" if percentage is None else f"{percentage} % compiled"
                line = f"  Horovod: {done}, {time.monotonic() - started:.0f} s"
                print(line, end="  \r" if on_terminal else "\n", file=sys.stderr, flush=True)
    finally:
        if on_terminal:
            say("")
        if process.poll() is None:  # Ctrl-C or SIGTERM: compilers must not go on alone
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(timeout=GRACE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def build_wheel(build: Build, scratch: Path) -> Path:
    """Builds the wheel in `scratch`."""
    if find_compiler(os.environ) is None:
        raise CannotBuildError(
            f"Horovod {build.horovod} can't be built: no C++ compiler "
            f"({os.environ.get('CXX') or 'c++, g++ or clang++'}) on PATH. "
            "Install one (Debian, Ubuntu: apt install g++)."
        )
    log = Path(sys.prefix, "horovod-build.log")
    say(
        f"Building Horovod {build.horovod} for TensorFlow {build.tensorflow}, {build.python} and "
        f"{build.mpi}, about 3 minutes on two cores; log: {log}"
    )
    environ = build_environment(os.environ, scratch)
    python = scratch / "environment" / "bin" / Path(sys.executable).name
    wheels = scratch / "wheels"
    command = [str(python), "-m", "pip", "wheel", "--verbose", "--no-deps", "--no-build-isolation"]
    # pip's cache, or a folder of wheels, could have one that was built for another TensorFlow.
    command += ["--no-cache-dir", "--no-binary=horovod", "--wheel-dir", str(wheels)]
    if run_with_progress([*command, f"horovod=={build.horovod}"], environ, log) != 0:
        error = find_error(log.read_text(errors="replace"))
        raise CannotBuildError(
            f"Horovod {build.horovod} can't be built: {error[:300]!r}. Fix that; log: {log}"
        )
    (wheel,) = wheels.glob("*.whl")
    return wheel


def pip(*arguments: str) -> None:
    """Runs pip in this environment."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, "--quiet"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)


def install(wheel: Path) -> None:
    """Installs a wheel and imports it in another process; takes it away if it does not work."""
    pip("install", "--no-deps", "--no-index", "--force-reinstall", str(wheel))
    check = (
        "import json, horovod.tensorflow as hvd;"
        "print(json.dumps([bool(hvd.mpi_built()), bool(hvd.gloo_built())]))"
    )
    environ = {**mpi_environment(os.environ, Path(sys.prefix)), "TF_CPP_MIN_LOG_LEVEL": "3"}
    result = subprocess.run(
        [sys.executable, "-c", check], env=environ, capture_output=True, text=True
    )
    if result.returncode == 0 and json.loads(result.stdout.splitlines()[-1]) == [True, True]:
        return
    pip("uninstall", "--yes", "horovod")
    last = (result.stderr.strip() or "MPI or gloo is missing from it").splitlines()[-1]
    raise CannotBuildError(
        f"Horovod was built but does not work: {last[:300]!r}. Fix that; "
        f"log: {Path(sys.prefix, 'horovod-build.log')}"
    )


def keep(wheel: Path, folder: Path) -> None:
    """Puts a wheel into the cache, atomically: other processes may do the same."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as nearby:
            copy = shutil.copy2(wheel, nearby)
            os.replace(copy, folder / wheel.name)
    except OSError as error:
        say(f"The wheel is installed but not kept for the next time: {error}")


def provide_horovod() -> None:
    """Installs Horovod from the cache, or builds it first."""
    build = find_build()
    # Says for what the installed Horovod was built, which its own metadata does not.
    mark = Path(sys.prefix, "horovod-build.txt")
    if mark.exists() and mark.read_text() == build.folder and importlib.util.find_spec("horovod"):
        return
    mark.unlink(missing_ok=True)
    folder = cache_folder(os.environ) / build.folder
    for wheel in folder.glob("*.whl"):
        say(f"Installing Horovod {build.horovod} from the cache: {wheel}")
        try:
            install(wheel)
        except CannotBuildError as error:
            say(f"The wheel in the cache is not used. {error}")
        else:
            mark.write_text(build.folder)
            return
    with tempfile.TemporaryDirectory(prefix="tfdist-horovod-") as scratch:
        wheel = build_wheel(build, Path(scratch))
        install(wheel)
        mark.write_text(build.folder)
        keep(wheel, folder)


def main() -> int:
    """Provides Horovod; returns the exit code."""
    # An exception, so that everything started is stopped and temporary folders are removed.
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    try:
        provide_horovod()
    except CannotBuildError as error:
        print(error)
        return CANNOT_BUILD
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
