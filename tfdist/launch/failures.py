"""Which worker failed first, and how: what is told about it, and by whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

FailureKind = Literal["exited", "signal", "stalled", "silent", "ended early"]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The worker that is to blame for the end of a run, and what is known about it.

    Attributes:
      name: What messages call it: "worker 0", "evaluator".
      index: Its number in the run.
      host: Where it ran; "localhost" for this machine.
      pid: Its process; None if it never started.
      kind: "exited" with an exit code that is not 0; ended by a "signal"; "stalled": it made no
        step for too long; "silent": its host does not answer; "ended early": with exit code 0,
        while the others needed it.
      code: The exit code, or the number of the signal that ended it; None if it did not end.
      after_s: Seconds from the start of the run until it failed.
      at: When it failed.
      step: Weight updates that were done; None if not known.
      log_tail: The last lines that it printed.
      log_path: Where all that it printed is kept.
      detail: What else is known, in words: "made no step for 60 s, process state: stopped
        (SIGSTOP)", "does not answer since 12:04:31".
    """

    name: str
    index: int
    host: str
    pid: int | None
    kind: FailureKind
    code: int | None
    after_s: float
    at: datetime
    step: int | None
    log_tail: Sequence[str]
    log_path: Path
    detail: str = ""
