"""The time of a step with n workers as a formula, fitted to what was measured. Pure.

A step that computes first and reduces then takes

    t(n) = wait + crowd x (overhead + local x bytes
                           + messages(n) x latency + moved(n) x bytes / bandwidth)

The wait stands for the computation, takes no core, and is known. "local" is what each worker does
with each byte alone: copies and the update. Workers that share cores take turns on them, and all
wait for the last one: crowd is workers / cores, rounded up, and 1 where each worker has its own.
messages(n) and moved(n) are those of a shape: what a worker sends one after the other, and how many
times its gradients cross to others.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

LARGEST_ERROR = 0.15  # A formula that is further from a point it has not seen is not shown.
_FEWEST = 2  # numbers of workers, and sizes, to tell the constants apart


class Shape(Enum):
    """Ways in which workers add their gradients.

    RING: each passes a share of the gradients to its neighbour, 2(n-1) times (Patarasuk and Yuan,
      2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations").
    OWNERS: each sends the gradients to those who add them, and gets sums back: as many bytes as in
      a ring, in two rounds.
    DOUBLING: pairs swap all they have, log2(n) times; a number of workers that is no power of two
      takes a round before and one after (Thakur et al., 2005, "Optimization of collective
      communication operations in MPICH").
    """

    RING = "ring"
    OWNERS = "owners"
    DOUBLING = "recursive doubling"

    def messages(self, n: int) -> int:
        """Returns how many rounds of messages n workers need, one after the other."""
        if self is Shape.RING:
            return 2 * (n - 1)
        if self is Shape.OWNERS:
            return 2 if n > 1 else 0
        rounds = int(math.log2(n))
        return rounds + (2 if 2**rounds != n else 0)

    def moved(self, n: int) -> float:
        """Returns how many times a worker's gradients cross to others."""
        return self.messages(n) if self is Shape.DOUBLING else 2 * (n - 1) / n


@dataclass(frozen=True, kw_only=True)
class Point:
    """A measured step: so many workers, bytes of gradients, seconds."""

    num_workers: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class StepModel:
    """The formula with its four constants, none of them negative.

    Attributes:
      shape: How the workers add their gradients.
      wait_s: What stands for the computation.
      overhead_s: Of a step, whatever its size.
      local_s_per_byte: What a worker does alone.
      latency_s: Of one message.
      wire_s_per_byte: The inverse of the bandwidth.
    """

    shape: Shape
    wait_s: float
    overhead_s: float
    local_s_per_byte: float
    latency_s: float
    wire_s_per_byte: float

    def step_s(self, num_workers: int, num_bytes: float, num_cores: int | None = None) -> float:
        """Returns the seconds of a step; without a number of cores each worker has its own."""
        terms = _terms(self.shape, num_workers, num_bytes, num_cores or num_workers)
        constants = self.overhead_s, self.local_s_per_byte, self.latency_s, self.wire_s_per_byte
        return self.wait_s + sum(a * b for a, b in zip(constants, terms, strict=True))

    def efficiency(self, num_workers: int, num_bytes: float) -> float:
        """Returns one worker's step over n workers' step, each with its own batch: 1 is ideal."""
        return self.step_s(1, num_bytes) / self.step_s(num_workers, num_bytes)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A model with its errors, as shares of the measured times.

    Attributes:
      model: The formula.
      median_error: Over the points it was fitted to.
      left_out_error: The largest over points that it had not seen: each number of workers above
        two is left out in turn, and the others are fitted. Infinite where there is none to leave
        out.
    """

    model: StepModel
    median_error: float
    left_out_error: float

    @property
    def holds(self) -> bool:
        """True if it may be shown."""
        return self.left_out_error <= LARGEST_ERROR


def _terms(
    shape: Shape, num_workers: int, num_bytes: float, num_cores: int
) -> tuple[float, float, float, float]:
    """Returns what each of the constants is multiplied by."""
    crowd = math.ceil(num_workers / num_cores)
    moved = shape.moved(num_workers) * num_bytes
    return crowd, crowd * num_bytes, crowd * shape.messages(num_workers), crowd * moved


def best_fit(
    points: Sequence[Point], wait_s: float, num_cores: int, shapes: Iterable[Shape]
) -> Fit:
    """Returns the fit of the shape that predicts best what it has not seen."""
    fits = [fit(points, wait_s, num_cores, shape) for shape in shapes]
    return min(fits, key=lambda one: (one.left_out_error, one.median_error))


def fit(points: Sequence[Point], wait_s: float, num_cores: int, shape: Shape) -> Fit:
    """Finds the constants whose relative errors have the least squares.

    Args:
      points: At least two numbers of workers and two sizes, so that the constants can be told
        apart.
      wait_s: What each of the steps waited.
      num_cores: Which all workers shared.
      shape: How they added their gradients.

    Raises:
      ValueError: If there are too few points.
    """
    workers, sizes = ({getattr(p, name) for p in points} for name in ("num_workers", "num_bytes"))
    if len(workers) < _FEWEST or len(sizes) < _FEWEST:
        raise ValueError(
            f"The model can't be fitted to {len(workers)} number(s) of workers and {len(sizes)} "
            f"size(s). Measure at least {_FEWEST} of each."
        )
    model = _solved(points, wait_s, num_cores, shape)
    unseen = []
    for count in sorted(workers)[_FEWEST:]:
        others = _solved([p for p in points if p.num_workers != count], wait_s, num_cores, shape)
        unseen += _errors(others, [p for p in points if p.num_workers == count], num_cores)
    return Fit(
        model=model,
        median_error=statistics.median(_errors(model, points, num_cores)),
        left_out_error=max(unseen, default=math.inf),
    )


def _errors(model: StepModel, points: Iterable[Point], num_cores: int) -> list[float]:
    return [
        abs(model.step_s(point.num_workers, point.num_bytes, num_cores) / point.seconds - 1.0)
        for point in points
    ]


def _solved(points: Sequence[Point], wait_s: float, num_cores: int, shape: Shape) -> StepModel:
    times = np.array([point.seconds for point in points])
    matrix = np.array([_terms(shape, p.num_workers, p.num_bytes, num_cores) for p in points])
    # Each row is divided by its time, so that 1 % counts the same in short and in long steps; each
    # column by its largest number, since bytes are millions and messages are few.
    scales = np.maximum(matrix.max(axis=0), 1.0)
    scaled = _solve(matrix / scales / times[:, None], (times - wait_s) / times)
    constants = [float(one) for one in scaled / scales]
    return StepModel(
        shape=shape,
        wait_s=wait_s,
        overhead_s=constants[0],
        local_s_per_byte=constants[1],
        latency_s=constants[2],
        wire_s_per_byte=constants[3],
    )


def _solve(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Returns the x >= 0 with the least squares of matrix x - right.

    Where it is not 0 it solves the problem of these columns alone; with four columns all 15 choices
    can be tried.
    """
    count = matrix.shape[1]
    best, least = np.zeros(count), float(right @ right)
    for size in range(1, count + 1):
        for columns in map(list, itertools.combinations(range(count), size)):
            x = np.zeros(count)
            x[columns] = np.linalg.lstsq(matrix[:, columns], right, rcond=None)[0]
            squares = float(np.sum((matrix @ x - right) ** 2))
            if x.min() >= 0 and squares < least:
                best, least = x, squares
    return best
