"""The figures of the curves: runs of one training in several layouts, compared step by step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A way to spread the micro-batches of a step.

    Attributes:
      workers: Worker processes.
      replicas: Replicas of each worker.
      accumulation: Micro-batches of each replica in a step.
    """

    workers: int
    replicas: int
    accumulation: int

    @property
    def num_micro_batches(self) -> int:
        return self.workers * self.replicas * self.accumulation

    def __str__(self) -> str:
        return f"{self.workers} x {self.replicas} x {self.accumulation}"


@dataclass(frozen=True, kw_only=True)
class Run:
    """The log of one run.

    Attributes:
      layout: Its layout.
      engine: "gRPC" or "Horovod"; "one worker" has neither.
      losses: The loss of each step, a mean over all workers, from step 1 on.
      accuracy: The accuracy at the end, in percent; None if it was not measured.
    """

    layout: Layout
    engine: str
    losses: Sequence[float]
    accuracy: float | None = None

    @property
    def name(self) -> str:
        return f"{self.layout}, {self.engine}"


def largest_difference(losses: Sequence[float], first: Sequence[float]) -> tuple[float, int]:
    """Compares the losses of a run with those of the first run, step by step.

    Returns:
      The largest relative difference of a step's loss, and the step, from 1. A NaN differs from
      everything by infinity.

    Raises:
      ValueError: If the runs have not as many steps.
    """
    if len(losses) != len(first):
        raise ValueError(
            f"the runs have {len(first)} and {len(losses)} steps; only as many can be compared. "
            "Measure the training again."
        )
    found = [_relative(a, b) for a, b in zip(losses, first, strict=True)]
    return max(found), found.index(max(found)) + 1


def _relative(value: float, expected: float) -> float:
    if math.isnan(value) or math.isnan(expected):
        return math.inf
    return abs(value - expected) / abs(expected) if expected else abs(value)


HEADER = (
    "training",
    "runs",
    "loss, first to last step",
    "largest relative difference",
    "accuracy, %",
)


def curve_line(title: str, runs: Sequence[Run]) -> list[str]:
    """Returns a training's line of the table, below HEADER; differences are from the first run."""
    first = runs[0].losses
    found = [(*largest_difference(run.losses, first), run.name) for run in runs[1:]]
    value, step, name = max(found)
    accuracies = dict.fromkeys(f"{one.accuracy:.2f}" for one in runs if one.accuracy is not None)
    return [
        title,
        str(len(runs)),
        f"{first[0]:.4f} to {first[-1]:.4f}",
        f"{value:.1e} ({name}, step {step})",
        ", ".join(accuracies),
    ]


def missed(curves: Mapping[str, Sequence[Run]], *, difference: float, points: float) -> list[str]:
    """Returns a line for each run that differs from the first one by more than is allowed.

    Args:
      curves: Runs by the name of their training.
      difference: The largest relative difference of a step's loss.
      points: The largest difference of the accuracies at the end, in percentage points.
    """
    lines = []
    for name, runs in curves.items():
        first = runs[0]
        for run in runs[1:]:
            value, step = largest_difference(run.losses, first.losses)
            if value > difference:
                lines.append(
                    f"{name}, {run.name}: the loss of step {step} differs by "
                    f"{value:.1e}, more than {difference:.0e}"
                )
            if first.accuracy is None or run.accuracy is None:
                continue
            distance = abs(run.accuracy - first.accuracy)
            if distance > points:
                lines.append(
                    f"{name}, {run.name}: the accuracy differs by {distance:.2f} points, more than "
                    f"{points:g}"
                )
    return lines
