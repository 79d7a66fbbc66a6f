"""The progress file of a worker: the training writes it, the launcher's agent reads it.

It is a small file that is mapped into memory: a step costs no system call, and the last values of a
process that was killed or hangs can still be read.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tfdist.process.imports import write_imports

_VARIABLE = "TFDIST_PROGRESS_FILE"
_VERSION = 6  # of the layout

PHASES = ("starting", "waiting", "training", "saving", "evaluating", "stopping", "leaving")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of one worker.

    Attributes:
      phase: One of `PHASES`: "starting" before the session runs and after it, "waiting" for other
        workers to come or to reach the same point, "training", "saving" a checkpoint,
        "evaluating", "stopping" on request (it saves, then leaves), "leaving": its work is over or
        has failed, and the process ends.
      total_steps: The global step at which training ends; -1 if not known.
      epoch: The epoch of Keras' `fit` that is running, from 1; -1 outside of one.
      total_epochs: The number of epochs; -1 outside of `fit`.
      step: Weight updates that are done, as the global step counts them; -1 before it is known.
      in_step: Whether it is inside a session call, where it waits for the other workers. A worker
        outside of one keeps the others waiting.
      waits_for_input: Whether the present call has taken seconds and still waits for this worker's
        own input, so that it keeps the others waiting.
      is_writing: Whether a checkpoint is being written beside the training.
      is_own_loop: Whether it is in code of a TensorFlow 2 program outside of `fit`, such as a loop
        of its own.
      counts_steps: Whether that loop has made a step, so that its steps are known: `step` counts
        those of this start, from 0.
      loss: The loss of the last step; NaN before it is known.
      examples: How many examples this worker has taken in since it started.
      time_s: `time.monotonic()` of the last change; on one machine all processes have one clock.
    """

    phase: str = "starting"
    total_steps: int = -1
    epoch: int = -1
    total_epochs: int = -1
    step: int = -1
    in_step: bool = False
    waits_for_input: bool = False
    loss: float = float("nan")
    examples: float = 0.0
    time_s: float = 0.0
    is_writing: bool = False
    is_own_loop: bool = False
    counts_steps: bool = False


# 8 bytes for each: a reader sees the value before or after a change, never half of it.
_KINDS = {
    name: "d" if isinstance(value, float) else "q" for name, value in vars(Progress()).items()
}
_PLACES = {name: 8 * place for place, name in enumerate(_KINDS, start=1)}
_LAYOUT = struct.Struct("=q" + "".join(_KINDS.values()))
_NUMBER, _FRACTION = struct.Struct("=q"), struct.Struct("=d")
_STEP = struct.Struct("=qqqddd")  # from step to time_s
_STRUCTS = {name: _NUMBER if kind == "q" else _FRACTION for name, kind in _KINDS.items()}


class ProgressFile:
    """The file of one worker.

    `write` creates it.

    Attributes:
      folder: Its folder: the agent's, who removes it when the worker's run ends.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.folder = path.parent
        self._map: mmap.mmap | None = None

    def write(self, **changes: Any) -> None:
        """Changes the named attributes, and the time; the others stay as they were.

        The first call of a process resets all values that another process left there.
        """
        if self._map is None:
            self._map = self._open()
        for name, value in changes.items():
            if name == "phase":
                value = PHASES.index(value)
            _STRUCTS[name].pack_into(self._map, _PLACES[name], value)
        _FRACTION.pack_into(self._map, _PLACES["time_s"], time.monotonic())

    def step_begins(self) -> None:
        """Notes the begin of a session call in under a microsecond; `time_s` does not change."""
        if self._map is None:
            self.write()
        _NUMBER.pack_into(self._map, _PLACES["in_step"], True)  # type: ignore[arg-type]

    def step_ends(self, *, step: int, loss: float, examples: float) -> None:
        """Notes the end of a session call and its results in about a microsecond."""
        if self._map is None:
            self.write()
        _STEP.pack_into(
            self._map,  # type: ignore[arg-type]
            _PLACES["step"],
            step,
            False,
            False,
            loss,
            examples,
            time.monotonic(),
        )

    def note_input(self, *, waits: bool) -> None:
        """Changes `waits_for_input` and not `time_s`: a wait is no progress."""
        if self._map is not None:
            _NUMBER.pack_into(self._map, _PLACES["waits_for_input"], waits)

    def note_writing(self, *, writes: bool) -> None:
        """Changes `is_writing` and not `time_s`, from any thread."""
        if self._map is not None:
            _NUMBER.pack_into(self._map, _PLACES["is_writing"], writes)

    def read(self) -> Progress | None:
        """Returns the values written last; None if nothing is written yet."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        if len(data) < _LAYOUT.size:
            return None
        version, *values = _LAYOUT.unpack_from(data)
        if version != _VERSION:  # 0: the file exists, but nothing is written yet
            return None
        named: dict[str, Any] = dict(zip(_KINDS, values, strict=True))
        for name, usual in vars(Progress()).items():
            if isinstance(usual, bool):
                named[name] = bool(named[name])
        return Progress(**{**named, "phase": PHASES[named["phase"]]})

    def _open(self) -> mmap.mmap:
        try:
            mapped = self._map_file()
        except OSError as error:  # A full disk is no reason to stop the training.
            sys.stderr.write(
                f"tfdist: the progress of this process is not shown, because {self._path} cannot "
                f"be written: {error.strerror}\n"
            )
            mapped = mmap.mmap(-1, mmap.PAGESIZE)
        unknown = {**vars(Progress()), "phase": PHASES.index(Progress.phase)}
        mapped[: _LAYOUT.size] = _LAYOUT.pack(_VERSION, *unknown.values())
        return mapped

    def _map_file(self) -> mmap.mmap:
        opened = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # A write to a page without a block on the disk would end the process with SIGBUS.
            os.posix_fallocate(opened, 0, mmap.PAGESIZE)
            return mmap.mmap(opened, mmap.PAGESIZE)
        finally:
            os.close(opened)


@cache
def _file_at(path: str) -> ProgressFile:
    return ProgressFile(Path(path))


def find_progress_file(environ: Mapping[str, str] = os.environ) -> ProgressFile | None:
    """Returns the file that the launcher asks this process to write; None without a launcher.

    All parts of a program get the same object, so that none resets the values of another.
    """
    path = environ.get(_VARIABLE, "")
    return _file_at(path) if path else None


class _Current:
    """The phase of this process, which other workers learn, with or without a launcher."""

    phase = Progress.phase
    since_s = time.monotonic()


def current_phase() -> tuple[str, float]:
    """Returns the phase of this process, and `time.monotonic()` of its beginning."""
    return _Current.phase, _Current.since_s


def set_phase(phase: str) -> str:
    """Sets the phase of this process, and writes it if a launcher reads it."""
    before = _Current.phase
    _Current.phase, _Current.since_s = phase, time.monotonic()
    file = find_progress_file()
    if file is not None:
        file.write(phase=phase)
    if phase == "training":
        write_imports()
    return before


@contextmanager
def in_phase(phase: str) -> Iterator[None]:
    """Sets the phase of this process for the `with` block, and restores the earlier one."""
    before = set_phase(phase)
    try:
        yield
    finally:
        set_phase(before)


def progress_environment(path: Path) -> dict[str, str]:
    """Returns the variable by which a launcher asks a worker to write this file."""
    return {_VARIABLE: os.fspath(path)}
