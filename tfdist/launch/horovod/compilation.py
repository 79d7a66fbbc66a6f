"""The build of a Horovod wheel, in a folder of the cache where a later one continues it.

cache/BUILD/lock                 held by the process that builds
           /build/recipe.json    the variables; a build with others starts again
                 /environment -> this Python environment
                 /download, /source, /wheels
           /horovod-*.whl        the result; `build` is removed then
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tfdist.launch.horovod.build import Build, CannotBuildError
from tfdist.launch.horovod.recipe import (
    build_variables,
    find_error,
    find_percentage,
    with_variables,
    write_files,
)

_GRACE_S = 5.0  # from SIGTERM to SIGKILL
_RECIPE = "recipe.json"


def say(text: str) -> None:
    """Prints a line of progress."""
    print(text, flush=True)


def build_log() -> Path:
    """Returns the file with the output of the last build for this environment."""
    return Path(sys.prefix, "horovod-build.log")


@contextmanager
def build_folder(kept: Path) -> Iterator[Path]:
    """Yields a folder that no other process builds in.

    It is `kept`/build, in which the next build continues if this one is interrupted, or a temporary
    folder if that cannot be.
    """
    with ExitStack() as stack:
        folder = kept / "build"
        try:
            _lock(kept, stack)
        except OSError as error:
            say(f"An interrupted build can't be continued later: {error}")
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tfdist-hvd-")))
        yield folder


def _lock(kept: Path, stack: ExitStack) -> None:
    if re.search(r"[\s:]", str(kept)):
        raise OSError(f"the path of the cache has a space or a colon: {str(kept)!r}")
    kept.mkdir(parents=True, exist_ok=True)
    lock = stack.enter_context((kept / "lock").open("w"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("Waiting for another process that builds the same ...")
        fcntl.flock(lock, fcntl.LOCK_EX)


def build_commands(build: Build, folder: Path) -> list[list[str]]:
    """Returns pip's commands: one that downloads Horovod's source, and one that compiles it."""
    python = folder / "environment" / "bin" / Path(sys.executable).name
    # pip's cache, or a folder of wheels, could have a wheel that was built for another TensorFlow.
    common = ["--no-deps", "--no-build-isolation", "--no-cache-dir", "--verbose"]
    source = ["--no-binary=horovod", "--dest", str(folder / "download")]
    wheels = ["--wheel-dir", str(folder / "wheels"), str(folder / "source")]
    return [
        [str(python), "-m", "pip", "download", *common, *source, f"horovod=={build.horovod}"],
        [str(python), "-m", "pip", "wheel", *common, *wheels],
    ]


def build_wheel(build: Build, folder: Path) -> Path:
    """Builds the wheel in `folder`, from where an interrupted build has got to.

    If Horovod cannot be downloaded or compiled, it raises CannotBuildError.
    """
    variables = build_variables(folder)
    is_continued = _prepare(folder, variables)
    say(
        f"{'Continuing to build' if is_continued else 'Building'} {build}, about 3 minutes on two "
        f"cores; log: {build_log()}"
    )
    environ = with_variables(os.environ, variables)
    download, compile_ = build_commands(build, folder)
    source = folder / "source"
    if not source.exists():
        _run(download, environ, build)
        _unpack(folder, source)
    _run(compile_, environ, build)
    (wheel,) = (folder / "wheels").glob("*.whl")
    return wheel


def _prepare(folder: Path, variables: Mapping[str, str]) -> bool:
    """Makes the folder ready; returns whether it has a build with the same variables already."""
    recipe = folder / _RECIPE
    text = json.dumps(variables, indent=1)
    if recipe.is_file() and recipe.read_text() == text:
        return (folder / "source").exists()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_files(folder)
    recipe.write_text(text)  # Last: a folder without it is not complete.
    return False


def _unpack(folder: Path, source: Path) -> None:
    """Unpacks the downloaded archive; `source` exists only once it is complete."""
    (archive,) = (folder / "download").glob("*.tar.gz")
    with tempfile.TemporaryDirectory(dir=folder) as nearby, tarfile.open(archive) as file:
        if hasattr(tarfile, "data_filter"):  # From Python 3.10.12 and 3.11.4 on.
            file.extraction_filter = tarfile.data_filter
        file.extractall(nearby)
        (unpacked,) = Path(nearby).iterdir()
        unpacked.rename(source)


def _run(command: Sequence[str], environ: Mapping[str, str], build: Build) -> None:
    """Runs a long command with its output in the log, and prints its progress."""
    log, on_terminal, started = build_log(), sys.stdout.isatty(), time.monotonic()
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
        while process.returncode is None:
            try:
                process.wait(timeout=1.0 if on_terminal else 15.0)
            except subprocess.TimeoutExpired:
                percentage = find_percentage(log.read_text(errors="replace"))
                done = "preparing" if percentage is None else f"{percentage} % compiled"
                line = f"  Horovod: {done}, {time.monotonic() - started:.0f} s"
                print(line, end="  \r" if on_terminal else "\n", flush=True)
    finally:
        if on_terminal:
            say("")
        if process.poll() is None:  # Ctrl-C or SIGTERM: compilers must not go on alone
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(timeout=_GRACE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if process.returncode != 0:
        error = find_error(log.read_text(errors="replace"))
        raise CannotBuildError(
            f"Horovod {build.horovod} can't be built: {error[:300]!r}. Fix that; log: {log}"
        )
