"""Snapshots: the newest state of a training, in the memory of each host.

    every worker             step 50 | sync-on-read variables | step 51   step 52 ...
    first worker of a host           | copy of the values     | step 51   step 52 ...
    its thread "save"                                         | write to /dev/shm, rename, delete |

    a restart                each host's first worker reads its newest snapshot, and checks it
                             all tell each other, and choose the newest one
                             worker 0 puts it into model_dir as a checkpoint, from its own host's
                             memory or as the other worker sends it; all go on from there

The files are those of a checkpoint, written in the same order: a snapshot is whole or absent.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.environment import find_instance, read_run
from tfdist.cluster.instance_variables import read_restart_step
from tfdist.estimator.checkpoints.background import BackgroundSaves
from tfdist.estimator.checkpoints.input_progress import InputProgress
from tfdist.estimator.checkpoints.snapshot_files import (
    NAME,
    Snapshot,
    choose,
    copy_files,
    paths_in,
    snapshots_here,
)
from tfdist.estimator.checkpoints.writer import CheckpointWriter, add_checkpoint
from tfdist.estimator.loop.train_call import Decision, FoundCheckpoint, TrainCall
from tfdist.process.memory import total_and_free_bytes
from tfdist.process.progress_file import in_phase
from tfdist.process.snapshot_folders import (
    MEMORY,
    folder_of_host,
    make_folder,
    remove_folder,
    remove_stale,
)
from tfdist.strategies.graph.step_counter import StepCounter, crosses
from tfdist.strategies.stop_signals import StopSignals
from tfdist.strategies.worker_strategy import WorkerStrategy

_CHUNK = 1 << 20  # numbers of 4 bytes in a message


def own_snapshots(call: TrainCall) -> dict[str, Snapshot]:
    """Returns this host's snapshots for the other workers, if this is the host's first worker."""
    run = read_run()
    if not call.config.save_snapshot_steps or run is None or find_instance().local_index > 0:
        return {}
    return snapshots_here(run)


def with_snapshot(
    found: FoundCheckpoint, snapshots: Sequence[Mapping[str, Snapshot]]
) -> tuple[FoundCheckpoint, tuple[int, Snapshot] | None]:
    """Returns what all workers go on from: worker 0's checkpoint, or a snapshot.

    Args:
      found: Worker 0's checkpoint.
      snapshots: Those of each worker's host, in worker order.

    Returns:
      The checkpoint as it is once worker 0 has the snapshot; the worker that has that, and the
      snapshot, or None.
    """
    if not found.snapshots or found.problem is not None:
        return found, None
    step = -1 if found.path is None else found.step
    chosen = choose(snapshots, found.snapshots, step, has_input=found.input is not None)
    if chosen is None:
        return found, None
    _, snapshot = chosen
    return FoundCheckpoint(
        path=snapshot.name,
        step=snapshot.step,
        input=snapshot.input,
        snapshots=found.snapshots,
    ), chosen


def take_over(
    call: TrainCall,
    found: FoundCheckpoint,
    chosen: tuple[int, Snapshot],
    strategy: WorkerStrategy | None = None,
) -> str | None:
    """Puts the chosen snapshot into worker 0's model_dir, as its newest checkpoint.

    A collective: every worker must call it.

    Args:
      call: The arguments of the training.
      found: The checkpoint with the snapshot.
      chosen: The worker that has the snapshot, and the snapshot.
      strategy: The strategy; None for a worker that is alone.

    Returns:
      The path of the checkpoint; None on another worker than 0.
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
        again = read_restart_step(os.environ) - snapshot.step
        v1.logging.info(
            "Going on from the snapshot of step %s%s%s.",
            f"{snapshot.step:,}",
            f" of worker {sender}'s host" if sender else "",
            f" ({again:,} step{'s' * (again != 1)} again)" if again >= 0 else "",
        )
        write = sending.run if sending else partial(copy_files, snapshot, source)
        path = add_checkpoint(call.model_dir, snapshot.name, write)
    elif sending is not None:
        sending.run(None)
    return path


class _Sending:
    """The sending of a snapshot's files from one worker to worker 0, in pieces.

    Every worker makes it, in place of a graph of its own, and calls `run`.

    Args:
      strategy: The strategy.
      snapshot: The snapshot.
      source: On the worker that sends them, the folder of the files; else None.
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
        """Sends the files, and writes them into the folder, if one is given.

        A collective.

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
        self._saves = _SnapshotWrites(signals)
        self._has_said_why_not = False
        self._has_ended = False
        self._folder: Path | None = None
        self._writer = CheckpointWriter(lambda: self._saver, progress, self._saves)
        run = read_run()
        if self._every_steps and (run is None or not found.snapshots):
            self._every_steps = 0
            v1.logging.info(
                "No snapshots are kept in memory: no launcher starts this program again. Use "
                "tfdist run --max-restarts."
            )
        if self._every_steps and run is not None and find_instance().local_index == 0:
            self._folder = _folder(run, found.snapshots)

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

    def save(self, session: v1.Session, limit_s: float | None = None) -> bool:
        """Takes a snapshot now, between two steps, and waits until it is written.

        Every worker must call it after the same step; else the others wait.

        Args:
          session: The raw session.
          limit_s: Seconds to wait for the files; None waits until they are there.

        Returns:
          Whether this host has the snapshot of this step; False on workers that keep none.
        """
        return self._take(session) and self._saves.end_within(limit_s)

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

    def _take(self, session: v1.Session) -> bool:
        """Copies the values for a snapshot; returns whether the thread writes it."""
        self._prepare(session)
        if self._folder is None:
            return False
        self._saves.wait()
        why_not = self._why_not(session.graph)
        if why_not:
            if not self._has_said_why_not:
                v1.logging.warning(
                    "No snapshot is kept of step %d: %s", self._counter.step, why_not
                )
            self._has_said_why_not = True
            return False
        path = os.fspath(self._folder / NAME)
        self._writer.save(session, path, self._counter.step, write_meta_graph=False)
        return True

    def _why_not(self, graph: tf.Graph) -> str:
        """Returns why there can be no snapshot now; "" if there can."""
        saver = self._scaffold.saver
        if type(saver) is not v1.train.Saver or saver.saver_def.version != v1.train.SaverDef.V2:
            return "its saver is of a class, or writes a format, of its own."
        size, copy = self._writer.num_bytes(graph)
        return why_no_room(
            size,
            num_new=1 if self._saver.last_checkpoints else 2,
            free=shutil.disk_usage(MEMORY).free,
            free_memory=total_and_free_bytes()[1] - copy,
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


def _folder(run: str, name: str) -> Path | None:
    """Makes the folder of a training on this host; None, and a line, if that is not possible."""
    try:
        remove_stale()
        return make_folder(run, name)
    except OSError as error:
        v1.logging.warning("This host keeps no snapshots: %s.", error)
        return None


class _SnapshotWrites(BackgroundSaves):
    """The thread that writes snapshots. A failed write is logged, and the training goes on."""

    def raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            v1.logging.warning("A snapshot could not be written: %s", error)

    def end_within(self, limit_s: float | None) -> bool:
        """Waits for the thread; returns whether it has ended without an error."""
        thread: threading.Thread | None = self._thread
        if thread is not None:
            thread.join(limit_s)
        return (thread is None or not thread.is_alive()) and self._error is None


def why_no_room(size: int, *, num_new: int, free: int, free_memory: int) -> str:
    """Returns why there is no room for a snapshot; "" if there is.

    Args:
      size: The size of a snapshot in bytes.
      num_new: 1 if an older snapshot is there already, else 2.
      free: The bytes that are free in /dev/shm.
      free_memory: The bytes of memory that are free once the values are copied.
    """
    needed, free = num_new * size, min(free, free_memory)
    if needed <= free:
        return ""
    return (
        f"the newest one and the next are there at once, {size:,} bytes each. {needed:,} bytes "
        f"more are needed in {MEMORY}, where {max(free, 0):,} are free. Make room there (a "
        "container has --shm-size, a pod an emptyDir with medium Memory), or use "
        "--snapshot-steps 0."
    )
