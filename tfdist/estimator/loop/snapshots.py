"""Snapshots: the newest state of a training, in the memory of each host.

    every worker             step 50 | sync-on-read variables | step 51   step 52 ...
    first worker of a host           | copy of the values     | step 51   step 52 ...
    its thread "save"                                         | write to /dev/shm, rename, delete |

The files are a checkpoint's, written in the same order: a snapshot is whole or absent. At a
restart each host's first worker reads its newest snapshot, and checks it. All tell each other, and
choose the newest one. Worker 0 puts it into model_dir as a checkpoint, from its own host's memory
or as the other worker sends it. All go on from there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.environment import find_instance, read_run
from tfdist.estimator.checkpoints.background import BackgroundSaves
from tfdist.estimator.checkpoints.input_progress import InputProgress
from tfdist.estimator.checkpoints.writer import CheckpointWriter, add_checkpoint
from tfdist.estimator.inputs.position import InputPosition
from tfdist.estimator.loop.decision import Decision
from tfdist.estimator.loop.train_call import FoundCheckpoint, TrainCall
from tfdist.process.progress_file import in_phase
from tfdist.process.snapshot_folders import folder_of_host
from tfdist.strategies.divided import pieces
from tfdist.strategies.graph.step_counter import StepCounter, crosses
from tfdist.strategies.saving.snapshots import (
    NAME,
    HostSnapshots,
    Snapshot,
    choose_sender,
    log_failed_write,
    paths_in,
    restart_line,
    snapshots_here,
)
from tfdist.strategies.stop_signals import StopSignals
from tfdist.strategies.worker_strategy import WorkerStrategy

_CHUNK = 1 << 20  # numbers of 4 bytes in a message


class Snapshots(v1.train.SessionRunHook):  # type: ignore[misc]
    """Takes the snapshots of a training; a hook, and a context around the whole training.

    Every worker makes one, with the same interval. At the end of a training that was not
    interrupted it removes the snapshots of this host.
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
        self._has_ended = False
        self._host: HostSnapshots | None = None
        self._writer = CheckpointWriter(lambda: self._saver, progress, self._saves)
        run = read_run()
        if self._every_steps and (run is None or not found.snapshots):
            self._every_steps = 0
            v1.logging.info(
                "No snapshots are kept in memory: no launcher starts this program again. Use "
                "--max-restarts of tfdist run or tfdist slurm."
            )
        divided = pieces.divided_in(v1.get_default_graph()) if self._every_steps else []
        if divided:
            self._every_steps = 0
            v1.logging.info(
                "No snapshots are kept in memory: %s is divided between the workers.",
                divided[0].division.name,
            )
        if self._every_steps and run is not None and found.snapshots:
            self._host = HostSnapshots(run, found.snapshots, v1.logging.warning)

    @property
    def _folder(self) -> Path | None:
        return None if self._host is None else self._host.folder

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

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._saves.wait()
        # A stop signal ends the process after the training has ended.
        if self._host is not None and self._has_ended and not isinstance(error, Exception):
            self._host.remove()

    def _take(self, session: v1.Session) -> None:
        """Copies the values for a snapshot, which the thread writes if there is room."""
        self._prepare(session)
        if self._host is None or self._folder is None:
            return
        self._saves.wait()
        step, saver = self._counter.step, self._scaffold.saver
        if type(saver) is not v1.train.Saver or saver.saver_def.version != v1.train.SaverDef.V2:
            why = "its saver is of a class, or writes a format, of its own."
            self._host.report_missing(step, why)
            return
        size, copy_bytes = self._writer.num_bytes(session.graph)
        if self._host.has_room(step, size, copy_bytes=copy_bytes):
            self._writer.save(session, os.fspath(self._folder / NAME), step, write_meta_graph=False)

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


# The restart.


def own_snapshots(call: TrainCall) -> dict[str, Snapshot]:
    """Returns this host's snapshots for the other workers, if this is the host's first worker."""
    run = read_run()
    if not call.config.save_snapshot_steps or run is None or find_instance().local_index > 0:
        return {}
    return snapshots_here(run)


def with_snapshot(
    found: FoundCheckpoint, snapshots: Sequence[Mapping[str, Snapshot]]
) -> tuple[FoundCheckpoint, tuple[int, Snapshot] | None]:
    """Returns what all workers go on from: worker 0's checkpoint, or a snapshot of a worker's host.

    Returns:
      The checkpoint as it is once worker 0 has the snapshot; the worker that has that, and the
      snapshot, or None.
    """
    if not found.snapshots or found.problem is not None:
        return found, None
    has_input = found.input is not None
    usable = [
        {n: one for n, one in of_host.items() if (one.input is not None) == has_input}
        for of_host in snapshots
    ]
    steps = [one[found.snapshots].step if found.snapshots in one else -1 for one in usable]
    worker = choose_sender(steps, -1 if found.path is None else found.step)
    if worker is None:
        return found, None
    snapshot = usable[worker][found.snapshots]
    return FoundCheckpoint(
        path=snapshot.name,
        step=snapshot.step,
        input=None if snapshot.input is None else InputPosition(**snapshot.input),
        snapshots=found.snapshots,
    ), (worker, snapshot)


def adopt_snapshot(
    call: TrainCall,
    found: FoundCheckpoint,
    chosen: tuple[int, Snapshot],
    strategy: WorkerStrategy | None = None,
) -> str | None:
    """Puts the chosen snapshot into worker 0's model_dir, as its newest checkpoint.

    A collective: every worker must call it. Returns the path of the checkpoint; None on another
    worker than 0.
    """
    sender, snapshot = chosen
    index = 0 if strategy is None else int(strategy.extended.collectives.worker_index)
    run = read_run()
    assert run is not None
    source = folder_of_host(run) / found.snapshots
    sending = None
    if sender > 0 and strategy is not None:
        sending = _Sending(strategy, snapshot, source if index == sender else None)
    path = None
    if index == 0:
        v1.logging.info(restart_line(snapshot.step, sender))
        write = sending.run if sending else partial(_copy_files, snapshot, source)
        path = add_checkpoint(call.model_dir, snapshot.name, write)
    elif sending is not None:
        sending.run(None)
    return path


def _copy_files(snapshot: Snapshot, source: Path, folder: str) -> None:
    for name in snapshot.files:
        tf.io.gfile.copy(os.path.join(source, name), os.path.join(folder, name), overwrite=True)


class _Sending:
    """The sending of a snapshot's files from one worker to worker 0, in pieces.

    Every worker makes it, in place of a graph of its own, and calls `run`. `source` is the folder
    of the files on the worker that sends them; None on the others.
    """

    def __init__(self, strategy: WorkerStrategy, snapshot: Snapshot, source: Path | None) -> None:
        self._strategy = strategy
        self._snapshot = snapshot
        self._source = source
        self._graph = tf.Graph()
        with self._graph.as_default(), tf.device("/device:CPU:0"):
            self._own = v1.placeholder(tf.int32, [_CHUNK])
            # Zeros of all others are added, which is exact.
            (self._all,) = strategy.extended.collectives.sum([tf.identity(self._own)], "snapshot")

    def run(self, folder: str | None) -> None:
        """Sends the files, and writes them into the folder, if one is given. A collective.

        Raises:
          WorkerLostError: If another worker is lost meanwhile.
        """
        config = self._strategy.update_config_proto(v1.ConfigProto())
        with (
            v1.Session(self._strategy.master, graph=self._graph, config=config) as session,
            self._strategy.watch_peers() as watch,
            in_phase("waiting"),
        ):
            watch.start(session.close)
            for name, size in self._snapshot.files.items():
                self._send(session, name, size, folder)
            watch.leave()

    def _send(self, session: v1.Session, name: str, size: int, folder: str | None) -> None:
        own = np.zeros([_CHUNK], np.int32)
        with ExitStack() as files:
            source = target = None
            if self._source is not None:
                source = files.enter_context(open(self._source / name, "rb"))
            if folder is not None:
                target = files.enter_context(tf.io.gfile.GFile(os.path.join(folder, name), "wb"))
            for begin in range(0, size, own.nbytes):
                if source is not None:
                    piece = np.frombuffer(source.read(own.nbytes), np.uint8)
                    own.view(np.uint8)[: len(piece)] = piece
                everything = session.run(self._all, {self._own: own})
                if target is not None:
                    target.write(everything.tobytes()[: size - begin])
