"""The snapshots that this host has in memory, and the choice between those of all hosts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.checkpoints.damage import damage
from tfdist.estimator.checkpoints.listing import step_of
from tfdist.estimator.inputs.position import InputPosition, read_position
from tfdist.process.snapshot_folders import folder_of_host

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
    input: InputPosition | None = None

    @property
    def name(self) -> str:
        """The name of the checkpoint."""
        return f"{NAME}-{self.step}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Snapshot:
        snapshot = cls(**values)
        position = values["input"]
        return replace(snapshot, input=None if position is None else InputPosition(**position))


def snapshots_here(run: str) -> dict[str, Snapshot]:
    """Returns the newest whole snapshot of each training of a run on this host.

    Others are removed, and damaged ones are logged. Only the first worker of a host may call it,
    before its first snapshot.

    Args:
      run: The name of the run.

    Returns:
      Snapshots by the name of their folder; see `name_for`.
    """
    found = {}
    for folder in sorted(folder_of_host(run).glob("*")):
        snapshot = _newest_whole(folder)
        if snapshot is not None:
            found[folder.name] = snapshot
    return found


def _newest_whole(folder: Path) -> Snapshot | None:
    newest = None
    for path in sorted(paths_in(folder), key=_step_in_name, reverse=True):
        problem = "" if newest is not None else _problem(path)
        if newest is None and not problem:
            position = read_position(path)
            newest = Snapshot(step=_step_in_name(path), files=_sizes(path), input=position)
            continue
        if problem:
            v1.logging.warning("The snapshot %s is not used: %s.", path, problem)
        for file in _files(path):
            file.unlink()
    return newest


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
    return problem or ""


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


def choose(
    snapshots: Sequence[Mapping[str, Snapshot]],
    training: str,
    checkpoint_step: int,
    *,
    has_input: bool,
) -> tuple[int, Snapshot] | None:
    """Chooses the newest snapshot of a training that is newer than its checkpoint.

    Args:
      snapshots: Those of each worker's host, in worker order.
      training: The name of the training's folder.
      checkpoint_step: The step of the checkpoint; -1 without one.
      has_input: Whether the training saves the position of its input: then a snapshot needs one.

    Returns:
      The worker that has the snapshot, worker 0 if possible, and the snapshot. None if the training
      goes on from its checkpoint.
    """
    found = [
        (worker, of_host[training])
        for worker, of_host in enumerate(snapshots)
        if training in of_host and has_input == (of_host[training].input is not None)
    ]
    newest = max(found, key=lambda one: (one[1].step, -one[0]), default=None)
    return None if newest is None or newest[1].step <= checkpoint_step else newest


def copy_files(snapshot: Snapshot, source: Path, folder: str) -> None:
    """Copies the files of a snapshot on this host into a folder, which may be remote."""
    for name in snapshot.files:
        tf.io.gfile.copy(os.path.join(source, name), os.path.join(folder, name), overwrite=True)
