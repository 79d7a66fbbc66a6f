"""The choice of the checkpoint to resume from, if the newest is damaged or no file names it.

Worker 0 of a training renames damaged checkpoints and repairs the file `checkpoint`. All later
readers of that file, TensorFlow included, then find the same checkpoint. Other processes, which may
read the folder of a running training, change nothing.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.checkpoints.listing import Listed, listed
from tfdist.estimator.checkpoints.writer import write_state
from tfdist.strategies.saving.checkpoint_files import CheckpointDamagedError, damage
from tfdist.strategies.saving.disk_space import is_remote
from tfdist.strategies.saving.whole_files import remove_unfinished


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The checkpoint of a folder to resume from.

    Attributes:
      path: The newest whole checkpoint; None if there is no checkpoint.
      damaged: The newer checkpoints, with a description of the damage of each.
    """

    path: str | None
    damaged: Mapping[str, str]


def choose(paths: Iterable[str], find_damage: Callable[[str], str | None]) -> Choice:
    """Chooses the first checkpoint, of those from the newest to the oldest, that is whole.

    Raises:
      CheckpointDamagedError: If there are checkpoints, but all are damaged; the message lists all.
    """
    damaged: dict[str, str] = {}
    for path in paths:
        what = find_damage(path)
        if what is None:
            return Choice(path=path, damaged=damaged)
        damaged[path] = what
    if not damaged:
        return Choice(path=None, damaged={})
    raise CheckpointDamagedError(
        f"No checkpoint in {os.path.dirname(next(iter(damaged)))} is whole "
        f"({'; '.join(damaged.values())}). Copy a whole one there, or use another model_dir to "
        "begin at step 0."
    )


def newest_whole(model_dir: str, first: str | None = None) -> str | None:
    """Returns the newest whole checkpoint, or `first` if it is whole; changes no file.

    The damaged ones are logged.

    Raises:
      CheckpointDamagedError: If there are checkpoints, but none is whole.
    """
    found = listed(model_dir)
    others = [path for path in found.paths if path != first]
    choice = choose([*([] if first is None else [first]), *others], damage)
    for path, what in choice.damaged.items():
        v1.logging.warning("Checkpoint %s is damaged: %s. It is not used.", path, what)
    if choice.path != first:
        _say_if_not_named(model_dir, found, choice)
    return choice.path


def whole_at(path: str) -> str | None:
    """Returns the path of a checkpoint, or of the newest whole one in a folder; None without one.

    Raises:
      CheckpointDamagedError: If there is a checkpoint, but no whole one.
    """
    return newest_whole(path) if tf.io.gfile.isdir(path) else choose([path], damage).path


def recover(model_dir: str) -> str | None:
    """Returns the newest whole checkpoint, and makes it the newest one of the folder.

    Newer checkpoints, which are damaged, are renamed: the names of their files begin with
    "damaged-" then. Only the process that writes checkpoints may call this, before its first save.
    Files are renamed only on a local file system.

    Raises:
      CheckpointDamagedError: If there are checkpoints, but none is whole. Nothing is changed then.
    """
    if is_remote(model_dir):
        return newest_whole(model_dir)
    found = listed(model_dir)
    choice = choose(found.paths, damage)
    remove_unfinished(model_dir)
    for path, what in choice.damaged.items():
        set_aside(path, what)
    _say_if_not_named(model_dir, found, choice)
    if choice.path is not None and found.named[-1:] != [choice.path]:
        others = [path for path in found.named if path not in (*choice.damaged, choice.path)]
        write_state(model_dir, [*others, choice.path])
    return choice.path


def _say_if_not_named(model_dir: str, found: Listed, choice: Choice) -> None:
    if choice.path is None or found.named[-1:] == [choice.path]:
        return
    if not found.named:
        v1.logging.warning(
            "The file %s is lost or unreadable: checkpoints are found by their names.",
            os.path.join(model_dir, "checkpoint"),
        )
    v1.logging.warning("The newest whole checkpoint is %s.", choice.path)


def set_aside(path: str, what: str) -> None:
    """Renames the files of a damaged checkpoint, and logs that with a description of the damage."""
    folder, name = os.path.split(path)
    files = [file[len(path) :] for file in glob.glob(f"{glob.escape(path)}.*")]
    number = 1
    while any(os.path.exists(os.path.join(folder, _aside(name, number) + end)) for end in files):
        number += 1
    aside = _aside(name, number)
    for end in sorted(files, key=lambda end: end != ".index"):  # Without it the rest is not found.
        os.rename(path + end, os.path.join(folder, aside + end))
    v1.logging.warning("Checkpoint %s is damaged: %s. It is set aside as %s.*", path, what, aside)


def _aside(name: str, number: int) -> str:
    return f"damaged-{name}" if number == 1 else f"damaged-{number}-{name}"
