"""Folders that a run writes to."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist.launch.doctor.finding import Finding, absent, broken, good

_GIB = 1 << 30
_LEAST_BYTES = 100 << 20
_LITTLE_BYTES = _GIB


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder that something is to be written to.

    Attributes:
      purpose: What for: "checkpoints (--model-dir)".
      path: Where it is, as the user wrote it.
      is_remote: Whether it is on a file system that only TensorFlow reads: "gs://...".
      problem: Why it cannot be written to; "" if it can.
      free_bytes: Free space there.
      is_new: Whether it is not there yet, so that its parent was looked at.
    """

    purpose: str
    path: str
    is_remote: bool = False
    problem: str = ""
    free_bytes: int = 0
    is_new: bool = False


def look_at_folders(*, log_dir: str | None, model_dir: str | None) -> list[Folder]:
    """Writes a file into each, and takes it away again."""
    folders = [
        look_at_folder("the current folder", _current_folder(), must_exist=True),
        look_at_folder("temporary files (TMPDIR)", _temporary_folder(), must_exist=True),
    ]
    if log_dir is not None:
        folders.append(look_at_folder("logs (--log-dir)", log_dir))
    if model_dir is not None:
        folders.append(look_at_folder("checkpoints (--model-dir)", model_dir))
    return folders


def look_at_folder(purpose: str, path: str, *, must_exist: bool = False) -> Folder:
    """Looks at one folder, or at the nearest one above that exists."""
    if "://" in path:
        return Folder(purpose=purpose, path=path, is_remote=True)
    nearest = Path(path)
    while not must_exist and not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    try:
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(b"tfdist")
        free_bytes = shutil.disk_usage(nearest).free
    except OSError as error:
        return Folder(purpose=purpose, path=path, problem=error.strerror or str(error))
    return Folder(purpose=purpose, path=path, free_bytes=free_bytes, is_new=not Path(path).exists())


def judge_folders(folders: Sequence[Folder]) -> list[Finding]:
    """Says which of them can be written to."""
    return [_judge(folder) for folder in folders]


def _judge(folder: Folder) -> Finding:
    text = f"{folder.purpose}: {folder.path}"
    if folder.is_remote:
        return absent(f"{text}: only folders of this machine are looked at")
    quoted = shlex.quote(folder.path)
    if folder.problem:
        return broken(
            f"{text} cannot be written to: {folder.problem}",
            f"Take another folder, or run: mkdir -p {quoted} && chmod u+rwx {quoted}",
        )
    free = f"{folder.free_bytes / _GIB:.1f} GiB free"
    if folder.free_bytes < _LEAST_BYTES:
        return broken(f"{text}: {free}", f"Make room. What is large there: du -xh -d1 {quoted}")
    if folder.free_bytes < _LITTLE_BYTES:
        return absent(f"{text}: only {free}")
    return good(f"{text}: {free}{', will be made' if folder.is_new else ''}")


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # Somebody removed it.
        return os.curdir


def _temporary_folder() -> str:
    # Not tempfile.gettempdir(): it passes over a TMPDIR that does not work.
    return os.environ.get("TMPDIR") or tempfile.gettempdir()
