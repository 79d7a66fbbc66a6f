"""The lock of a model_dir: one chief at a time trains in it and saves checkpoints.

The lock is a file, model_dir/training.lock, that says who trains there:

    a training begins, and finds          then
    ------------------------------------  -----------------------------------------------------
    no lock                               it writes its own, anew every 5 s, until it has ended
    that of a process of this machine     refused if that process runs, else taken over, at once
    that of a process somewhere else      watched: refused if it is written anew for 30 s, taken
                                          over once it was not for 30 s, free once it is removed

Two containers, or two machines of one name, are different places: the kernel's boot id and the
process namespace say so, and the start time tells a process from a later one with its number. The
30 s are six times the 5; a pod that is replaced has as long to end by itself. Nobody's clock is
compared with another's.

A local file system makes the file for one process only, and lets one process at a time take it over
(flock on the folder). Elsewhere (gs://..., some network file systems) the last of several writers
wins, and the others see that half a second later. What all that misses, a process that was stopped
for longer than 30 s for example, is seen before the next save: the process whose lock was taken
over saves no more, and ends with the error.
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
from pathlib import Path
from typing import Any

import psutil
import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.estimator.checkpoints.listing import is_remote, require_writable
from tfdist.process.endings import OneLineError
from tfdist.process.progress_file import in_phase

FILE_NAME = "training.lock"

BEAT_S = 5.0
SILENCE_S = 30.0
_LOOK_EVERY_S = 0.5
_SETTLE_S = 0.5
# The kernel says in whole seconds when it was booted.
_SAME_START_S = 1.5


class ModelDirInUseError(OneLineError, RuntimeError):
    """Another chief trains in the model_dir."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds a lock, as its file says; the defaults are for a file that cannot be read.

    Attributes:
      host: The machine's name.
      pid: The process's number there.
      place: What has such numbers of its own: a boot of a machine, and a namespace of processes.
      started_s: When the process was started, in seconds since that boot.
      since: When the training began, for people.
      token: Tells this training from all others.
    """

    host: str = ""
    pid: int = 0
    place: str = ""
    started_s: float = 0.0
    since: str = "an unknown time"
    token: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" if self.pid else "an unknown process"


@contextlib.contextmanager
def locked(model_dir: str) -> Iterator[Sequence[v1.train.CheckpointSaverListener]]:
    """Holds the lock of a model_dir in the `with` block, whatever ends it.

    For the chief of a training that saves; nobody else takes it.

    Args:
      model_dir: The folder, which is made where it is missing.

    Yields:
      Listeners for the training's saver: they keep a training from saving that has lost its lock.

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
    """The lock of a model_dir, for one training of this process."""

    def __init__(self, model_dir: str) -> None:
        self._model_dir = model_dir
        self._path = os.path.join(model_dir, FILE_NAME)
        self._own = Holder(
            host=socket.gethostname(),
            pid=os.getpid(),
            place=_own_place(),
            started_s=_started_s(os.getpid()) or 0.0,
            since=datetime.now().astimezone().isoformat(" ", "seconds"),
            token=uuid.uuid4().hex,
        )
        # What cannot be read is being written, by this process.
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
        """Refuses to go on where another process has taken the lock over."""
        holder = None
        with contextlib.suppress(OSError, tf.errors.OpError):
            holder = self._holder()
        if holder is not None and holder.token not in self._harmless:
            raise ModelDirInUseError(
                f"{holder} has taken model_dir {self._model_dir!r} over from this process, of "
                f"which it had heard nothing for {SILENCE_S:.0f} s. Nothing more is saved here: "
                "let one of the two go on."
            )

    # Taking it.

    def _create(self) -> bool:
        """Writes the lock if there is none; whether it is ours now."""
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
        except OSError:  # The disk is full: an empty file would look like somebody's lock.
            with contextlib.suppress(OSError):
                os.remove(self._path)
            raise
        return True

    def _take_over(self) -> bool:
        """Puts our lock in the place of one whose process has ended; whether it is ours now.

        Raises:
          ModelDirInUseError: If the process has not ended.
        """
        text = self._read()
        if text is None:
            return False
        holder = _parse(text)
        if holder.place == self._own.place:
            if _is_running(holder):
                raise self._in_use(holder)
            why = "has ended"
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
        """Puts our lock in the place of this one; whether nobody was faster."""
        with _alone_in(self._model_dir):
            if self._read() != text:
                return False
            tf.io.gfile.remove(self._path)
            if not self._create():
                return False
        return self._is_settled()

    def _watch(self, text: str, holder: Holder) -> str | None:
        """Watches the lock of a process that cannot be seen, until it has been silent for long.

        Returns:
          What stands in it at last; None if it was removed.

        Raises:
          ModelDirInUseError: If the process writes it anew all the time.
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
        """Whether nobody else has written the lock at the same time."""
        time.sleep(_SETTLE_S)
        return self._holder() == self._own

    def _in_use(self, holder: Holder) -> ModelDirInUseError:
        return ModelDirInUseError(
            f"{holder} has been training in model_dir {self._model_dir!r} since {holder.since}. A "
            "second training would overwrite its checkpoints: stop it, or choose another model_dir."
        )

    # Keeping it.

    def _beat(self) -> None:
        while not self._is_over.wait(BEAT_S):
            self._num_beats += 1
            # What cannot be written now may be the next time; a saver says what is wrong.
            with contextlib.suppress(OSError, tf.errors.OpError):
                holder = self._holder()
                if holder is None:  # Somebody has removed it.
                    self._create()
                elif holder.token in self._harmless:
                    self._write()

    # The file.

    def _text(self) -> str:
        """Returns what stands in the file: always of the same length."""
        return json.dumps({**asdict(self._own), "beats": f"{self._num_beats:010d}"}, indent=1)

    def _write(self) -> None:
        if is_remote(self._path):
            with tf.io.gfile.GFile(self._path, "w") as file:
                file.write(self._text())
            return
        # In place: whoever reads it, or finds it after a crash, sees a whole one.
        with open(self._path, "r+") as file:
            file.write(self._text())

    def _read(self) -> str | None:
        try:
            with tf.io.gfile.GFile(self._path) as file:
                return str(file.read())
        except (tf.errors.NotFoundError, UnicodeDecodeError) as error:
            return None if isinstance(error, tf.errors.NotFoundError) else ""

    def _holder(self) -> Holder | None:
        text = self._read()
        return None if text is None else _parse(text)


class _SaveIfHeld(v1.train.CheckpointSaverListener):  # type: ignore[misc]
    """Keeps a training from saving that has lost its lock."""

    def __init__(self, lock: _Lock) -> None:
        self._lock = lock

    def before_save(self, session: Any, global_step_value: int) -> None:
        self._lock.check()


@contextlib.contextmanager
def _alone_in(folder: str) -> Iterator[None]:
    """Lets one process at a time into the `with` block for a folder, where its file system can."""
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
    """Reads a lock's file; what was cut off, or is no lock, has an unknown holder."""
    try:
        values = json.loads(text)
        return Holder(**{name: kind(values[name]) for name, kind in _KINDS.items()})
    except (KeyError, TypeError, ValueError):
        return Holder()


_KINDS = {name: type(value) for name, value in asdict(Holder()).items()}


def _own_place() -> str:
    """Returns what has process numbers of its own: this boot, and this namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # Not Linux.
        return socket.gethostname()


def _started_s(pid: int) -> float | None:
    """Returns when a process of this place was started, in seconds since the boot."""
    booted_s = psutil.boot_time()  # Set forward or back with the clock, as is the other.
    try:
        process = psutil.Process(pid)
        is_gone = process.status() == psutil.STATUS_ZOMBIE
        return None if is_gone else float(process.create_time() - booted_s)
    except psutil.NoSuchProcess:
        return None


def _is_running(holder: Holder) -> bool:
    started_s = _started_s(holder.pid)
    return started_s is not None and abs(started_s - holder.started_s) < _SAME_START_S
