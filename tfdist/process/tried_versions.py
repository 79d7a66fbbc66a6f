"""The TensorFlows and Keras versions that this version of tfdist was tried with. No TensorFlow.

A newer one may work. Where it does not, because a private name is gone, a line names the versions
that do.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata

from tfdist.process.endings import OneLineError

OLDEST = {"TensorFlow": (2, 16), "Keras": (3, 10)}
NEWEST = {"TensorFlow": (2, 21), "Keras": (3, 15)}
_OF_TENSORFLOW = ("tensorflow", "keras", "tf_keras")
_PACKAGES = {"TensorFlow": ("tensorflow", "tf-keras"), "Keras": ("keras",)}
_OF_MODULE = re.compile(r"module '(\w+)")


class VersionError(OneLineError, ImportError):
    """A TensorFlow or Keras lacks a name that tfdist needs; the message says what works."""


def major_minor(version: str | None) -> tuple[int, int]:
    """Returns (2, 21) for "2.21.0"; (0, 0) for a text that begins with no such number."""
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2])) if found else (0, 0)


def is_newer(name: str, version: str | None) -> bool:
    """Returns whether a version of "TensorFlow" or "Keras" is newer than any that was tried."""
    return major_minor(version) > NEWEST[name]


def tried(name: str) -> str:
    """Returns the newest version that was tried, like "2.21"."""
    return _text(NEWEST[name])


def requirements(name: str) -> tuple[str, ...]:
    """Returns what pip installs for the newest version that was tried."""
    return tuple(f"{package}=={tried(name)}.*" for package in _PACKAGES[name])


def versions_with(tensorflow: str) -> dict[str, str]:
    """Returns the versions of this process; it has imported this TensorFlow."""
    versions = {"TensorFlow": tensorflow}
    with contextlib.suppress(metadata.PackageNotFoundError):  # A nightly has another name.
        versions["Keras"] = metadata.version("keras")
    return versions


def newer_lines(versions: Mapping[str, str]) -> Iterator[str]:
    """Yields a line for each of "TensorFlow" and "Keras" that is newer than any that was tried."""
    for name, version in versions.items():
        if is_newer(name, version):
            yield f"tfdist: {name} {version} is newer than {tried(name)}, the newest tried with it."


def report_newer(versions: Mapping[str, str]) -> None:
    """Writes these lines to stderr."""
    for line in newer_lines(versions):
        print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def missing_names_explained(versions: Mapping[str, str]) -> Iterator[None]:
    """Explains what a `with` block raises where TensorFlow or Keras lacks a name."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        raise explained(error, versions) from None


def explained(error: ImportError | AttributeError, versions: Mapping[str, str]) -> Exception:
    """Returns the error to raise where tfdist cannot be imported, or cannot extend Keras.

    For a name that TensorFlow or Keras does not have, that is one line with the versions that work.
    """
    package = _package_of(error)
    is_installed = getattr(error, "name", None) != package
    if package not in _OF_TENSORFLOW or not is_installed:
        return error
    newer = [name for name, version in versions.items() if is_newer(name, version)]
    names = newer or ["Keras" if package == "keras" else "TensorFlow"]
    found = " and ".join(f"{name} {versions.get(name, 'of this Python')}" for name in names)
    works = " and ".join(f"{name} {_text(OLDEST[name])} to {tried(name)}" for name in names)
    wanted = " ".join(f'"{requirement}"' for name in names for requirement in requirements(name))
    again = "" if newer else "--force-reinstall "
    return VersionError(
        f"tfdist does not work with {found}: {str(error).partition(' (')[0]}. It works with "
        f"{works}. Run: pip install {again}{wanted}"
    )


def _package_of(error: ImportError | AttributeError) -> str:
    """Returns the package that lacks a name, like "tensorflow"; "" if it is not known."""
    if isinstance(error, ImportError):
        return (error.name or "").partition(".")[0]
    owner = getattr(error, "obj", None)
    module = getattr(owner, "__module__", None) or getattr(owner, "__name__", "")
    found = _OF_MODULE.match(str(error))
    return found[1] if found else str(module).partition(".")[0]


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
