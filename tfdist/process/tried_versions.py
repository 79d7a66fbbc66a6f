"""The newest TensorFlow and Keras that this version of tfdist was tried with. No TensorFlow.

A newer one may work. Where it does not, a line at the import names the versions that do.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata

NEWEST = {"TensorFlow": (2, 21), "Keras": (3, 15)}
_OF_TENSORFLOW = ("tensorflow", "keras", "tf_keras")
_PACKAGES = {"TensorFlow": ("tensorflow", "tf-keras"), "Keras": ("keras",)}


def major_minor(version: str | None) -> tuple[int, int]:
    """Returns (2, 21) for "2.21.0"; (0, 0) for a text that begins with no such number."""
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2])) if found else (0, 0)


def is_newer(name: str, version: str | None) -> bool:
    """Returns whether a version of "TensorFlow" or "Keras" is newer than any that was tried."""
    return major_minor(version) > NEWEST[name]


def tried(name: str) -> str:
    """Returns the newest version that was tried, like "2.21"."""
    return ".".join(map(str, NEWEST[name]))


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


def explained(error: ImportError, versions: Mapping[str, str]) -> ImportError:
    """Returns the error to raise where tfdist cannot be imported.

    For a name that a newer TensorFlow or Keras does not have, that is one line with the fix.
    """
    package = (error.name or "").partition(".")[0]
    newer = [name for name, version in versions.items() if is_newer(name, version)]
    if package not in _OF_TENSORFLOW or not newer:
        return error
    found = " and ".join(f"{name} {versions[name]}" for name in newer)
    wanted = " ".join(f'"{requirement}"' for name in newer for requirement in requirements(name))
    return ImportError(
        f"tfdist does not work with {found}: {error.msg.partition(' (')[0]}. Run: pip install "
        f"{wanted}",
        name=error.name,
    )
