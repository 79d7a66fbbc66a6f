"""Atomic saving: at any moment a checkpoint is either complete or absent.

    model_dir/.saving/          1. TensorFlow writes the files here
      model.ckpt-20.data-...    2. the files are on the disk (fsync)
      model.ckpt-20.meta        3. they move to their final place, the index last
      model.ckpt-20.input
      model.ckpt-20.index       4. the file `checkpoint` names them
    model_dir/checkpoint        5. the oldest checkpoint is deleted

If the process or the machine ends at any point, the file `checkpoint` names a whole checkpoint.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.checkpoints.background import BackgroundSaves, SaverOps, save_values
from tfdist.estimator.checkpoints.input_progress import InputProgress, remove_positions
from tfdist.estimator.checkpoints.listing import listed
from tfdist.strategies.divided import pieces
from tfdist.strategies.private_tensorflow import (
    delete_oldest_checkpoint,
    note_checkpoint,
    replace_saver,
    save_first,
)
from tfdist.strategies.saving.disk_space import full_disk_named, is_remote
from tfdist.strategies.saving.stop_limit import StopLimit
from tfdist.strategies.saving.whole_files import move_all, unfinished_in


class CheckpointWriter:
    """Saves with another saver; takes the place of that saver in a `CheckpointSaverHook`.

    A saver of a user-defined class, and a saver on a remote file system, are called unchanged.

    Args:
      find_saver: Returns the saver, once the graph is complete.
      progress: The input of the training, whose position is saved beside each checkpoint.
      saves: Writes the files beside the training; None writes them in the foreground.
      limit: Gets the time of each save.
    """

    def __init__(
        self,
        find_saver: Callable[[], v1.train.Saver],
        progress: InputProgress | None = None,
        saves: BackgroundSaves | None = None,
        limit: StopLimit | None = None,
    ) -> None:
        self._find_saver = find_saver
        self._limit = limit
        self.progress = progress or InputProgress(None)
        self.saves = saves
        self._ops: tuple[tf.Graph, SaverOps] | None = None

    @property
    def saver_def(self) -> Any:
        return self._find_saver().saver_def

    def save(
        self,
        sess: v1.Session,
        save_path: str,
        global_step: Any = None,
        latest_filename: str | None = None,
        meta_graph_suffix: str = "meta",
        write_meta_graph: bool = True,
        **options: Any,
    ) -> str | None:
        """Saves as `Saver.save` does; in the background, returns once the values are copied.

        Returns:
          The checkpoint's path; None if it is still being written.

        Raises:
          CheckpointSpaceError: If there is no disk space.
        """
        saves = self.saves
        if saves is not None:
            saves.wait()
        began_s = time.monotonic()
        saver = self._find_saver()
        graph, position = sess.graph, self.progress.position()
        what = "checkpoint" if global_step is None else f"checkpoint of step {global_step}"

        def note_end() -> None:
            if self._limit is not None:
                self._limit.note(what, time.monotonic() - began_s)

        if type(saver) is not v1.train.Saver or saver.saver_def is None or is_remote(save_path):
            if pieces.divided_in(graph):
                pieces.refuse_saver(graph)
            # Of a stand-in for a saver, calls alone are asked.
            earlier = list(saver.last_checkpoints) if isinstance(saver, v1.train.Saver) else []
            options.update(meta_graph_suffix=meta_graph_suffix, write_meta_graph=write_meta_graph)
            path = saver.save(sess, save_path, global_step, latest_filename, **options)
            if isinstance(path, str):
                self.progress.write(position, path, path)
                remove_positions(earlier)
            note_end()
            return path
        folder, name = os.path.split(save_path)
        ops = self._ops_of(saver, graph)
        tables = pieces.take(graph)

        def write(write_values: Callable[[str], str]) -> str:
            earlier = list(saver.last_checkpoints)
            with full_disk_named(folder, f"the {what}", sum(ops.num_bytes)):
                with unfinished_in(folder) as unfinished:
                    path = write_values(os.path.join(unfinished, name))
                    if tables is not None:
                        pieces.merge(path, tables)
                    if write_meta_graph:
                        with graph.as_default():
                            saver.export_meta_graph(f"{path}.{meta_graph_suffix}", **options)
                    written, path = path, os.path.join(folder, os.path.basename(path))
                    self.progress.write(position, path, written)
                    move_all(unfinished, folder)
                note_checkpoint(saver, path)
                # A saver that keeps all notes none itself, and has those of an earlier training.
                others = [checkpoint for checkpoint in saver.last_checkpoints if checkpoint != path]
                write_state(folder, [*others, path], latest_filename)
            delete_oldest_checkpoint(saver, meta_graph_suffix)
            remove_positions(earlier)
            note_end()
            return path

        if saves is not None and saves.can_take(ops):
            values = saves.copy(sess, ops)
            saves.start(
                what,
                lambda: write(lambda path: save_values(saver, ops, values, path, global_step)),
            )
            return None
        return write(
            lambda path: saver.save(
                sess, path, global_step, write_state=False, write_meta_graph=False
            )
        )

    def num_bytes(self, graph: tf.Graph) -> tuple[int, int]:
        """Returns the size of what a save of a graph writes, and of new memory for a copy of it."""
        ops = self._ops_of(self._find_saver(), graph)
        return sum(ops.num_bytes), self.saves.new_bytes_for(ops) if self.saves else 0

    def _ops_of(self, saver: v1.train.Saver, graph: tf.Graph) -> SaverOps:
        if self._ops is None or self._ops[0] is not graph:
            self._ops = graph, SaverOps(saver, graph)
        return self._ops[1]


class TrainingSaver(v1.train.CheckpointSaverHook):  # type: ignore[misc]
    """TensorFlow's saver, which writes the graph after the first step, beside the training.

    TensorFlow's writes it before, as a text, and twice into the event file: a second or two for a
    large model, at each restart.

    Attributes:
      saves: Writes beside the training; None writes as TensorFlow does.
    """

    def __init__(
        self, folder: str, *, saver: CheckpointWriter, save_graph_def: bool, **options: Any
    ) -> None:
        super().__init__(folder, saver=saver, save_graph_def=save_graph_def, **options)
        self._folder, self._writer, self._has_text = folder, saver, save_graph_def
        self.saves: BackgroundSaves | None = None

    def begin(self) -> None:
        if self.saves is not None:
            with tf.Graph().as_default():  # A new event file begins with the current graph.
                v1.summary.FileWriterCache.get(self._folder)
        super().begin()

    def after_create_session(self, session: v1.Session, coord: v1.train.Coordinator) -> None:
        if self.saves is None:
            super().after_create_session(session, coord)
            return
        save_first(self, session)
        self.saves.start_after_step("graph", lambda: self._write_graph(session.graph))

    def _write_graph(self, graph: tf.Graph) -> None:
        definition = graph.as_graph_def(add_shapes=True)
        events = v1.summary.FileWriterCache.get(self._folder)
        with full_disk_named(self._folder, "the graph"), graph.as_default():
            if self._has_text:
                tf.io.write_graph(definition, self._folder, "graph.pbtxt")
            events.add_graph(graph)
            events.add_meta_graph(
                v1.train.export_meta_graph(graph_def=definition, saver_def=self._writer.saver_def)
            )
            events.flush()


def write_whole_checkpoints(
    hook: v1.train.CheckpointSaverHook, progress: InputProgress, saves: BackgroundSaves | None
) -> None:
    """Makes a user's hook save with a `CheckpointWriter`, whose arguments the others are."""

    def make(old: Any, find: Callable[[], v1.train.Saver]) -> CheckpointWriter:
        if not isinstance(old, CheckpointWriter):
            return CheckpointWriter(find, progress, saves, StopLimit())
        # An earlier training used the hook.
        old.progress, old.saves = progress, saves
        return old

    replace_saver(hook, make)


def write_state(folder: str, paths: Sequence[str], name: str | None = None) -> None:
    """Writes the file `checkpoint`, or `name`: a folder's checkpoints, the newest as the last.

    The paths in it are relative, so that the folder can be moved.
    """
    names = [os.path.relpath(path, folder) for path in paths]
    state = v1.train.generate_checkpoint_state_proto(os.path.abspath(folder), names[-1], names)
    with unfinished_in(folder) as unfinished:
        with open(os.path.join(unfinished, name or "checkpoint"), "w") as file:
            file.write(str(state))
        move_all(unfinished, folder)


def add_checkpoint(folder: str, name: str, write_files: Callable[[str], None]) -> str:
    """Adds a checkpoint that was made elsewhere, as the newest one of a folder; returns its path.

    `write_files` writes its files into the folder that it gets, the index as the last one.

    Raises:
      CheckpointSpaceError: If there is no disk space.
    """
    path = os.path.join(folder, name)
    others = [one for one in listed(folder).named if one != path]
    if is_remote(folder):
        write_files(folder)
        v1.train.update_checkpoint_state(folder, path, [*others, path])
        return path
    with full_disk_named(folder, f"the checkpoint {name}"):
        with unfinished_in(folder) as unfinished:
            write_files(unfinished)
            move_all(unfinished, folder)
        write_state(folder, [*others, path])
    return path
