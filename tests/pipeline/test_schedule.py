"""The rules that all schedules keep at all sizes; test_guide.py has their drawings."""

import doctest
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.pipeline import schedule as schedule_module
from tfdist.pipeline.schedule import (
    SCHEDULES,
    Box,
    Schedule,
    Tick,
    activations_kept,
    busy_share_bound,
    draw,
    in_order,
    inference_ticks,
    smallest_accumulation,
    training_ticks,
)

SCHEDULE = st.sampled_from(SCHEDULES)
STAGES = st.integers(1, 7)
MICRO_BATCHES = st.integers(1, 20)

few = settings(derandomize=True, deadline=None, max_examples=40, database=None)


def picture(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


def laid_out(schedule: Schedule, stages: int, micro_batches: int, trains: bool) -> list[Tick]:
    return (training_ticks if trains else inference_ticks)(schedule, stages, micro_batches)


def ticks_of(ticks: Sequence[Tick]) -> dict[Box, int]:
    return {box: number for number, tick in enumerate(ticks) for box in tick}


@pytest.mark.parametrize("schedule", ["grouped", "interleaved"])
def test_inference_moves_every_micro_batch_on_by_a_stage_a_tick(schedule: Schedule) -> None:
    assert draw(inference_ticks(schedule, 3, 5), 3) == picture("""
        stage 0  F0 F1 F2 F3 F4 .. ..
        stage 1  .. F0 F1 F2 F3 F4 ..
        stage 2  .. .. F0 F1 F2 F3 F4
    """)


def test_sequential_inference_takes_one_micro_batch_after_the_other() -> None:
    assert draw(inference_ticks("sequential", 2, 3), 2) == picture("""
        stage 0  F0 .. F1 .. F2 ..
        stage 1  .. F0 .. F1 .. F2
    """)


def test_columns_are_as_wide_as_the_longest_number() -> None:
    assert draw(inference_ticks("grouped", 1, 11), 1).endswith("F8  F9  F10")


@few
@given(SCHEDULE, STAGES, MICRO_BATCHES, st.booleans())
def test_every_box_is_done_once_after_those_it_needs_and_one_of_a_stage_in_a_tick(
    schedule: Schedule, stages: int, micro_batches: int, trains: bool
) -> None:
    ticks = laid_out(schedule, stages, micro_batches, trains)
    directions = (False, True) if trains else (False,)
    every = itertools.product(range(stages), range(micro_batches), directions)
    assert sorted(box for tick in ticks for box in tick) == sorted(Box(*one) for one in every)
    for tick in ticks:
        assert tick == tuple(sorted(tick))
        assert len({box.stage for box in tick}) == len(tick) > 0
    tick_of = ticks_of(ticks)
    for box, number in tick_of.items():
        needed = needs(box, stages)
        if box.micro_batch:  # A stage takes the micro-batches by rising number.
            needed.append(Box(box.stage, box.micro_batch - 1, box.backward))
        assert all(tick_of[one] < number for one in needed)


@few
@given(SCHEDULE, STAGES, MICRO_BATCHES)
def test_activations_kept_follow_from_the_schedule_and_inference_keeps_none(
    schedule: Schedule, stages: int, micro_batches: int
) -> None:
    kept = activations_kept(training_ticks(schedule, stages, micro_batches), stages)
    most = {
        "sequential": [1] * stages,
        "interleaved": [stages - stage for stage in range(stages)],
        "grouped": [2 * (stages - stage) - 1 for stage in range(stages)],
    }
    assert kept == [min(number, micro_batches) for number in most[schedule]]
    forward_only = inference_ticks(schedule, stages, micro_batches)
    assert activations_kept(forward_only, stages) == [0] * stages


@few
@given(st.integers(2, 7), st.integers(0, 8))
def test_interleaved_at_full_use_has_every_other_stage_go_forward(stages: int, more: int) -> None:
    ticks = training_ticks("interleaved", stages, smallest_accumulation(stages) + more)
    started = ticks_of(ticks)[Box(0, 0, backward=True)]
    full = [tick for tick in ticks[started:] if len(tick) == stages]
    assert full
    for tick in full:
        assert all(one.backward != other.backward for one, other in itertools.pairwise(tick))


@few
@given(STAGES, MICRO_BATCHES)
def test_grouped_does_not_mix_directions_in_a_tick(stages: int, micro_batches: int) -> None:
    for tick in training_ticks("grouped", stages, micro_batches):
        assert len({box.backward for box in tick}) == 1


@few
@given(st.integers(1, 7))
def test_the_smallest_accumulation_just_fills_a_grouped_pipeline(stages: int) -> None:
    assert smallest_accumulation(stages) == 2 * stages - 1
    assert fills_both_ways(training_ticks("grouped", stages, 2 * stages - 1), stages)
    assert stages == 1 or not fills_both_ways(
        training_ticks("grouped", stages, 2 * stages - 2), stages
    )


def fills_both_ways(ticks: list[Tick], stages: int) -> bool:
    """Says whether all stages work in a tick of forwards and in the tick of backwards after it."""
    return any(
        len(one) == len(other) == stages and not one[0].backward and other[0].backward
        for one, other in itertools.pairwise(ticks)
    )


@few
@given(SCHEDULE, STAGES, MICRO_BATCHES, st.booleans())
def test_the_bound_is_the_share_of_places_in_the_drawing_that_have_a_box(
    schedule: Schedule, stages: int, micro_batches: int, trains: bool
) -> None:
    ticks = laid_out(schedule, stages, micro_batches, trains)
    share = sum(map(len, ticks)) / (stages * len(ticks))
    assert busy_share_bound(schedule, stages, micro_batches) == pytest.approx(share)


def test_stages_on_one_device_go_back_first_and_from_the_end() -> None:
    tick = tuple(Box(stage, 5 - stage, stage in (1, 3)) for stage in range(4))
    order = [(box.stage, box.backward) for box in in_order(tick)]
    assert order == [(3, True), (1, True), (0, False), (2, False)]


def needs(box: Box, stages: int) -> list[Box]:
    """The boxes that a box needs: written here again, apart from the code under test."""
    if not box.backward:
        return [Box(box.stage - 1, box.micro_batch, False)] if box.stage else []
    behind = [Box(box.stage + 1, box.micro_batch, True)] if box.stage + 1 < stages else []
    return [Box(box.stage, box.micro_batch, False), *behind]


def test_an_unknown_schedule_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"schedule is '1f1b', .*'grouped', 'interleaved', 'seq"):
        training_ticks("1f1b", 2, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [(0, 3), (2, 0)])
def test_nothing_to_do_is_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="is 0, and is at least 1"):
        inference_ticks("grouped", *sizes)


def test_the_example_in_the_documentation_is_what_comes_out() -> None:
    assert doctest.testmod(schedule_module) == (0, 1)
