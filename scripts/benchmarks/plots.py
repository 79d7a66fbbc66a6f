"""The pictures of docs/benchmarks.md and of docs/curves.md."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib
from curve_figures import Run, relative_differences
from PIL import Image
from results import Record, Row

matplotlib.use("Agg")

from matplotlib import pyplot

DPI = 100
NUM_COLOURS = 48
OURS, BOUND, PEER = "#1b6ca8", "#9aa5ad", "#d98c3f"
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

Groups = Mapping[str, Mapping[str, Row]]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A part's picture: bars of the step over its bound.

    Attributes:
      text: What it shows, for those who can't see it.
      bound: The bound, for the axis.
      left_out: Contenders whose names begin so are in the record alone.
      by_contender: Whether a panel is a contender, with a bar for each group; else a panel is a
        group.
    """

    text: str
    bound: str = "the ideal"
    left_out: tuple[str, ...] = ()
    by_contender: bool = False


PICTURES = {
    "steps": Picture(
        text="Step time of each contender over the ideal, for each model",
        left_out=("bare reduction", "MultiWorkerMirroredStrategy, Keras fit"),
    ),
    "fit": Picture(text="Step time of Keras' fit and of loops over the ideal, for each model"),
    "applications": Picture(
        text="Step time of two workers over the ideal, for ResNet-20 and BERT mini"
    ),
    "pipelines": Picture(
        text="Step time of two stages over the ideal, for each number of micro-batches",
        left_out=("tfdist, 4 stages",),
        by_contender=True,
    ),
    "slow-link": Picture(
        text="Step time over max(computation, communication) on slow links",
        bound="the longer one of computation and communication",
        left_out=("computation", "communication"),
        by_contender=True,
    ),
}


def draw(records: Mapping[str, Record], folder: Path) -> dict[str, tuple[str, str]]:
    """Draws the parts that have a picture.

    Returns:
      The file's name and what it shows, by the part's name.
    """
    drawn = {}
    for name, picture in PICTURES.items():
        if name not in records or not records[name].part.groups:
            continue
        groups = {
            title: {
                contender: row
                for contender, row in group.items()
                if not contender.startswith(picture.left_out)
                and not contender.endswith(": one worker")
            }
            for title, group in records[name].part.groups.items()
        }
        file = f"benchmarks-{name}.png"
        _draw_bars(_transposed(groups) if picture.by_contender else groups, picture, folder / file)
        drawn[name] = file, picture.text
    return drawn


def _transposed(groups: Groups) -> dict[str, dict[str, Row]]:
    turned: dict[str, dict[str, Row]] = {}
    for title, group in groups.items():
        for contender, row in group.items():
            turned.setdefault(contender, {})[title] = row
    return turned


def _draw_bars(groups: Groups, picture: Picture, path: Path) -> None:
    """Draws ratios to the bound as bars with quartiles, a panel for each group."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    places = {name: place for place, name in enumerate(reversed(names))}
    figure, axes = pyplot.subplots(
        1,
        len(groups),
        figsize=(3.2 + 2.4 * len(groups), 1.1 + 0.36 * len(names)),
        sharey=True,
        squeeze=False,
    )
    for axis, (title, group) in zip(axes[0], groups.items(), strict=True):
        for name, row in group.items():
            low, middle, high = row.over
            colour = _colour(title if picture.by_contender else name)
            errors = [[middle - low], [high - middle]]
            axis.barh(places[name], middle, xerr=errors, color=colour, height=0.7)
            axis.text(high, places[name], f" {middle:.2f}", va="center", fontsize=8)
        axis.set_title(title, fontsize=9)
        axis.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
        axis.margins(x=0.2)
        axis.set_yticks(list(places.values()), list(places), fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    figure.supxlabel(f"step time over {picture.bound} (median, quartiles)", fontsize=9)
    _save(figure, path)


def _colour(name: str) -> str:
    if name.startswith("tfdist"):
        return OURS
    return BOUND if name.startswith(("ideal", "one after")) else PEER


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


def _save(figure: Any, path: Path) -> Path:
    """Writes a picture of few colours: a quarter of the size, without a visible difference."""
    figure.tight_layout()
    whole = io.BytesIO()
    figure.savefig(whole, format="png", dpi=DPI)
    pyplot.close(figure)
    Image.open(whole).convert("RGB").quantize(NUM_COLOURS).save(path, optimize=True)
    return path
