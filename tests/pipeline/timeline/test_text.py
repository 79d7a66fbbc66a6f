"""The text of a timeline, whole, and at the widths of terminals."""

from collections.abc import Callable

import pytest

from tfdist.pipeline.timeline.step_times import Timeline
from tfdist.pipeline.timeline.text import milliseconds, text_of

Simulate = Callable[..., Timeline]

PICTURE = """\
Interleaved: 2 stages x 3 micro-batches in 39.0 ms

device  stage  0 ms                                   19.5 ms                         39.0 ms   busy
GPU:0   0      0>1>......................0<<<2>..................1<<<....................2<<<   23 %
GPU:1   1      ..0>>>>>>>0<<<<<<<<<<<<<<<1>>>>>>>1<<<<<<<<<<<<<<<2>>>>>>>2<<<<<<<<<<<<<<<....   92 %

3>> forward of micro-batch 3   3<< its backward   ... the device is idle

stage  blocks  device  forward ms  backward ms  x mean  busy  activations kept
    0  conv    GPU:0         1.00         2.00    0.40  23 %                 2
    1  dense   GPU:1         4.00         8.00    1.60  92 %                 1

Slowest stage: 1 (dense), 12.0 ms a micro-batch, 1.60 x the mean of the stages (1.00 is an even
cut).
Devices busy 58 % of the time; at most 75 % in a pipeline of 2 even stages with 3 micro-batches.
"""


def test_an_uneven_cut_is_drawn_to_scale_with_its_table(simulate: Simulate) -> None:
    timeline = simulate("interleaved", 3, [0.001, 0.004], [0.002, 0.008], names=["conv", "dense"])
    assert text_of(timeline, 100) == PICTURE


@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_line_is_wider_than_asked(simulate: Simulate, width: int) -> None:
    names = ["embedding, " + ", ".join(f"encoder_{n}" for n in range(9)), "loss"]
    timeline = simulate("grouped", 16, [0.001] * 2, [0.002] * 2, replicas=2, names=names)
    lines = text_of(timeline, width).splitlines()
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if line.startswith("GPU:")]
    assert len(rows) == 4
    assert {len(row) for row in rows} == {width}


def test_boxes_without_room_for_a_number_show_their_direction(simulate: Simulate) -> None:
    row = text_of(simulate("interleaved", 200, [0.001] * 2, [0.001] * 2), 80).splitlines()[3]
    bar = row.split()[2]
    assert {">", "<"} <= set(bar) <= set("<>.")


def test_stages_on_one_device_have_a_row_each_and_dots_only_where_it_is_idle(
    simulate: Simulate,
) -> None:
    timeline = simulate("sequential", 1, [0.001] * 3, devices=[0, 1, 0])
    rows = [line[15:75] for line in text_of(timeline, 82).splitlines()[3:6]]
    assert rows == [
        "0>>>>>>>>>>>>>>>>>>>....................                    ",
        "                    ....................0>>>>>>>>>>>>>>>>>>>",
        "....................0>>>>>>>>>>>>>>>>>>>....................",
    ]


def test_names_that_look_like_marks_are_printed_as_they_are(simulate: Simulate) -> None:
    text = text_of(simulate("grouped", 1, [0.001], names=["[bold]B1[/bold] :smile:"]))
    assert "[bold]B1[/bold] :smile:" in text


def test_the_bound_is_told_only_where_each_stage_has_its_own_device(simulate: Simulate) -> None:
    alone = text_of(simulate("interleaved", 10, [0.001] * 4, [0.002] * 4))
    shared = text_of(simulate("grouped", 10, [0.001] * 4, [0.002] * 4, devices=[0, 1, 0, 1]))
    assert "busy 77 % of the time; at most 77 % in a pipeline of 4 even stages with 10" in alone
    assert "at most" not in shared


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.00"), (0.00000123, "0.00123"), (0.0123, "12.3"), (0.123, "123"), (12.3456, "12,346")],
)
def test_milliseconds_have_three_digits_that_count(seconds: float, text: str) -> None:
    assert milliseconds(seconds) == text
