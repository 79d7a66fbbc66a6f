"""The restart of a training from a snapshot: the workers' choice, and the way into model_dir.

each host's first worker reads its newest snapshot, and checks it
all tell each other, and choose the newest one
worker 0 puts it into model_dir as a checkpoint, from its own host's memory or as the other
worker sends it; all go on from there
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.environment import find_instance, read_run
from tfdist.estimator.checkpoints.writer import add_checkpoint
from tfdist.estimator.inputs.position import InputPosition
from tfdist.estimator.loop.train_call import FoundCheckpoint, TrainCall
from tfdist.process.progress_file import in_phase
from tfdist.process.snapshot_folders import folder_of_host
from tfdist.strategies.saving.snapshots import (
    Snapshot,
    choose,
    going_on,
    snapshots_here,
)
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
    has_input = found.input is not None
    usable = [
        {n: one for n, one in of_host.items() if (one.input is not None) == has_input}
        for of_host in snapshots
    ]
    steps = [one[found.snapshots].step if found.snapshots in one else -1 for one in usable]
    worker = choose(steps, -1 if found.path is None else found.step)
    if worker is None:
        return found, None
    snapshot = usable[worker][found.snapshots]
    return FoundCheckpoint(
        path=snapshot.name,
        step=snapshot.step,
        input=None if snapshot.input is None else InputPosition(**snapshot.input),
        snapshots=found.snapshots,
    ), (worker, snapshot)


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
        v1.logging.info(going_on(snapshot.step, sender))
        write = sending.run if sending else partial(_copy_files, snapshot, source)
        path = add_checkpoint(call.model_dir, snapshot.name, write)
    elif sending is not None:
        sending.run(None)
    return path


def _copy_files(snapshot: Snapshot, source: Path, folder: str) -> None:
    """Copies the files of a snapshot on this host into a folder, which may be remote."""
    for name in snapshot.files:
        tf.io.gfile.copy(os.path.join(source, name), os.path.join(folder, name), overwrite=True)


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
