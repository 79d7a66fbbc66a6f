"""Pipeline schedules: the tick of each stage's forward and backward of each micro-batch.

A schedule consists of two formulas, one for the tick of a forward and one for the tick of a
backward. The formulas satisfy three rules:

- A forward is after the forward of the same micro-batch on the previous stage.
- A backward is after the backward of the same micro-batch on the next stage, and after its own
  forward.
- A stage does at most one box in a tick.

A box is one stage's forward or backward of one micro-batch. `draw` shows a schedule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Schedule = Literal["grouped", "interleaved", "sequential"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)


@dataclass(frozen=True, order=True)
class Box:
    """One stage's forward or backward of one micro-batch."""

    stage: int  # From 0, in the order of the forward pass.
    micro_batch: int  # From 0, within one weight update.
    backward: bool  # False for the forward pass.

    @property
    def label(self) -> str:
        """The direction and the micro-batch, such as `F0` or `B12`."""
        return f"{'B' if self.backward else 'F'}{self.micro_batch}"


# The boxes that are done at the same time, by rising stage.
Tick: TypeAlias = tuple[Box, ...]


def training_ticks(schedule: Schedule, num_stages: int, num_micro_batches: int) -> list[Tick]:
    """Returns the schedule of the forward and backward passes of one weight update.

    - "sequential": one stage works at a time. A micro-batch goes forward through all stages and
      back before the next one starts. A stage keeps one activation.
    - "interleaved": stage k starts with `num_stages - k` forwards. Then it alternates between one
      backward and one forward, and it ends with the remaining backwards. While all stages work,
      every second stage does a forward and the other ones do a backward. Stage k keeps at most
      `num_stages - k` activations. The schedule is known as 1F1B: PipeDream (Narayanan et al.,
      2019), with one update after the pipeline has run empty, as in PipeDream-Flush (Narayanan et
      al., 2021) and Megatron-LM.
    - "grouped": ticks of forwards and ticks of backwards alternate. In a tick of forwards, all
      stages that have a forward to do work, and likewise for backwards. Stage k keeps at most
      `2 * (num_stages - k) - 1` activations.

    Grouped and interleaved take the same number of ticks, `2 * (num_micro_batches + num_stages -
    1)`. No tick is empty; its boxes are sorted by stage.

    Raises:
      ValueError: If the schedule is not known or a number is below 1.
    """
    _check(schedule, num_stages, num_micro_batches)
    return _lay_out(num_stages, num_micro_batches, _FORMULAS[schedule])


def inference_ticks(schedule: Schedule, num_stages: int, num_micro_batches: int) -> list[Tick]:
    """Returns the schedule of the forward passes of an inference call.

    Sequential does one box in a tick, micro-batch after micro-batch. Grouped and interleaved are
    the same here: stage k does micro-batch m at tick k + m. Ticks and errors are as in
    `training_ticks`.
    """
    _check(schedule, num_stages, num_micro_batches)
    forward, _ = _FORMULAS["sequential" if schedule == "sequential" else "grouped"]
    return _lay_out(num_stages, num_micro_batches, [forward])


def in_order(tick: Tick) -> list[Box]:
    """Returns the boxes of a tick in the order for a device that does them one by one.

    Backwards come first, since they free activations, from the last stage to the first. Forwards
    follow, from the first stage to the last. Devices that keep to the order of the ticks, and to
    this one within a tick, cannot deadlock: every box depends on boxes of earlier ticks only.
    """
    return sorted(tick, key=lambda b: (not b.backward, -b.stage if b.backward else b.stage))


def activations_kept(ticks: Sequence[Tick], num_stages: int) -> list[int]:
    """Returns for each stage the most micro-batches with activations that it keeps at once.

    Activations are kept from the tick of the forward to the tick of the backward, both included. A
    forward without a backward, as in inference, keeps none.
    """
    returning = {(box.stage, box.micro_batch) for tick in ticks for box in tick if box.backward}
    kept, most = [0] * num_stages, [0] * num_stages
    for box in (box for tick in ticks for box in tick):
        if box.backward:
            kept[box.stage] -= 1
        elif (box.stage, box.micro_batch) in returning:
            kept[box.stage] += 1
        most[box.stage] = max(most[box.stage], kept[box.stage])
    return most


def smallest_accumulation(num_stages: int) -> int:
    """Returns the smallest number of micro-batches that fills a training pipeline: 2N - 1.

    In a grouped schedule the first micro-batch passes N stages forward and N - 1 more on its way
    back to stage 0. With fewer micro-batches there is no time at which all stages have both a
    forward and a backward to do.
    """
    return 2 * num_stages - 1


def busy_share_bound(schedule: Schedule, num_stages: int, num_micro_batches: int) -> float:
    """Returns the upper bound of the share of time in which the devices work, from 0 to 1.

    It holds in training and in inference for stages that take equally long and have one device
    each; a backward may take longer than a forward. For m micro-batches and n stages the bound is
    1 / n if one stage works at a time, and m / (m + n - 1) otherwise. The rest is the bubble of
    GPipe, (n - 1) / (m + n - 1) (Huang et al., 2019, section 2.3). The bound times n is the largest
    possible speedup over one stage at a time.

    Raises:
      ValueError: If the schedule is not known or a number is below 1.
    """
    _check(schedule, num_stages, num_micro_batches)
    if schedule == "sequential":
        return 1 / num_stages
    return num_micro_batches / (num_micro_batches + num_stages - 1)


def draw(ticks: Sequence[Tick], num_stages: int) -> str:
    """Returns a drawing of a schedule: one row a stage, one column a tick, dots for an idle stage.

    >>> print(draw(training_ticks("interleaved", 2, 2), 2))
    stage 0  F0 F1 .. B0 .. B1
    stage 1  .. F0 B0 F1 B1 ..
    """
    width = max((len(box.label) for tick in ticks for box in tick), default=0)
    name_width = len(f"stage {num_stages - 1}")
    rows = [[f"stage {stage}".ljust(name_width) + " "] for stage in range(num_stages)]
    for tick in ticks:
        labels = {box.stage: box.label for box in tick}
        for stage, row in enumerate(rows):
            row.append(labels.get(stage, "." * width).ljust(width))
    return "\n".join(" ".join(row).rstrip() for row in rows)


def _interleaved_forward(num_stages: int, stage: int, micro_batch: int) -> int:
    if micro_batch < num_stages - stage:  # Before the first backward: as early as possible.
        return stage + micro_batch
    return stage + 2 * micro_batch  # Right after the backward that frees the oldest activation.


# (num_stages, stage, micro_batch) -> tick, of the forward and of the backward.
_Formula: TypeAlias = Callable[[int, int, int], int]
_FORMULAS: dict[Schedule, tuple[_Formula, _Formula]] = {
    # Even ticks are for forwards, odd ones for backwards; empty ticks are left out.
    "grouped": (
        lambda n, k, m: 2 * (k + m),
        lambda n, k, m: 2 * (2 * n - 2 - k + m) + 1,
    ),
    "interleaved": (
        _interleaved_forward,
        lambda n, k, m: 2 * n - 1 - k + 2 * m,
    ),
    "sequential": (
        lambda n, k, m: 2 * n * m + k,
        lambda n, k, m: 2 * n * m + 2 * n - 1 - k,
    ),
}


def _lay_out(num_stages: int, num_micro_batches: int, formulas: Sequence[_Formula]) -> list[Tick]:
    """Returns the ticks with a box for each formula: of the forwards, and of the backwards."""
    at: defaultdict[int, list[Box]] = defaultdict(list)
    for stage in range(num_stages):
        for micro_batch in range(num_micro_batches):
            for backward, tick_of in zip((False, True), formulas, strict=False):
                tick = tick_of(num_stages, stage, micro_batch)
                at[tick].append(Box(stage, micro_batch, backward))
    return [tuple(at[tick]) for tick in sorted(at)]


def _check(schedule: Schedule, num_stages: int, num_micro_batches: int) -> None:
    if schedule not in SCHEDULES:
        raise ValueError(
            f"schedule is {schedule!r}, and may be one of: {', '.join(map(repr, SCHEDULES))}."
        )
    for name, number in (("num_stages", num_stages), ("num_micro_batches", num_micro_batches)):
        if number < 1:
            raise ValueError(f"{name} is {number}, and is at least 1.")
