"""The figures of the pipeline benchmark: ratios of times, each with its target and bound."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

# The contenders, as the tables name them.
PLAIN, PLAIN_BOTH, WHOLE = "plain", "plain, both cores", "plain, whole batch at once"
SHARDED_ONE, SHARDED = "sharded, 2 stages, one core", "sharded, 2 stages"
PIPELINED, GROUPED = "pipelined, 2 stages", "pipelined, 2 stages, grouped"
PIPELINED_4 = "pipelined, 4 stages"

Times: TypeAlias = Mapping[str, Sequence[float]]
Cut: TypeAlias = list[list[int]]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A ratio of two contenders' times, with what is asked and what is possible.

    Attributes:
      over: The contender whose time is above the line.
      under: The one below.
      better: Which ratios are better ones.
      target: The worst ratio that will do; None if nothing is asked.
      bound: The best ratio possible; None if there is no formula.
      formula: Where the bound comes from.
    """

    over: str
    under: str
    better: Literal["higher", "lower"] = "higher"
    target: float | None = None
    bound: float | None = None
    formula: str = ""

    @property
    def name(self) -> str:
        return f"{self.over} / {self.under}"

    @property
    def asked(self) -> str:
        """The target with its sign; empty if nothing is asked."""
        if self.target is None:
            return ""
        return f"{'>=' if self.better == 'higher' else '<='} {self.target:g}"

    def ratios(self, times: Times) -> list[float]:
        """Divides round by round."""
        return [a / b for a, b in zip(times[self.over], times[self.under], strict=True)]

    def ratio_of_fastest(self, times: Times) -> float:
        """Divides the fastest rounds, which others disturbed least."""
        return min(times[self.over]) / min(times[self.under])

    def missed_by(self, ratio: float) -> float:
        """Returns how far a ratio is from the target; 0 if it reaches it."""
        if self.target is None:
            return 0.0
        short = self.target - ratio if self.better == "higher" else ratio - self.target
        return max(0.0, short)


def figures(micro_batches: int, stage_times: Sequence[float]) -> list[Figure]:
    """Lists the ratios with a target, then the others.

    Args:
      micro_batches: Of one weight update.
      stage_times: Of the two stages, for one micro-batch.
    """
    m = micro_batches
    return [
        Figure(
            over=SHARDED,
            under=PIPELINED,
            target=1.8,
            bound=2 * m / (m + 1),
            formula=f"2m/(m+1); with this cut {speedup_bound(stage_times, m):.3f}",
        ),
        Figure(
            over=SHARDED_ONE,
            under=PLAIN,
            better="lower",
            target=1.05,
            bound=1.0,
            formula="the same operations",
        ),
        Figure(
            over=PIPELINED,
            under=PIPELINED_4,
            target=1.0,
            bound=(m + 1) / (m + 0.25),
            formula="(m+1)/(m+1/4): a core idle only for the first and last quarter",
        ),
        Figure(over=SHARDED, under=GROUPED, bound=2 * m / (m + 1), formula="2m/(m+1)"),
        Figure(over=PLAIN, under=PIPELINED, bound=2 * m / (m + 1), formula="2m/(m+1)"),
        Figure(over=PLAIN_BOTH, under=PIPELINED),
        Figure(over=WHOLE, under=PIPELINED),
        Figure(over=SHARDED_ONE, under=WHOLE, better="lower"),
    ]


def speedup_bound(stage_times: Sequence[float], micro_batches: int) -> float:
    """Returns sharded over pipelined time of two stages if the slower one works without a pause."""
    m = micro_batches
    return m * sum(stage_times) / (m * max(stage_times) + min(stage_times))


def balanced_cut(block_times: Sequence[float], num_stages: int) -> Cut:
    """Cuts a row of blocks so that the slowest stage is as fast as it can be.

    Returns:
      The numbers of each stage's blocks.
    """
    numbers = list(range(len(block_times)))
    cuts = (
        [numbers[a:b] for a, b in itertools.pairwise((0, *inner, len(numbers)))]
        for inner in itertools.combinations(numbers[1:], num_stages - 1)
    )
    return min(cuts, key=lambda cut: max(sum(block_times[n] for n in stage) for stage in cut))


def imbalance(stage_times: Sequence[float]) -> float:
    """Returns by what share the slowest stage is slower than the mean: 0 is an even cut."""
    return max(stage_times) / statistics.mean(stage_times) - 1.0
