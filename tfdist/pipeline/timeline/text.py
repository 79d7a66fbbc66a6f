"""Plain text of a timeline: one row per device, to scale, and a table of the stages."""

from __future__ import annotations

import io
import textwrap

from tfdist.pipeline.schedule import busy_share_bound
from tfdist.pipeline.timeline.step_times import DeviceTimes, Timeline
from tfdist.profile.records import Span

_FORWARD, _BACKWARD, _IDLE, _OTHER_STAGE = "><. "
_SMALLEST_WIDTH = 60


def text_of(timeline: Timeline, width: int = 160) -> str:
    """Returns a timeline as ASCII text, of at most `width` columns, or 60 if it is less.

    A device that several stages share has one row for each of them.
    """
    width = max(width, _SMALLEST_WIDTH)
    parts = [
        f"{headline(timeline)}\n",
        _rows(timeline, width),
        "3>> forward of micro-batch 3   3<< its backward   ... the device is idle\n",
        _stage_table(timeline, width),
        "".join(
            f"{textwrap.fill(line, width, break_on_hyphens=False)}\n"
            for line in (verdict_on_cut(timeline), verdict_on_use(timeline))
        ),
    ]
    return "\n".join(parts)


def headline(timeline: Timeline) -> str:
    """Returns one line with the title, the numbers of stages and micro-batches, and the time."""
    replicas = f" x {timeline.num_replicas} replicas" if timeline.num_replicas > 1 else ""
    return (
        f"{timeline.title}: {_count(len(timeline.stages), 'stage')} x "
        f"{_count(timeline.num_micro_batches, 'micro-batch', 'es')}{replicas} "
        f"in {milliseconds(timeline.duration_s)} ms"
    )


def verdict_on_cut(timeline: Timeline) -> str:
    """Returns one line with the slowest stage and its time relative to the mean."""
    slowest = timeline.slowest_stage
    return (
        f"Slowest stage: {slowest.index} ({shortened(slowest.name, 40)}), "
        f"{milliseconds(slowest.micro_batch_s)} ms a micro-batch, {timeline.imbalance:.2f} x the "
        "mean of the stages (1.00 is an even cut)."
    )


def verdict_on_use(timeline: Timeline) -> str:
    """Returns one line with the devices' busy share, and its bound if no stages share a device."""
    text = f"Devices busy {percent(timeline.busy_share)} of the time"
    if any(len(device.lanes) > 1 for device in timeline.devices):
        return f"{text}."
    stages, micro_batches = len(timeline.stages), timeline.num_micro_batches
    bound = busy_share_bound("interleaved", stages, micro_batches)
    return (
        f"{text}; at most {percent(bound)} in a pipeline of {_count(stages, 'even stage')} with "
        f"{_count(micro_batches, 'micro-batch', 'es')}."
    )


def milliseconds(seconds: float) -> str:
    """Returns a duration in milliseconds with three significant digits; from 1 s on whole ones."""
    number = 1000 * seconds
    return f"{number:,.0f}" if number >= 1000 else f"{number:#.3g}".rstrip(".")


def percent(share: float) -> str:
    """Returns a share from 0 to 1 as a whole percentage."""
    return f"{100 * share:.0f} %"


def shortened(text: str, letters: int) -> str:
    """Returns a text with at most `letters` letters; a text that was cut ends with "..."."""
    return text if len(text) <= letters else f"{text[: letters - 3]}..."


def _rows(timeline: Timeline, width: int) -> str:
    with_replica = timeline.num_replicas > 1
    heads = ["device", *(["replica"] if with_replica else []), "stage"]
    cells, bars = [], []
    for device in timeline.devices:
        for number, (replica, stage) in enumerate(device.lanes):
            name = device.name if number == 0 else ""
            cells.append([name, *([str(replica)] if with_replica else []), str(stage)])
            bars.append((device, (replica, stage), number == 0))
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    columns = width - sum(widths) - 2 * len(widths) - len("  100 %")
    lines = [f"{_row_head(heads, widths)}{_axis(timeline, columns)}   busy"]
    for row, (device, lane, is_first) in zip(cells, bars, strict=True):
        share = f"  {percent(device.busy_share):>5}" if is_first else ""
        bar = _bar(timeline, device, lane, columns)
        lines.append(f"{_row_head(row, widths)}{bar}{share}".rstrip())
    return "".join(f"{line}\n" for line in lines)


def _row_head(cells: list[str], widths: list[int]) -> str:
    return "".join(f"{cell:<{width}}  " for cell, width in zip(cells, widths, strict=True))


def _axis(timeline: Timeline, columns: int) -> str:
    """Returns a line with the times of the start, the middle and the end above their columns."""
    middle = f"{milliseconds(timeline.duration_s / 2)} ms"
    end = f"{milliseconds(timeline.duration_s)} ms"
    to_middle = f"{'0 ms':<{columns // 2}}{middle}"
    return f"{to_middle}{end:>{columns - len(to_middle)}}"


def _bar(timeline: Timeline, device: DeviceTimes, lane: tuple[int, int], columns: int) -> str:
    bar = [_OTHER_STAGE] * columns

    def columns_of(span: Span) -> slice:
        # Consecutive boxes share a time and therefore a column: rounding leaves no gap.
        scale = columns / timeline.duration_s if timeline.duration_s else 0.0
        first, last = (round((time - timeline.start_s) * scale) for time in span)
        return slice(first, last)

    for span in device.idle:
        place = columns_of(span)
        bar[place] = _IDLE * (place.stop - place.start)
    for timed in timeline.boxes_of(device.name, lane):
        place = columns_of(timed.span)
        room = place.stop - place.start
        number = str(timed.box.micro_batch)
        # The number is left out if it would fill the box: the direction matters more.
        number = number if len(number) < room else ""
        bar[place] = number.ljust(room, _BACKWARD if timed.box.backward else _FORWARD)
    return "".join(bar)


def _stage_table(timeline: Timeline, width: int) -> str:
    # Imported here: every training imports this module, and few write a table.
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("stage", justify="right")
    table.add_column("blocks", overflow="fold")
    table.add_column("device", overflow="fold")
    for head in ("forward ms", "backward ms", "x mean", "busy", "activations kept"):
        table.add_column(head, justify="right")
    for stage in timeline.stages:
        table.add_row(
            str(stage.index),
            stage.name,
            ", ".join(stage.devices),
            milliseconds(stage.forward_s),
            milliseconds(stage.backward_s),
            f"{timeline.over_mean(stage):.2f}",
            percent(stage.busy_share),
            str(stage.peak_activations),
        )
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        # Block names may look like rich's markup.
        markup=False,
        emoji=False,
        highlight=False,
        # Otherwise rich would display the table in a notebook, or write it in colours.
        force_jupyter=False,
        force_terminal=False,
    )
    console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"
