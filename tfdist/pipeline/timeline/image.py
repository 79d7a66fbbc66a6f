"""Picture of a timeline: a PNG with one row per device, to scale, drawn with matplotlib."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from tfdist.pipeline.timeline.step_times import DeviceTimes, TimedBox, Timeline
from tfdist.pipeline.timeline.text import (
    headline,
    milliseconds,
    percent,
    shortened,
    verdict_on_cut,
    verdict_on_use,
)
from tfdist.profile.picture import COLOURS, GREY, legend_patches, new_figure, save

_FORWARD, _BACKWARD = COLOURS["forward"], COLOURS["backward"]
_NUMBER_ON_FORWARD, _NUMBER_ON_BACKWARD = "white", "black"
_BOX_HEIGHT = 0.8  # Share of a lane's height.

# Inches. The margins around the lanes have the same size in every picture.
_LANE, _ABOVE, _BELOW, _EDGE = 0.5, 1.45, 0.55, 0.25
_COLUMN, _LETTER = 0.68, 0.085
_PER_BOX, _SMALLEST_PLOT, _LARGEST_PLOT = 0.24, 7.0, 20.0

_POINTS_PER_INCH, _DIGIT_WIDTH = 72, 0.64  # Width of a digit, relative to the font size.
_LARGEST_NUMBER, _SMALLEST_NUMBER = 9.0, 5.0  # Font sizes, in points.
_NARROW = 2.0  # Points. Narrower boxes get no white edge.

_UNEVEN = 1.05
_HEADS = ("busy", "forward\nms", "backward\nms", "x mean", "kept")


def save_image(timeline: Timeline, path: str | os.PathLike[str]) -> None:
    """Draws a timeline and writes it as a PNG.

    A device that several stages share has one lane for each of them. To the right of a lane are the
    busy share of its device and the numbers of its stage: the mean time of a forward and of a
    backward, their sum relative to the mean of all stages, and the activations kept. The numbers of
    the slowest stage are bold, unless the cut is even to 5 %.

    Raises:
      ImportError: If matplotlib is not installed; a message of one line.
    """
    layout = _lay_out(timeline)
    figure = new_figure(layout.width, layout.height)
    axes = figure.add_axes(
        (
            layout.left / layout.width,
            _BELOW / layout.height,
            layout.plot / layout.width,
            _LANE * len(layout.lanes) / layout.height,
        )
    )
    _set_up_axes(axes, timeline, layout)
    for row, lane in enumerate(layout.lanes):
        _draw_lane(axes, timeline, layout, row, lane)
        _write_beside(axes, timeline, layout, row, lane)
    _write_above(figure, axes, timeline, layout)
    save(figure, path)


@dataclass(frozen=True, kw_only=True)
class _Lane:
    device: DeviceTimes
    replica: int
    stage: int
    name: str
    is_first: bool  # The first lane of its device.

    @property
    def key(self) -> tuple[int, int]:
        return self.replica, self.stage


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """The lanes and sizes of a picture, in inches; font sizes are in points."""

    lanes: tuple[_Lane, ...]
    left: float
    plot: float
    forward_points: float
    backward_points: float

    @property
    def width(self) -> float:
        return self.left + self.plot + _COLUMN * len(_HEADS) + _EDGE

    @property
    def height(self) -> float:
        return _ABOVE + _LANE * len(self.lanes) + _BELOW


def _lay_out(timeline: Timeline) -> _Layout:
    lanes = tuple(
        _Lane(
            device=device,
            replica=replica,
            stage=stage,
            name=_lane_name(timeline, replica, stage),
            is_first=number == 0,
        )
        for device in timeline.devices
        for number, (replica, stage) in enumerate(device.lanes)
    )
    most_letters = max(len(name) for lane in lanes for name in (lane.name, lane.device.name))
    most_boxes = max(len(timeline.boxes_of(lane.device.name, lane.key)) for lane in lanes)
    plot = min(max(_PER_BOX * most_boxes, _SMALLEST_PLOT), _LARGEST_PLOT)
    slowest = timeline.slowest_stage
    return _Layout(
        lanes=lanes,
        left=_EDGE + _LETTER * most_letters,
        plot=plot,
        forward_points=_number_points(timeline, slowest.forward_s, plot),
        backward_points=_number_points(timeline, slowest.backward_s, plot),
    )


def _lane_name(timeline: Timeline, replica: int, stage: int) -> str:
    name = f"stage {stage}: {shortened(timeline.stage_names[stage], 24)}"
    return f"replica {replica}, {name}" if timeline.num_replicas > 1 else name


def _number_points(timeline: Timeline, box_s: float, plot: float) -> float:
    """Returns the largest font size, in points, with which the longest number fits into a box."""
    digits = len(str(timeline.num_micro_batches - 1))
    return min(_box_points(timeline, box_s, plot) / (digits * _DIGIT_WIDTH), _LARGEST_NUMBER)


def _box_points(timeline: Timeline, box_s: float, plot: float) -> float:
    if not timeline.duration_s:
        return 0.0
    return 0.9 * _POINTS_PER_INCH * plot * box_s / timeline.duration_s


def _set_up_axes(axes: Any, timeline: Timeline, layout: _Layout) -> None:
    axes.set_xlim(0, 1000 * timeline.duration_s or 1)
    axes.set_ylim(len(layout.lanes), 0)  # The first lane is at the top.
    axes.set_yticks([])
    axes.tick_params(labelsize=8)
    axes.set_xlabel("ms", fontsize=8, color=GREY)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)


def _draw_lane(axes: Any, timeline: Timeline, layout: _Layout, row: int, lane: _Lane) -> None:
    def place(start_s: float, end_s: float) -> tuple[float, float]:
        return 1000 * (start_s - timeline.start_s), 1000 * (end_s - start_s)

    idle = [place(*span) for span in lane.device.idle]
    axes.broken_barh(idle, (row + 0.5 - _BOX_HEIGHT / 2, _BOX_HEIGHT), facecolor=COLOURS["idle"])
    boxes = timeline.boxes_of(lane.device.name, lane.key)
    for backward, colour in ((False, _FORWARD), (True, _BACKWARD)):
        drawn = [timed for timed in boxes if timed.box.backward == backward]
        widths = [_box_points(timeline, t.end_s - t.start_s, layout.plot) for t in drawn]
        axes.broken_barh(
            [place(*timed.span) for timed in drawn],
            (row + 0.5 - _BOX_HEIGHT / 2, _BOX_HEIGHT),
            facecolor=colour,
            # A white edge separates consecutive boxes; it would hide a narrow box.
            edgecolor=["white" if width > _NARROW else colour for width in widths],
            linewidth=0.5,
        )
    for timed in boxes:
        _write_number(axes, timeline, layout, row, timed)


def _write_number(
    axes: Any, timeline: Timeline, layout: _Layout, row: int, timed: TimedBox
) -> None:
    backward = timed.box.backward
    points = layout.backward_points if backward else layout.forward_points
    number = str(timed.box.micro_batch)
    room = _box_points(timeline, timed.end_s - timed.start_s, layout.plot)
    if points >= _SMALLEST_NUMBER and points * _DIGIT_WIDTH * len(number) <= 1.1 * room:
        axes.text(
            500 * (timed.start_s + timed.end_s - 2 * timeline.start_s),
            row + 0.5,
            number,
            fontsize=points,
            color=_NUMBER_ON_BACKWARD if backward else _NUMBER_ON_FORWARD,
            ha="center",
            va="center_baseline",
        )


def _write_beside(axes: Any, timeline: Timeline, layout: _Layout, row: int, lane: _Lane) -> None:
    stage = timeline.stages[lane.stage]
    if lane.is_first:
        _write(axes, layout, -0.1, row + 0.32, lane.device.name, ha="right", weight="bold")
    _write(axes, layout, -0.1, row + 0.7, lane.name, ha="right", color=GREY, fontsize=8)
    cells = (
        percent(lane.device.busy_share) if lane.is_first else "",
        milliseconds(stage.forward_s),
        milliseconds(stage.backward_s),
        f"{timeline.over_mean(stage):.2f}",
        str(stage.peak_activations),
    )
    stands_out = stage is timeline.slowest_stage and timeline.imbalance >= _UNEVEN
    weight = "bold" if stands_out else "normal"
    for column, text in enumerate(cells):
        x = layout.plot + _COLUMN * (column + 0.6)
        _write(axes, layout, x, row + 0.5, text, ha="center", weight=weight)


def _write(axes: Any, layout: _Layout, inches: float, row: float, text: str, **how: Any) -> None:
    """Writes text at a distance in inches from the plot's left, and at a height in lanes."""
    how = {"va": "center", "fontsize": 9, "parse_math": False} | how
    axes.text(inches / layout.plot, row, text, transform=axes.get_yaxis_transform(), **how)


def _write_above(figure: Any, axes: Any, timeline: Timeline, layout: _Layout) -> None:
    for column, head in enumerate(_HEADS):
        x = layout.plot + _COLUMN * (column + 0.6)
        _write(axes, layout, x, -0.1, head, ha="center", va="bottom", fontsize=8, color=GREY)
    lines = (
        (0.3, headline(timeline), {"weight": "bold", "fontsize": 12}),
        (0.6, verdict_on_cut(timeline), {"fontsize": 9}),
        (0.8, verdict_on_use(timeline), {"fontsize": 9}),
    )
    for from_top, text, how in lines:
        x, y = _EDGE / layout.width, 1 - from_top / layout.height
        figure.text(x, y, text, va="center", parse_math=False, **how)
    colours = {"forward": _FORWARD, "backward": _BACKWARD, "idle": COLOURS["idle"]}
    axes.legend(
        handles=legend_patches(colours),
        loc="lower left",
        bbox_to_anchor=(0, 1),
        borderaxespad=0.2,
        ncols=3,
        frameon=False,
        fontsize=8,
    )
