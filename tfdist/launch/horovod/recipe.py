"""The recipe of a Horovod for a current TensorFlow: tools, files and environment variables.

Horovod's last release is older than the TensorFlow that it is built against here. Its source stays
as it is; what has changed around it is set by the build's environment:

    a header that TensorFlow has moved        a file with the old name that includes the new one
    headers of TensorFlow's own dependencies  CPLUS_INCLUDE_PATH
    options of GNU make, given to Ninja       a script in place of CMake that leaves them out
    Open MPI from PyPI, in another folder     OPAL_PREFIX, and compilers named in a toolchain file
    where the library looks for libmpi        a path relative to itself, in the toolchain file
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from tfdist.launch.horovod.build import INSTALL_TOOLS, CannotBuildError, installed_version

# Horovod includes a header that TensorFlow has moved since.
_MOVED_HEADER = "tensorflow/compiler/xla/client/xla_builder.h"
_MOVED_HEADER_TEXT = '#include "xla/hlo/builder/xla_builder.h"\n'
# Include folders of TensorFlow's own dependencies that its compile flags do not name.
_TENSORFLOW_INCLUDES = ("external/highwayhash", "external/farmhash_archive/src")

# The library, in lib/python3.x/site-packages/horovod/tensorflow, finds libmpi relative to itself:
# a wheel built in one virtual environment works in another.
_TOOLCHAIN_TEXT = """\
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../../../..")
"""
# Horovod passes these two options of GNU make to any build tool. Ninja, which comes from PyPI and
# so needs no system package, does not have them.
_CMAKE_TEXT = """\
#!/bin/sh
for argument do
    shift
    case $argument in -j8|VERBOSE=1) ;; *) set -- "$@" "$argument" ;; esac
done
exec "${0%/*}/environment/bin/cmake" "$@"
"""
_PACKAGES = ("pip", "setuptools", "wheel", "packaging", "psutil", "pyyaml", "cloudpickle")
_PROGRAMS = ("cmake", "ninja")


def check_tools(environ: Mapping[str, str]) -> None:
    """Raises CannotBuildError if a build needs more than TensorFlow, Open MPI and what is here."""
    if find_compiler(environ) is None:
        raise CannotBuildError(
            "Horovod can't be built: no C++ compiler "
            f"({environ.get('CXX') or 'c++, g++ or clang++'}) on PATH. "
            "Install one (Debian, Ubuntu: apt install g++)."
        )
    missing = [name for name in _PROGRAMS if not Path(sys.prefix, "bin", name).exists()]
    missing += [name for name in _PACKAGES if installed_version(name) is None]
    if missing:
        fix = "Run: python -m ensurepip" if missing == ["pip"] else INSTALL_TOOLS
        raise CannotBuildError(
            f"Horovod can't be built: {', '.join(missing)} missing from {sys.prefix}. {fix}"
        )


def find_compiler(environ: Mapping[str, str]) -> str | None:
    """Returns the C++ compiler that CMake will find."""
    candidates = ["c++", "g++", "clang++"]
    if chosen := environ.get("CXX"):
        candidates = shlex.split(chosen)[:1]
    found = (shutil.which(name, path=environ.get("PATH", "")) for name in candidates)
    return next(filter(None, found), None)


def build_variables(folder: Path) -> dict[str, str]:
    """Returns the build's own environment variables, for the folder of `write_files`."""
    prefix = folder / "environment"
    includes = [folder / "include", *(tensorflow_headers() / path for path in _TENSORFLOW_INCLUDES)]
    variables = {
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_CMAKE": str(folder / "cmake"),
        "CMAKE_GENERATOR": "Ninja",
        "CMAKE_TOOLCHAIN_FILE": str(folder / "toolchain.cmake"),
        "CPLUS_INCLUDE_PATH": os.pathsep.join(map(str, includes)),
        "PATH": str(prefix / "bin"),
        "TMPDIR": str(folder),  # pip, when stopped, leaves its own temporary folders behind
    }
    if Path(sys.prefix, "bin", "mpirun").exists():
        variables["OPAL_PREFIX"] = str(prefix)  # The PyPI package was compiled for another folder.
    return variables


def with_variables(environ: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Returns `environ` with the build's variables; those that are lists of paths come first."""
    paths = {
        name: os.pathsep.join([variables[name], environ[name]])
        for name in ("PATH", "CPLUS_INCLUDE_PATH")
        if environ.get(name)
    }
    cores = str(len(os.sched_getaffinity(0)))
    return {"CMAKE_BUILD_PARALLEL_LEVEL": cores, **environ, **variables, **paths}


def write_files(folder: Path) -> None:
    """Writes the files that the build's variables name into a folder without spaces in its path."""
    # Through a link: paths in compiler flags must not have spaces, and those of the user may.
    prefix = folder / "environment"
    prefix.symlink_to(sys.prefix)
    header = folder / "include" / _MOVED_HEADER
    header.parent.mkdir(parents=True)
    header.write_text(_MOVED_HEADER_TEXT)
    toolchain = _TOOLCHAIN_TEXT
    if (prefix / "bin" / "opal_wrapper").exists():
        # PyPI's mpicxx follows links, then calls this, which goes by its name and OPAL_PREFIX.
        for language, name in (("CXX", "mpicxx"), ("C", "mpicc")):
            (folder / name).symlink_to(prefix / "bin" / "opal_wrapper")
            toolchain += f'set(MPI_{language}_COMPILER "{folder / name}" CACHE FILEPATH "")\n'
    (folder / "toolchain.cmake").write_text(toolchain)
    cmake = folder / "cmake"
    cmake.write_text(_CMAKE_TEXT)
    cmake.chmod(0o755)


def tensorflow_headers() -> Path:
    """Returns the folder of TensorFlow's headers, without importing TensorFlow."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or not spec.submodule_search_locations:
        raise CannotBuildError(
            "TensorFlow's files are missing, though it is installed. "
            "Run: pip install --force-reinstall tensorflow"
        )
    return Path(spec.submodule_search_locations[0], "include")


def find_error(log: str) -> str:
    """Returns the last line of a build log that says what went wrong."""
    # CMake puts the message under the line that says where it is from.
    log = re.sub(r"(CMake Error.*:)\s*\n\s*", r"\1 ", log)
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b.*:|CMake Error", line, re.IGNORECASE)]
    # The lines that pip, CMake and Horovod's setup.py print after any failure.
    empty = r"Failed (to build|building)|subprocess-exited|CalledProcessError|metadata-generation"
    telling = [line for line in errors if not re.search(empty, line)]
    return next(reversed(telling or errors or lines), "the log is empty")


def find_percentage(log: str) -> int | None:
    """Returns how much is compiled, from the last of Ninja's "[12/57]" in a build log."""
    found = re.findall(r"^\s*\[(\d+)/(\d+)\]", log, re.MULTILINE)
    return 100 * int(found[-1][0]) // int(found[-1][1]) if found else None
