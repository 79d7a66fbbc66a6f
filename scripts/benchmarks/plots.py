"""The pictures of docs/benchmarks.md, drawn from the data of the parts."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib
from application_figures import LIBRARIES
from curve_figures import Run, relative_differences
from growth_figures import TITLES, megabytes
from PIL import Image
from pipeline_peer_figures import DRAWN as DRAWN_PIPELINES
from pipeline_peer_figures import shares
from record import Record
from results import quartiles, ratio_of
from slow_link_figures import rate_name
from step_figures import DRAWN

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.patches import Patch
from matplotlib.ticker import StrMethodFormatter

DPI = 100
NUM_COLOURS = 48
OURS, BOUND, PEER = "#1b6ca8", "#9aa5ad", "#d98c3f"
# Light to dark by size.
SIZE_COLOURS = ("#8fc1e3", "#4d97cc", "#1b6ca8", "#0b3c5d", "#06263b", "#021320")

CURVE_COLOURS = (
    "#9aa5ad",
    "#d98c3f",
    "#8fc1e3",
    "#2e8b57",
    "#4d97cc",
    "#b5485d",
    "#1b6ca8",
    "#000",
)
LOWEST_DIFFERENCE = 1e-8  # Below the resolution of float32.
_HIGHEST_DIFFERENCE = 1e-4
_MOST_CURVES_BESIDE = 3

# A file, and what it shows.
Drawn = tuple[Path, str]


def draw(records: Mapping[str, Record], folder: Path) -> dict[str, list[Drawn]]:
    """Draws what there is to draw.

    Returns:
      The pictures of each part, by its name.
    """
    drawers: dict[str, Callable[[Mapping[str, Any], Path], list[Drawn]]] = {
        "steps": draw_steps,
        "fit": draw_fit,
        "applications": draw_applications,
        "pipelines": draw_pipelines,
        "slow-link": draw_slow_link,
        "growth": draw_growth,
    }
    return {
        name: drawers[name](record.part.data, folder)
        for name, record in records.items()
        if name in drawers
    }


def draw_growth(data: Mapping[str, Any], folder: Path) -> list[Drawn]:
    """Draws step times and efficiency over the number of workers, a column for each engine."""
    engines = list(data["step_seconds"])
    figure, axes = pyplot.subplots(
        2, len(engines), figsize=(4.5 * len(engines), 7), sharex=True, sharey="row", squeeze=False
    )
    for (top, bottom), engine in zip(axes.T, engines, strict=True):
        for colour, size in zip(SIZE_COLOURS, data["step_seconds"][engine], strict=False):
            drawn = data["drawn_seconds"].get(engine, {}).get(size, {})
            line = {int(n): 1e3 * t for n, t in drawn.items()}
            points = {
                int(n): 1e3 * quartiles(times)[1]
                for n, times in data["step_seconds"][engine][size].items()
            }
            label = megabytes(int(size))
            for values, style in ((line, "-"), (points, "o")):
                workers, times = list(values), list(values.values())
                shares = [100 * times[0] / one for one in times]
                top.plot(workers, times, style, color=colour, markersize=5)
                bottom.plot(workers, shares, style, color=colour, markersize=5)
            top.plot([], [], color=colour, label=label)
        top.set(title=f"tfdist over {TITLES[engine]}", xscale="log", yscale="log")
        bottom.set(xlabel="workers", ylim=(0, 105))
        bottom.set_xscale("log", base=2)
        bottom.set_xticks([1, 2, 4, 16, 64, 256, 1024], ["1", "2", "4", "16", "64", "256", "1,024"])
        bottom.minorticks_off()
        for axis in (top, bottom):
            axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("ms a step")
    axes[0][0].yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes[1][0].set_ylabel("efficiency, % (weak scaling)")
    axes[0][0].legend(title="gradients", fontsize=9)
    cores = data["cores"]
    text = f"points: measured on {cores} cores; lines: the fitted formula, a core for each worker"
    figure.suptitle(f"A step that waits {1e3 * data['wait_seconds']:g} ms, then reduces\n{text}")
    path = _save(figure, folder / "benchmarks-growth.png")
    return [(path, "Step times and efficiency over the number of workers, from 1 to 1,024")]


def draw_curves(curves: Mapping[str, Sequence[Run]], path: Path) -> Path:
    """Draws the losses of all runs over one another, and their differences below.

    Args:
      curves: The runs of each training, by its title.
      path: The picture.
    """
    columns = min(len(curves), _MOST_CURVES_BESIDE)
    rows = -(-len(curves) // columns)
    figure, axes = pyplot.subplots(
        2 * rows, columns, figsize=(4.5 * columns, 5.5 * rows), sharex=True, squeeze=False
    )
    for place, (title, runs) in enumerate(curves.items()):
        row, column = divmod(place, columns)
        _draw_curve(axes[2 * row][column], axes[2 * row + 1][column], title, runs)
    for axis in axes.flat[2 * columns * (rows - 1) :]:
        axis.set_visible(bool(axis.has_data()))
    for top, bottom in zip(axes[0::2, 0], axes[1::2, 0], strict=True):
        top.set_ylabel("loss")
        bottom.set_ylabel("relative difference\nfrom the first run")
    return _save(figure, path)


def _draw_curve(top: Any, bottom: Any, title: str, runs: Sequence[Run]) -> None:
    first = runs[0].losses
    steps = range(1, len(first) + 1)
    for place, run in enumerate(runs):
        # The later ones thinner: those below stay visible.
        width = 1 + 1.2 * (len(runs) - 1 - place)
        colour = CURVE_COLOURS[place % len(CURVE_COLOURS)]
        top.plot(steps, run.losses, color=colour, linewidth=width, label=run.name)
        if place:
            differences = relative_differences(run.losses, first)
            shown = [max(one, LOWEST_DIFFERENCE) for one in differences]
            bottom.plot(steps, shown, color=colour, linewidth=1)
    top.set_title("\n".join(wrap(title, 40)), fontsize=10)
    top.legend(fontsize=7)
    bottom.set(xlabel="step", yscale="log", ylim=(LOWEST_DIFFERENCE, _HIGHEST_DIFFERENCE))
    for axis in (top, bottom):
        axis.grid(alpha=0.3)


def draw_steps(data: Mapping[str, Any], folder: Path) -> list[Drawn]:
    """Draws each contender's step time over the ideal, a panel for each model."""
    seconds = {
        model: {name: found[name] for name in DRAWN if name in found}
        for model, found in data["step_seconds"].items()
    }
    path = _draw_bars(seconds, data.get("titles", {}), folder / "benchmarks-steps.png", "ideal")
    return [(path, "Step time of each contender over the ideal, for each model")]


def draw_fit(data: Mapping[str, Any], folder: Path) -> list[Drawn]:
    """Draws the step time of `fit`, loops and peers over the ideal, a panel for each model."""
    path = _draw_bars(data["step_seconds"], data["titles"], folder / "benchmarks-fit.png", "ideal")
    return [(path, "Step time of Keras' fit and of loops over the ideal, for each model")]


def draw_applications(data: Mapping[str, Any], folder: Path) -> list[Drawn]:
    """Draws the step time of two workers over that without a reduction, a panel for each model."""
    seconds = {
        model: {name: found[name] for name in LIBRARIES if name in found}
        for model, found in data["step_seconds"].items()
    }
    path = _draw_bars(seconds, data["titles"], folder / "benchmarks-applications.png", "ideal")
    return [(path, "Step time of two workers over the ideal, for ResNet-20 and BERT mini")]


def draw_pipelines(data: Mapping[str, Any], folder: Path) -> list[Drawn]:
    """Draws the share of the ideal over the number of micro-batches, a panel for each network."""
    figure, axes = pyplot.subplots(1, len(data), figsize=(4.5 * len(data), 3.5), squeeze=False)
    for axis, (title, found) in zip(axes[0], data.items(), strict=True):
        of_all = {int(m): shares(times, int(m)) for m, times in found["step_seconds"].items()}
        for name, colour in zip(DRAWN_PIPELINES, (OURS, PEER, BOUND), strict=True):
            medians = {m: quartiles(of[name])[1] for m, of in of_all.items() if name in of}
            heights = [100 * one for one in medians.values()]
            axis.plot(list(medians), heights, "o-", color=colour, label=name)
        axis.axhline(100, color="black", linewidth=0.8, linestyle=":")
        axis.set(title=title, xlabel="micro-batches m", xticks=list(of_all))
        axis.grid(alpha=0.3)
        axis.margins(y=0.25)  # Room for the legend above all lines.
    axes[0][0].set_ylabel("% of the ideal, 2m/(m+1)")
    axes[0][0].legend(fontsize=8, loc="upper center", ncols=3, columnspacing=1.0)
    path = _save(figure, folder / "benchmarks-pipelines.png")
    return [(path, "Share of the ideal speed-up of two stages over the number of micro-batches")]


def draw_slow_link(data: Mapping[str, Any], folder: Path) -> list[Drawn]:
    """Draws each step, and computation plus communication, over the longer one of these two."""
    found = data["found"]
    if not found:  # There was no link.
        return []
    figure, axis = pyplot.subplots(figsize=(8, 1.3 + 0.5 * len(found)))
    for row, one in enumerate(reversed(found)):
        pairs = list(zip(one["computation"], one["communication"], strict=True))
        longer = [max(pair) for pair in pairs]
        _draw_bar(axis, row + 0.2, one["step"], longer, OURS, height=0.38)
        _draw_bar(axis, row - 0.2, [sum(pair) for pair in pairs], longer, BOUND, height=0.38)
    names = [
        f"{one['model'].upper()}, {TITLES[one['engine']]}, {rate_name(one['rate_bits'])}"
        for one in reversed(found)
    ]
    axis.set_yticks(range(len(found)), names, fontsize=9)
    axis.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
    axis.margins(x=0.12)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_xlabel("over the longer one of computation and communication (median, quartiles)")
    marks = [Patch(color=OURS), Patch(color=BOUND)]
    axis.legend(
        marks,
        ["tfdist's step", "one after the other"],
        fontsize=8,
        loc="lower right",
        ncols=2,
        bbox_to_anchor=(1, 1),
    )
    path = _save(figure, folder / "benchmarks-slow-link.png")
    return [(path, "Step time over max(computation, communication) on slow links")]


def _draw_bars(
    seconds: Mapping[str, Mapping[str, Sequence[float]]],
    titles: Mapping[str, str],
    path: Path,
    reference_word: str,
) -> Path:
    """Draws ratios to the first contender as bars with quartiles, a panel for each group."""
    names = list(dict.fromkeys(name for group in seconds.values() for name in group))
    rows = {name: row for row, name in enumerate(reversed(names))}
    figure, axes = pyplot.subplots(
        1,
        len(seconds),
        figsize=(3.2 + 2.4 * len(seconds), 1.1 + 0.36 * len(names)),
        sharey=True,
        squeeze=False,
    )
    for axis, (group, times) in zip(axes[0], seconds.items(), strict=True):
        reference = next(iter(times.values()))
        for name, own in times.items():
            _draw_bar(axis, rows[name], own, reference, _colour(name), height=0.7)
        milliseconds = 1e3 * quartiles(reference)[1]
        axis.set_title(
            f"{titles.get(group, group)}\n{reference_word} {milliseconds:.1f} ms", fontsize=9
        )
        axis.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
        axis.margins(x=0.2)
        axis.set_yticks(list(rows.values()), list(rows), fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    figure.supxlabel(f"step time over {reference_word} (median, quartiles)", fontsize=9)
    return _save(figure, path)


def _draw_bar(
    axis: Any,
    row: float,
    seconds: Sequence[float],
    reference: Sequence[float],
    colour: str,
    height: float,
) -> None:
    """Draws the median of the ratios, its quartiles, and its number."""
    ratio = ratio_of(seconds, reference, name="")
    errors = [[ratio.value - ratio.low], [ratio.high - ratio.value]]
    axis.barh(row, ratio.value, xerr=errors, color=colour, height=height)
    axis.text(ratio.high, row, f" {ratio.value:.2f}", va="center", fontsize=8)


def _colour(name: str) -> str:
    if name.startswith("tfdist"):
        return OURS
    return BOUND if name.startswith(("ideal", "sum", "bare")) else PEER


def _save(figure: Any, path: Path) -> Path:
    """Writes a picture of few colours: a quarter of the size, without a visible difference."""
    figure.tight_layout()
    whole = io.BytesIO()
    figure.savefig(whole, format="png", dpi=DPI)
    pyplot.close(figure)
    Image.open(whole).convert("RGB").quantize(NUM_COLOURS).save(path, optimize=True)
    return path
