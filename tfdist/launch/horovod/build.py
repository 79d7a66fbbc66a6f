"""Facts that a Horovod wheel depends on, and the cache of built wheels."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tfdist.launch.machine.mpi import find_mpirun, mpirun_environment, open_mpi_version

HOROVOD_VERSION = "0.28.1"
INSTALL_TOOLS = 'Run: pip install "tfdist[horovod]"'
_MARK = "horovod-build.txt"


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
        platform = f"{self.python}-{self.mpi}-{self.machine}"
        return f"horovod-{self.horovod}-tensorflow-{self.tensorflow}-{platform}"

    def __str__(self) -> str:
        versions = f"TensorFlow {self.tensorflow}, {self.python} and {self.mpi}"
        return f"Horovod {self.horovod} for {versions}"


def find_build() -> Build:
    """Returns the build that fits this environment; CannotBuildError if there can be none."""
    tensorflow = installed_version("tensorflow")
    if tensorflow is None:
        raise CannotBuildError(
            f"Horovod {HOROVOD_VERSION} is built against TensorFlow, which is not installed in "
            f"{sys.prefix}. Run: pip install tensorflow"
        )
    mpirun = find_mpirun()
    if mpirun is None:
        raise CannotBuildError(
            f"Horovod {HOROVOD_VERSION} can't be built: no mpirun in {sys.prefix}/bin or on PATH. "
            f"{INSTALL_TOOLS}"
        )
    environ = mpirun_environment(mpirun, os.environ)
    version = subprocess.run([mpirun, "--version"], env=environ, capture_output=True, text=True)
    return Build(
        horovod=HOROVOD_VERSION,
        tensorflow=tensorflow,
        python=f"cp{sys.version_info.major}{sys.version_info.minor}",
        mpi=parse_mpi_version(version.stdout),
        machine=platform.machine(),
    )


def installed_version(package: str) -> str | None:
    """Returns the version of an installed package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def parse_mpi_version(text: str) -> str:
    """Returns for example "openmpi-4.1.8" from the output of `mpirun --version`."""
    version = open_mpi_version(text)
    if version is None:
        raise CannotBuildError(
            f"Horovod needs Open MPI; mpirun says {text.strip()[:60]!r}. {INSTALL_TOOLS}"
        )
    return f"openmpi-{version}"


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Returns the folder in which built wheels are kept."""
    if chosen := environ.get("TFDIST_CACHE_DIR"):
        return Path(chosen).expanduser().absolute()
    return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "tfdist"


def keep_wheel(wheel: Path, folder: Path) -> str:
    """Puts a wheel into the cache in one step; returns why it cannot be written, or ""."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as nearby:
            copy = shutil.copy2(wheel, nearby)
            os.replace(copy, folder / wheel.name)
    except OSError as error:
        return str(error)
    return ""


def read_mark() -> str | None:
    """Returns `Build.folder` of the Horovod that was installed here, which its metadata lacks."""
    mark = Path(sys.prefix, _MARK)
    return mark.read_text() if mark.is_file() else None


def write_mark(build: Build | None) -> None:
    """Notes which build is installed here; None if none is."""
    mark = Path(sys.prefix, _MARK)
    if build is None:
        mark.unlink(missing_ok=True)
    else:
        mark.write_text(build.folder)
