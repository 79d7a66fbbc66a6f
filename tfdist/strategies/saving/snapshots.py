"""Snapshots: the newest states of trainings that this host has in memory.

    /dev/shm/.../model.ckpt-50.index, .data-...   a checkpoint, with the step as `global_step`
    /dev/shm/.../model.ckpt-50.input              the position of the input

The first worker of each host writes them, whole or not at all. At a restart it reads its newest one
and checks it; all workers choose the newest of all hosts.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as v1

from tfdist.cluster.environment import find_instance
from tfdist.cluster.instance_variables import read_restart_step
from tfdist.process.memory import total_and_free_bytes
from tfdist.process.snapshot_folders import (
    MEMORY,
    folder_of_host,
    make_folder,
    remove_folder,
    remove_stale,
)
from tfdist.strategies.saving.checkpoint_files import damage, file_beside, step_of

NAME = "model.ckpt"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A whole snapshot in the memory of a host: a checkpoint in TensorFlow's format.

    Attributes:
      step: Its global step.
      files: The size of each of its files in bytes, by name; the index is the last one.
      input: The position of the input; None if positions are not saved.
    """

    step: int
    files: Mapping[str, int]
    input: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """The name of the checkpoint."""
        return f"{NAME}-{self.step}"


def snapshots_here(run: str) -> dict[str, Snapshot]:
    """Returns the newest whole snapshot of each training of a run on this host.

    Others are removed, and damaged ones are logged. Only the first worker of a host may call it,
    before its first snapshot. They are found by the name of their folder; see `name_for`.
    """
    found = {}
    for folder in sorted(folder_of_host(run).glob("*")):
        snapshot = newest_whole(folder)
        if snapshot is not None:
            found[folder.name] = snapshot
    return found


def newest_whole(folder: Path) -> Snapshot | None:
    """Returns the newest whole snapshot in the folder of a training, as `snapshots_here` does."""
    newest = None
    for path in sorted(paths_in(folder), key=_step_in_name, reverse=True):
        problem = "" if newest is not None else _problem(path)
        if newest is None and not problem:
            newest = Snapshot(
                step=_step_in_name(path), files=_sizes(path), input=_input_beside(path)
            )
            continue
        if problem:
            v1.logging.warning("The snapshot %s is not used: %s.", path, problem)
        remove_snapshot(path)
    return newest


def remove_snapshot(path: str) -> None:
    """Removes the files of a snapshot."""
    for file in _files(path):
        file.unlink()


def paths_in(folder: Path) -> list[str]:
    """Returns the paths of a folder's snapshots without their endings, in any order."""
    return [os.fspath(file.with_suffix("")) for file in folder.glob(f"{NAME}-*.index")]


def _problem(path: str) -> str:
    """Returns why a snapshot must not be used; "" if it may."""
    step = _step_in_name(path)
    if step < 0:
        return "its name has no step"
    problem = damage(path)
    if problem is None and (found := step_of(path)) != step:
        problem = f"it has the step {found}"
    try:
        _input_beside(path)
    except ValueError as error:
        problem = problem or f"its position cannot be read ({error})"
    return problem or ""


def _input_beside(path: str) -> Mapping[str, Any] | None:
    file = Path(file_beside(path))
    return json.loads(file.read_text()) if file.exists() else None


def _step_in_name(path: str) -> int:
    text = path.rpartition("-")[2]
    return int(text) if text.isdecimal() else -1


def _files(path: str) -> Iterator[Path]:
    folder, name = os.path.split(path)
    return Path(folder).glob(f"{name}.*")


def _sizes(path: str) -> dict[str, int]:
    """Returns the size of each file of a snapshot, by name; the index is the last one."""
    index = f"{path}.index"
    files = sorted(_files(path), key=lambda file: os.fspath(file) == index)
    return {file.name: file.stat().st_size for file in files}


def choose_sender(steps: Sequence[int], checkpoint_step: int) -> int | None:
    """Returns the worker on the host with the newest snapshot, the first one of several.

    Steps are -1 without a snapshot, or a checkpoint. None if no snapshot is newer than that.
    """
    newest = max(steps, default=-1)
    return steps.index(newest) if newest > checkpoint_step else None


def restart_line(step: int, worker: int) -> str:
    """Returns the line about a restart from a worker's snapshot of a step."""
    of = f" of worker {worker}'s host" if worker else ""
    again = read_restart_step(os.environ) - step
    cost = f" ({again:,} step{'s' * (again != 1)} again)" if again >= 0 else ""
    return f"Going on from the snapshot of step {step:,}{of}{cost}."


class HostSnapshots:
    """The snapshots of one training that this host keeps; none where no first worker is.

    Both dialects take theirs through it. Every worker of the training makes one.

    Args:
      run: The name of the launcher's run.
      name: The name of the training's folder; see `name_for`.
      warn: Logs a line for the user.

    Attributes:
      folder: The folder of the snapshots; None if this worker keeps none.
    """

    def __init__(self, run: str, name: str, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._has_reported = False
        self.folder: Path | None = None
        if find_instance().local_index == 0:
            try:
                remove_stale()
                self.folder = make_folder(run, name)
            except OSError as error:
                warn(f"This host keeps no snapshots: {error}.")

    def has_room(self, step: int, size: int, *, copy_bytes: int) -> bool:
        """Returns whether the snapshot of a step has room; the first time that not, logs why.

        Args:
          step: The step.
          size: The size of its files in bytes.
          copy_bytes: The new memory that a copy of the values needs beside them.
        """
        assert self.folder is not None
        num_new = 1 if paths_in(self.folder) else 2
        free = min(shutil.disk_usage(MEMORY).free, total_and_free_bytes()[1] - copy_bytes)
        why_not = why_no_room(size, num_new=num_new, free=free)
        if why_not:
            self.report_missing(step, why_not)
        return not why_not

    def report_missing(self, step: int, why: str) -> None:
        """Logs once why there is no snapshot of a step."""
        if not self._has_reported:
            self._has_reported = True
            self._warn(f"No snapshot is kept of step {step}: {why}")

    def remove(self) -> None:
        """Removes all of them, after a training that was not interrupted."""
        if self.folder is not None:
            remove_folder(self.folder)


def why_no_room(size: int, *, num_new: int, free: int) -> str:
    """Returns why there is no room for 1 or 2 new snapshots of a size in bytes; "" if there is."""
    needed = num_new * size
    if needed <= free:
        return ""
    return (
        f"the newest one and the next are there at once, {size:,} bytes each. {needed:,} bytes "
        f"more are needed in {MEMORY}, where {max(free, 0):,} are free. Make room there (a "
        "container has --shm-size, a pod an emptyDir with medium Memory), or use "
        "--snapshot-steps 0."
    )


def log_failed_write(error: BaseException) -> None:
    """Logs that a snapshot is missing: the training goes on."""
    v1.logging.warning("A snapshot could not be written: %s", error)
