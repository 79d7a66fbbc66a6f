"""How each worker of a run is, in words, and who keeps the others waiting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfdist.cluster.progress import Progress
from tfdist.launch.pace import Pace, run_step
from tfdist.launch.sightings import Sighting


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a worker is, in words.

    Attributes:
      name: What messages call it.
      word: "training", "stopped", "no step", …
      late_s: For how long it has made no step; 0 if that is nothing special.
      step: Its step; -1 if not known.
      is_trouble: Whether somebody should look at it.
    """

    name: str
    word: str
    late_s: int = 0
    step: int = -1
    is_trouble: bool = False

    def __str__(self) -> str:
        return f"{self.word} for {self.late_s} s" if self.late_s else self.word


def worker_standings(
    now_s: float, pace: Pace, workers: Mapping[int, Sighting]
) -> tuple[Standing, ...]:
    """Returns how each worker is; where several make no step, who keeps the others waiting."""
    late = pace.late(now_s, workers)
    is_held_up = any(w.condition in ("stopped", "silent") for w in workers.values()) or any(
        _holds_up(_progress(workers[index])) for index in late
    )
    furthest = run_step(workers)
    standings = []
    for index, worker in workers.items():
        progress = _progress(worker)
        # What tells nothing may be any program.
        word = progress.phase if worker.progress is not None else "running"
        late_s, is_trouble = 0, False
        if worker.condition != "running":
            word, is_trouble = worker.condition, worker.condition != "ended"
        elif index in late and is_held_up and not _holds_up(progress):
            word = "waiting"
        elif index in late:
            word = "no input" if progress.waits_for_input else "no step"
            late_s, is_trouble = int(late[index]), True
        elif word == "training" and not worker.is_evaluator and 0 <= progress.step < furthest - 1:
            word, is_trouble = "behind", True
        standings.append(
            Standing(
                name=worker.name,
                word=word,
                late_s=late_s,
                step=progress.step,
                is_trouble=is_trouble,
            )
        )
    return tuple(standings)


def _holds_up(progress: Progress) -> bool:
    """Returns whether the others wait for this one: in a step each waits for all others."""
    return not progress.in_step or progress.waits_for_input


def _progress(worker: Sighting) -> Progress:
    return worker.progress or Progress()
