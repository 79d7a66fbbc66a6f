"""The folders in memory in which the workers of a run keep snapshots of their training.

    /dev/shm/tfdist-snapshots-RUN/HOST/MODEL_DIR/model.ckpt-50.index, ...

RUN names the launcher's process, so that others see whether the run may still need its snapshots:

    the training ends                    its workers remove their folders
    the run ends                         the launcher removes the run's folder
    the launcher was killed              the next start of a run, or of a training with snapshots,
                                         removes the folder on that host
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
from pathlib import Path

from tfdist.process.identity import is_abandoned, owned_name, short_hash

MEMORY = Path("/dev/shm")
_PREFIX = "tfdist-snapshots-"


def new_run() -> str:
    """Returns a name for a run that this process launches."""
    return owned_name()


def name_for(model_dir: str) -> str:
    """Returns the name of a folder with snapshots of the training in a model_dir."""
    return short_hash(model_dir if "://" in model_dir else os.path.abspath(model_dir))


def name_of_host(name: str) -> str:
    """Returns the name of the folder with the snapshots of a host."""
    return short_hash(name)


def folder_of_run(run: str) -> Path:
    """Returns the folder of a run's snapshots on each host."""
    return MEMORY / f"{_PREFIX}{run}"


def folder_of_host(run: str) -> Path:
    """Returns the folder of a run's snapshots on this host; it may not exist."""
    return folder_of_run(run) / name_of_host(socket.gethostname())


def make_folder(run: str, name: str) -> Path:
    """Makes a training's folder on this host for this user alone; an OSError if it cannot be."""
    folder = folder_of_run(run)
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_own(folder):
        raise PermissionError(f"{folder} is another user's")
    folder = folder_of_host(run) / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def remove_folder(folder: Path) -> None:
    """Removes the folder of a training, and those around it that are empty then."""
    shutil.rmtree(folder, ignore_errors=True)
    for around in (folder.parent, folder.parent.parent):
        with contextlib.suppress(OSError):  # Another training uses it.
            around.rmdir()


def remove_run(run: str) -> None:
    """Removes the snapshots of a run on this host."""
    if _is_own(folder_of_run(run)):
        shutil.rmtree(folder_of_run(run), ignore_errors=True)


def remove_stale() -> None:
    """Removes this user's snapshots of runs with a launcher that has ended without doing so."""
    for folder in MEMORY.glob(f"{_PREFIX}*"):
        if _is_own(folder) and is_abandoned(folder, _changed_s):
            shutil.rmtree(folder, ignore_errors=True)


def _is_own(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _changed_s(folder: Path) -> float:
    times = [0.0]
    for path in (folder, *folder.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            times.append(path.lstat().st_mtime)
    return max(times)
