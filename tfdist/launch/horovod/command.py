"""The command `tfdist horovod install`: from the cache or built, installed, and checked."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist.launch.errors import UsageError
from tfdist.launch.horovod.build import (
    Build,
    CannotBuildError,
    cache_folder,
    find_build,
    keep_wheel,
    read_mark,
    write_mark,
)
from tfdist.launch.horovod.compilation import (
    build_commands,
    build_folder,
    build_log,
    build_wheel,
    say,
)
from tfdist.launch.horovod.recipe import build_variables, check_tools
from tfdist.launch.machine.mpi import find_mpirun, mpirun_environment
from tfdist.launch.options.command_line import CommandLine
from tfdist.launch.options.declaration import Group, flag
from tfdist.process import horovod_keras
from tfdist.process.open_mpi import is_in_environment, write_file
from tfdist.process.text import shown

CANNOT_BUILD = 3  # exit code
_INSTALLED = Group("options")


@dataclass(frozen=True, kw_only=True)
class HorovodOptions:
    """The options of `tfdist horovod install`."""

    dry_run: bool = flag(
        "print what would be done, with the commands and variables of a build; change nothing",
        shown_default="",
        group=_INSTALLED,
    )


HOROVOD = CommandLine(
    prog="tfdist horovod install",
    options=HorovodOptions,
    description=(
        "Installs Horovod for this environment's TensorFlow and Open MPI, and checks that it\n"
        "works: from the cache, or built from its unchanged source, which takes about 3 minutes\n"
        "on two cores. A build that is interrupted continues when the command is run again.\n"
        "Every Python of the environment then finds PyPI's Open MPI, without tfdist, too.\n"
        'Needs a C++ compiler and the packages of the extra: pip install "tfdist[horovod]"\n'
        "Exit code 0 if Horovod is installed and works, 3 if it cannot be had here."
    ),
    examples=(
        "environment variables:\n"
        "  TFDIST_CACHE_DIR  folder of built wheels (default: ~/.cache/tfdist)\n"
        "  CXX               the C++ compiler"
    ),
    takes_command=False,
)


def main(words: Sequence[str]) -> int:
    """Installs Horovod by `words`, those after `tfdist horovod`; returns the exit code."""
    if words[:1] not in (["install"], ["--help"], ["-h"]):
        found = f"got {shown(words[0])}" if words else "got nothing"
        raise UsageError(f"{found}, allowed is install. Write: tfdist horovod install")
    options = HorovodOptions(**HOROVOD.parse(words[words[0] == "install" :]))
    # An exception, so that everything started is stopped and temporary folders are removed.
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    try:
        build = find_build()
        if options.dry_run:
            _describe(build)
        else:
            provide_horovod(build)
            folder = Path(sysconfig.get_path("purelib"))
            horovod_keras.write_files(folder)
            if is_in_environment(Path(sys.prefix)):
                write_file(folder)
    except (CannotBuildError, OSError) as error:
        if isinstance(error, OSError) and error.filename is None:  # It may be of stdout.
            raise
        print(f"tfdist horovod: {error}", file=sys.stderr)
        return CANNOT_BUILD
    return 0


def provide_horovod(build: Build) -> None:
    """Installs Horovod from the cache, or builds it first; CannotBuildError if that fails."""
    if _is_installed(build) and not _problem():
        say(f"{build} is installed and works.")
        return
    write_mark(None)
    kept = cache_folder(os.environ) / build.folder
    tried: set[tuple[str, int]] = set()
    if _install_from(kept, build, tried):
        return
    check_tools(os.environ)
    with build_folder(kept) as folder:
        if _install_from(kept, build, tried):  # Another process has built it meanwhile.
            return
        wheel = build_wheel(build, folder)
        install(wheel)
        write_mark(build)
        if reason := keep_wheel(wheel, kept):
            say(f"The wheel is not kept for the next time: {reason}")
        shutil.rmtree(folder, ignore_errors=True)
    say(f"{build} is installed and works.")


def _install_from(kept: Path, build: Build, tried: set[tuple[str, int]]) -> bool:
    """Installs a wheel of the cache; returns False if there is none that works.

    `tried` has the wheels that do not work, with their times; this function adds to them.
    """
    for wheel in kept.glob("*.whl"):
        identity = (wheel.name, wheel.stat().st_mtime_ns)
        if identity in tried:
            continue
        tried.add(identity)
        say(f"Installing {build} from the cache: {wheel}")
        try:
            install(wheel)
        except CannotBuildError as error:
            say(f"The wheel in the cache is not used. {error}")
        else:
            write_mark(build)
            say(f"{build} is installed and works.")
            return True
    return False


def install(wheel: Path) -> None:
    """Installs a wheel and imports it in another process; uninstalls it if it does not work."""
    _pip("install", "--no-deps", "--no-index", "--force-reinstall", str(wheel))
    if problem := _problem():
        _pip("uninstall", "--yes", "horovod")
        raise CannotBuildError(
            f"Horovod was built but does not work: {problem[:300]!r}. Fix that; log: {build_log()}"
        )


def _is_installed(build: Build) -> bool:
    return read_mark() == build.folder and importlib.util.find_spec("horovod") is not None


def _problem() -> str:
    """Returns why the installed Horovod does not work, or ""."""
    check = (
        "import json, horovod.tensorflow as hvd;"
        "print(json.dumps([bool(hvd.mpi_built()), bool(hvd.gloo_built())]))"
    )
    mpirun = find_mpirun()
    environ = mpirun_environment(mpirun, os.environ) if mpirun else dict(os.environ)
    result = subprocess.run(
        [sys.executable, "-c", check],
        env={**environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    if result.returncode != 0:
        return (result.stderr.strip() or f"exit code {result.returncode}").splitlines()[-1]
    is_whole = json.loads(result.stdout.splitlines()[-1]) == [True, True]
    return "" if is_whole else "MPI or gloo is missing from it"


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, "--quiet"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise CannotBuildError(f"{shlex.join(command)} failed: {lines[-1][:300]}")


def _describe(build: Build) -> None:
    say(str(build))
    kept = cache_folder(os.environ) / build.folder
    wheels = list(kept.glob("*.whl"))
    if _is_installed(build):
        say("It is installed. It would be imported, and replaced only if that fails.")
    elif wheels:
        say(f"It would be installed from the cache: {wheels[0]}")
    else:
        check_tools(os.environ)
        folder = kept / "build"
        say(f"It would be built in {folder} with these variables and commands:")
        for name, value in build_variables(folder).items():
            say(f"  {name}={shlex.quote(value)}")
        for command in build_commands(build, folder):
            say(f"  {shlex.join(command)}")
        say(f"The wheel would be kept in {kept}.")
