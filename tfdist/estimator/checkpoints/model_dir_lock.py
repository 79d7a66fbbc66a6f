"""The lock of a model_dir: one chief at a time trains in it and saves checkpoints.

The lock is a file, model_dir/training.lock, that names the process that trains there:

    a training begins and finds           effect
    ------------------------------------  -----------------------------------------------------
    no lock                               writes a lock, and rewrites it every 5 s until its end
    a lock of a process in this place     error if that process runs, else immediate takeover
    a lock of an earlier start of its run immediate takeover: the launcher has lost that host
    a lock of a process in another place  watches it: error if it is rewritten for 30 s, takeover
                                          after 30 s without a rewrite, free once it is removed

A place is a boot of a machine and a process namespace. So two containers, or two machines with the
same name, are different places. The start time distinguishes a process from a later one with the
same number. The limit of 30 s is six times the interval of 5 s. A pod that is replaced has the same
30 s to end by itself. The clocks of different machines are never compared.

A local file system creates the file for only one process, and one process at a time can take it
over (flock on the folder). Elsewhere (gs://..., some network file systems) the last of several
writers wins, and the others see that half a second later. Some cases remain, for example a process
that was stopped for longer than 30 s. They are found before the next save: a process that has lost
its lock does not save again, and ends with the error.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster.environment import read_run
from tfdist.cluster.instances import restart_count
from tfdist.estimator.checkpoints.listing import require_writable
from tfdist.process.endings import OneLineError
from tfdist.process.identity import is_running, own_place, started_s
from tfdist.process.progress_file import in_phase
from tfdist.strategies.saving.disk_space import is_remote

FILE_NAME = "training.lock"

BEAT_S = 5.0
SILENCE_S = 30.0
_LOOK_EVERY_S = 0.5
_SETTLE_S = 0.5


class ModelDirInUseError(OneLineError, RuntimeError):
    """Raised if another chief trains in the model_dir."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The holder of a lock, as in its file; the defaults are for a file that cannot be read.

    Attributes:
      host: The machine's name.
      pid: The process's number there, in its place.
      started_s: The time at which the process was started, in seconds since the boot.
      since: The time at which the training began, as text for messages.
      token: Distinguishes this training from all others.
      run: The name of the run, if `tfdist run` may start it again.
      start: The number of earlier starts of that run.
    """

    host: str = ""
    pid: int = 0
    place: str = ""
    started_s: float = 0.0
    since: str = "an unknown time"
    token: str = ""
    run: str = ""
    start: int = 0

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" if self.pid else "an unknown process"


@contextlib.contextmanager
def locked(model_dir: str) -> Iterator[Sequence[v1.train.CheckpointSaverListener]]:
    """Holds the lock of a model_dir in the `with` block, and releases it also after an error.

    Only the chief of a training that saves checkpoints takes it. A missing folder is made.

    Yields:
      Listeners for the training's saver. They prevent a training without its lock from saving.

    Raises:
      ModelDirInUseError: If another chief trains there.
      ModelDirError: If the folder cannot be written.
    """
    require_writable(model_dir)
    lock = _Lock(model_dir)
    lock.acquire()
    try:
        yield [_SaveIfHeld(lock)]
    finally:
        lock.release()


class _Lock:
    def __init__(self, model_dir: str) -> None:
        self._model_dir = model_dir
        self._path = os.path.join(model_dir, FILE_NAME)
        self._own = Holder(
            host=socket.gethostname(),
            pid=os.getpid(),
            place=own_place(),
            started_s=started_s(os.getpid()) or 0.0,
            since=datetime.now().astimezone().isoformat(" ", "seconds"),
            token=uuid.uuid4().hex,
            run=read_run() or "",
            start=restart_count(),
        )
        # A file that cannot be read is being written, by this process.
        self._harmless = (self._own.token, "")
        self._num_beats = 0
        self._is_over = threading.Event()
        self._beating = threading.Thread(target=self._beat, daemon=True)

    def acquire(self) -> None:
        while not (self._create() or self._take_over()):
            pass
        self._beating.start()

    def release(self) -> None:
        if os.getpid() != self._own.pid:  # A fork of the process that holds it.
            return
        self._is_over.set()
        self._beating.join()
        try:
            if self._holder() == self._own:
                tf.io.gfile.remove(self._path)
        except (OSError, tf.errors.OpError) as error:
            v1.logging.warning("%s could not be removed: %s", self._path, error)

    def check(self) -> None:
        """Raises ModelDirInUseError if another process has taken over the lock."""
        holder = None
        with contextlib.suppress(OSError, tf.errors.OpError):
            holder = self._holder()
        if holder is not None and holder.token not in self._harmless:
            raise ModelDirInUseError(
                f"{holder} has taken model_dir {self._model_dir!r} over from this process, of "
                f"which it had heard nothing for {SILENCE_S:.0f} s. Nothing more is saved here: "
                "let one of the two go on."
            )

    # Taking the lock.

    def _create(self) -> bool:
        """Writes the lock if there is none; returns whether this process has it now."""
        if is_remote(self._path):
            if tf.io.gfile.exists(self._path):
                return False
            self._write()
            return self._is_settled()
        try:
            with open(self._path, "x") as file:
                file.write(self._text())
        except FileExistsError:
            return False
        except OSError:  # The disk is full: an empty file would look like a lock.
            with contextlib.suppress(OSError):
                os.remove(self._path)
            raise
        return True

    def _take_over(self) -> bool:
        """Replaces the lock of a process that has ended, or raises ModelDirInUseError.

        Returns whether this process has it now.
        """
        text = self._read()
        if text == "":  # Its process may be between creating and writing it.
            time.sleep(_SETTLE_S)
            text = self._read()
        if text is None:
            return False
        holder = _parse(text)
        if holder.place == self._own.place:
            if is_running(holder.pid, holder.started_s):
                raise self._in_use(holder)
            why = "has ended"
        elif holder.run and holder.run == self._own.run and holder.start < self._own.start:
            why = "belongs to an earlier start of this run"
        else:
            text = self._watch(text, holder)
            why = f"has not written its lock for {SILENCE_S:.0f} s"
        if text is None or not self._replace(text):
            return False
        v1.logging.warning(
            "The lock of model_dir %r is taken over from %s, which trained there since %s and %s.",
            *(self._model_dir, holder, holder.since, why),
        )
        return True

    def _replace(self, text: str) -> bool:
        """Replaces a lock with this process's; returns False if another process was faster."""
        with _alone_in(self._model_dir):
            if self._read() != text:
                return False
            tf.io.gfile.remove(self._path)
            if not self._create():
                return False
        return self._is_settled()

    def _watch(self, text: str, holder: Holder) -> str | None:
        """Watches the lock of a process in another place, until 30 s pass without a rewrite.

        Returns its last text; None if it was removed. Raises ModelDirInUseError if the process
        keeps rewriting it.
        """
        v1.logging.warning(
            "model_dir %r is locked by %s since %s: waiting %.0f s to see whether that still runs.",
            *(self._model_dir, holder, holder.since, SILENCE_S),
        )
        began_s = heard_s = time.monotonic()
        with in_phase("waiting"):
            while time.monotonic() - heard_s < SILENCE_S:
                time.sleep(_LOOK_EVERY_S)
                new, now_s = self._read(), time.monotonic()
                if new is None:
                    return None
                if new != text:
                    text, heard_s = new, now_s
                    found = _parse(text)
                    holder = found if found.token else holder
                if now_s - began_s >= SILENCE_S and now_s - heard_s < 2 * BEAT_S:
                    raise self._in_use(holder)
        return text

    def _is_settled(self) -> bool:
        """Returns whether no other process has written the lock at the same time."""
        time.sleep(_SETTLE_S)
        return self._holder() == self._own

    def _in_use(self, holder: Holder) -> ModelDirInUseError:
        return ModelDirInUseError(
            f"{holder} has been training in model_dir {self._model_dir!r} since {holder.since}. A "
            "second training would overwrite its checkpoints: stop it, or choose another model_dir."
        )

    # Keeping the lock.

    def _beat(self) -> None:
        while not self._is_over.wait(BEAT_S):
            self._num_beats += 1
            # The next attempt may succeed; a saver reports the problem.
            with contextlib.suppress(OSError, tf.errors.OpError):
                holder = self._holder()
                if holder is None:  # The file was removed.
                    self._create()
                elif holder.token in self._harmless:
                    self._write()

    # The file.

    def _text(self) -> str:
        """Returns the text of the file, which always has the same length."""
        return json.dumps({**asdict(self._own), "beats": f"{self._num_beats:010d}"}, indent=1)

    def _write(self) -> None:
        if is_remote(self._path):
            with tf.io.gfile.GFile(self._path, "w") as file:
                file.write(self._text())
            return
        # In place: a reader, also one after a crash, finds a complete text.
        with open(self._path, "r+") as file:
            file.write(self._text())

    def _read(self) -> str | None:
        try:
            with tf.io.gfile.GFile(self._path) as file:
                return str(file.read())
        except tf.errors.NotFoundError:
            return None
        except UnicodeDecodeError:
            return ""

    def _holder(self) -> Holder | None:
        text = self._read()
        return None if text is None else _parse(text)


class _SaveIfHeld(v1.train.CheckpointSaverListener):  # type: ignore[misc]
    """Prevents a training that has lost its lock from saving."""

    def __init__(self, lock: _Lock) -> None:
        self._lock = lock

    def before_save(self, session: v1.Session, global_step_value: int) -> None:
        self._lock.check()


@contextlib.contextmanager
def _alone_in(folder: str) -> Iterator[None]:
    """Admits one process at a time to the `with` block, if the folder's file system supports it."""
    if is_remote(folder):
        yield
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _parse(text: str) -> Holder:
    """Returns the holder in a lock's text; an unknown holder if it is incomplete or not a lock."""
    try:
        values = json.loads(text)
        return Holder(**{name: kind(values[name]) for name, kind in _KINDS.items()})
    except (KeyError, TypeError, ValueError):
        return Holder()


_KINDS = {name: type(value) for name, value in asdict(Holder()).items()}
