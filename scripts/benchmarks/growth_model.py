"""A ring reduction's time as a formula, fitted to what was measured. Pure.

In a ring of n workers each sends 2(n-1) messages, each with 1/n of the gradients (Patarasuk and
Yuan, 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations"). A step that
computes first and reduces then takes

    t(n) = wait + overhead + local x bytes
         + 2(n-1) x latency + 2(n-1)/n x bytes / bandwidth

The wait stands for the computation and is known. "local" is what each worker does with each byte
alone: copies and the update.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Point:
    """A measured step: so many workers, bytes of gradients, seconds."""

    num_workers: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class RingModel:
    """The formula with its four constants, none of them negative.

    Attributes:
      wait_s: What stands for the computation.
      overhead_s: Of a step, whatever its size.
      local_s_per_byte: What a worker does alone.
      latency_s: Of one message to the neighbour in the ring.
      wire_s_per_byte: The inverse of the bandwidth.
    """

    wait_s: float
    overhead_s: float
    local_s_per_byte: float
    latency_s: float
    wire_s_per_byte: float

    def step_s(self, num_workers: int, num_bytes: float) -> float:
        """Returns the seconds of a step."""
        terms = _terms(num_workers, num_bytes)
        constants = self.overhead_s, self.local_s_per_byte, self.latency_s, self.wire_s_per_byte
        return self.wait_s + sum(a * b for a, b in zip(constants, terms, strict=True))

    def efficiency(self, num_workers: int, num_bytes: float) -> float:
        """Returns one worker's step over n workers' step, each with its own batch: 1 is ideal."""
        return self.step_s(1, num_bytes) / self.step_s(num_workers, num_bytes)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A model with how far it is from the points it was fitted to, as shares of their times."""

    model: RingModel
    median_error: float
    largest_error: float


def _terms(num_workers: int, num_bytes: float) -> tuple[float, float, float, float]:
    """Returns what each of the constants is multiplied by."""
    messages = 2 * (num_workers - 1)
    return 1.0, num_bytes, messages, messages / num_workers * num_bytes


def fit(points: Sequence[Point], wait_s: float) -> Fit:
    """Finds the constants whose relative errors have the least squares.

    Args:
      points: At least two numbers of workers and two sizes, so that the constants can be told
        apart.
      wait_s: What each of the steps waited.

    Raises:
      ValueError: If there are too few points.
    """
    workers, sizes = ({getattr(p, name) for p in points} for name in ("num_workers", "num_bytes"))
    if len(workers) < 2 or len(sizes) < 2:
        raise ValueError(
            f"The model can't be fitted to {len(workers)} number(s) of workers and {len(sizes)} "
            "size(s). Measure at least 2 of each."
        )
    times = np.array([point.seconds for point in points])
    matrix = np.array([_terms(point.num_workers, point.num_bytes) for point in points])
    # Each row is divided by its time, so that 1 % counts the same in short and in long steps; each
    # column by its largest number, since bytes are millions and messages are few.
    scales = np.maximum(matrix.max(axis=0), 1.0)
    scaled = _solve(matrix / scales / times[:, None], (times - wait_s) / times)
    constants = [float(one) for one in scaled / scales]
    model = RingModel(
        wait_s=wait_s,
        overhead_s=constants[0],
        local_s_per_byte=constants[1],
        latency_s=constants[2],
        wire_s_per_byte=constants[3],
    )
    errors = [
        abs(model.step_s(point.num_workers, point.num_bytes) / point.seconds - 1.0)
        for point in points
    ]
    return Fit(model=model, median_error=statistics.median(errors), largest_error=max(errors))


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
