"""Files that are either whole or absent: written to a folder of their own, then moved."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from tfdist.process.identity import is_abandoned, owned_name

_UNFINISHED = ".saving"


def remove_unfinished(folder: str) -> None:
    """Removes the files of a process that ended while it saved."""
    shutil.rmtree(os.path.join(folder, _UNFINISHED), ignore_errors=True)


@contextmanager
def unfinished_in(folder: str) -> Iterator[str]:
    """Makes an empty folder in a folder, and removes it after the `with` block, also on errors."""
    remove_unfinished(folder)
    path = os.path.join(folder, _UNFINISHED)
    os.makedirs(path)
    try:
        yield path
    finally:
        remove_unfinished(folder)


@contextmanager
def whole_file(path: str) -> Iterator[str]:
    """Gives a name to write a file under, and puts it in its place after the `with` block.

    The name is one that no other process uses. After an error nothing is left, and what killed
    processes have left in the folder is removed.
    """
    folder, name = os.path.split(path)
    remove_drafts(folder)
    ending = "".join(Path(name).suffixes[-2:])
    draft = os.path.join(folder, f"{_UNFINISHED}-{owned_name()}{ending}")
    try:
        yield draft
        os.replace(draft, path)
    finally:
        with suppress(FileNotFoundError):
            os.remove(draft)


def remove_drafts(folder: str) -> None:
    """Removes drafts of `whole_file` in a folder that ended processes have left."""
    for path in Path(folder).glob(f"{_UNFINISHED}-*"):
        with suppress(OSError):  # It is gone, or another user's.
            if is_abandoned(path):
                path.unlink()


def move_all(source: str, folder: str) -> None:
    """Moves files to a folder once all of them are on the disk; an index is moved last."""
    names = sorted(os.listdir(source), key=lambda name: name.endswith(".index"))
    with ThreadPoolExecutor(len(names)) as threads:  # The disk takes them together.
        list(threads.map(_sync, [os.path.join(source, name) for name in names]))
    for name in names:
        os.replace(os.path.join(source, name), os.path.join(folder, name))
    _sync(folder)


def _sync(path: str) -> None:
    """Returns once a file's content, or a folder's list of files, is on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno != errno.EINVAL:  # Some file systems do not support it for folders.
            raise
    finally:
        os.close(number)
