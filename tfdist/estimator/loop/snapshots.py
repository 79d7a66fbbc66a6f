"""Snapshots: the newest state of a training, in the memory of each host.

    every worker             step 50 | sync-on-read variables | step 51   step 52 ...
    first worker of a host           | copy of the values     | step 51   step 52 ...
    its thread "save"                                         | write to /dev/shm, rename, delete |

The files are those of a checkpoint, written in the same order: a snapshot is whole or absent. A
restart goes on from it as `snapshot_restart` says.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from types import TracebackType

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.environment import find_instance, read_run
from tfdist.estimator.checkpoints.background import BackgroundSaves
from tfdist.estimator.checkpoints.input_progress import InputProgress
from tfdist.estimator.checkpoints.writer import CheckpointWriter
from tfdist.estimator.loop.train_call import Decision, FoundCheckpoint, TrainCall
from tfdist.process.snapshot_folders import remove_folder
from tfdist.strategies.graph.step_counter import StepCounter, crosses
from tfdist.strategies.saving.snapshots import (
    NAME,
    free_bytes,
    log_failed_write,
    own_folder,
    paths_in,
    why_no_room,
)
from tfdist.strategies.stop_signals import StopSignals


class Snapshots(v1.train.SessionRunHook):  # type: ignore[misc]
    """Takes the snapshots of a training; a hook, and a context around the whole training.

    Every worker makes one, with the same interval. At the end of a training that was not
    interrupted it removes the snapshots of this host.

    Args:
      call: The arguments of the training.
      found: The checkpoint that all workers have agreed on.
      decision: The decision after each session call.
      scaffold: The scaffold of the session.
      progress: The batches taken from the input.
      signals: The stop signals of this process.
    """

    def __init__(
        self,
        call: TrainCall,
        found: FoundCheckpoint,
        decision: Decision,
        scaffold: v1.train.Scaffold,
        progress: InputProgress,
        signals: StopSignals,
    ) -> None:
        self._every_steps = int(call.config.save_snapshot_steps or 0)
        self._prepare: Callable[[v1.Session], None] = decision.prepare_snapshot
        self._scaffold = scaffold
        self._counter = StepCounter()
        self._saves = BackgroundSaves(signals, log_failed_write)
        self._has_said_why_not = False
        self._has_ended = False
        self._folder: Path | None = None
        self._writer = CheckpointWriter(lambda: self._saver, progress, self._saves)
        run = read_run()
        if self._every_steps and (run is None or not found.snapshots):
            self._every_steps = 0
            v1.logging.info(
                "No snapshots are kept in memory: no launcher starts this program again. Use "
                "--max-restarts of tfdist run or tfdist slurm."
            )
        if self._every_steps and run is not None and find_instance().local_index == 0:
            self._folder = own_folder(run, found.snapshots)

    def hooks(self) -> list[v1.train.SessionRunHook]:
        """Returns this hook; nothing if no snapshots are kept."""
        return [self] if self._every_steps else []

    def begin(self) -> None:
        self._counter.begin()

    def after_create_session(self, session: v1.Session, coord: v1.train.Coordinator) -> None:
        self._counter.start(session)

    def before_run(self, run_context: v1.train.SessionRunContext) -> None:
        self._saves.raise_error()

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        before = self._counter.step
        self._counter.count(run_context.session)
        if crosses(before, self._counter.step, self._every_steps):
            self._take(run_context.session)

    def end(self, session: v1.Session) -> None:
        # The last checkpoint is written: that hook comes before this one.
        self._saves.wait()
        self._has_ended = True

    def __enter__(self) -> Snapshots:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._saves.wait()
        # A stop signal ends the process after the training has ended.
        if self._folder is not None and self._has_ended and not isinstance(error, Exception):
            remove_folder(self._folder)

    def _take(self, session: v1.Session) -> None:
        """Copies the values for a snapshot, which the thread writes if there is room."""
        self._prepare(session)
        if self._folder is None:
            return
        self._saves.wait()
        why_not = self._why_not(session.graph)
        if why_not:
            if not self._has_said_why_not:
                v1.logging.warning(
                    "No snapshot is kept of step %d: %s", self._counter.step, why_not
                )
            self._has_said_why_not = True
            return
        path = os.fspath(self._folder / NAME)
        self._writer.save(session, path, self._counter.step, write_meta_graph=False)

    def _why_not(self, graph: tf.Graph) -> str:
        """Returns why there can be no snapshot now; "" if there can."""
        saver = self._scaffold.saver
        if type(saver) is not v1.train.Saver or saver.saver_def.version != v1.train.SaverDef.V2:
            return "its saver is of a class, or writes a format, of its own."
        size, copy = self._writer.num_bytes(graph)
        return why_no_room(
            size,
            num_new=1 if self._saver.last_checkpoints else 2,
            free=free_bytes(copy),
        )

    @cached_property
    def _saver(self) -> v1.train.Saver:
        """A saver with the ops of the training's, which keeps one checkpoint."""
        definition = v1.train.SaverDef()
        definition.CopyFrom(self._scaffold.saver.saver_def)
        definition.max_to_keep, definition.keep_checkpoint_every_n_hours = 1, 1e6
        saver = v1.train.Saver(saver_def=definition, save_relative_paths=True)
        if self._folder is not None:  # One of the interrupted training may be there.
            saver.recover_last_checkpoints(paths_in(self._folder))
        return saver
