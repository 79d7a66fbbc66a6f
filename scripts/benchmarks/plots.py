"""The pictures of docs/benchmarks.md."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from PIL import Image
from results import Record, Row

matplotlib.use("Agg")

from matplotlib import pyplot

DPI = 100
NUM_COLOURS = 48
OURS, BOUND, PEER = "#1b6ca8", "#9aa5ad", "#d98c3f"

Groups = Mapping[str, Mapping[str, Row]]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A part's picture: bars of the step over its bound."""

    text: str  # What it shows, for those who can't see it.
    bound: str = "the ideal"  # The bound, for the axis.
    left_out: tuple[str, ...] = ()  # Contenders whose names begin so are in the record alone.
    # Whether a panel is a contender, with a bar for each group; else a panel is a group.
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
    "tables": Picture(text="Step time of look-ups in divided and whole tables over the ideal"),
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


def _save(figure: Any, path: Path) -> Path:
    """Writes a picture of few colours: a quarter of the size, without a visible difference."""
    figure.tight_layout()
    whole = io.BytesIO()
    figure.savefig(whole, format="png", dpi=DPI)
    pyplot.close(figure)
    Image.open(whole).convert("RGB").quantize(NUM_COLOURS).save(path, optimize=True)
    return path
