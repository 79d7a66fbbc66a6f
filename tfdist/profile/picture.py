"""Pictures drawn with matplotlib, which is optional.

pyplot is not used, so the user's figures are not affected.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

# Okabe and Ito's palette. The colours differ in hue and in brightness, for colour-blind readers and
# for print in grey.
COLOURS = {
    "forward": "#0072B2",
    "backward": "#E69F00",
    "update": "#009E73",
    "input": "#CC79A7",
    "reduction": "#56B4E9",
    "idle": "#F0F0F0",
}
GREY = "#666666"


def new_figure(width: float, height: float) -> Any:
    """Returns an empty figure, in inches; an ImportError if matplotlib is not installed."""
    return _load("matplotlib.figure").Figure(figsize=(width, height), facecolor="white")


def legend_patches(labels: Mapping[str, str]) -> list[Any]:
    """Returns the handles of a legend, for each label its colour."""
    patch = _load("matplotlib.patches").Patch
    return [patch(facecolor=colour, label=label) for label, colour in labels.items()]


def save(figure: Any, path: str | os.PathLike[str]) -> None:
    """Writes a figure as a PNG; without pyplot that needs no screen."""
    figure.savefig(path, format="png", dpi=150)


def check_can_draw() -> None:
    """Raises an ImportError if matplotlib is missing. Called before a profile is recorded."""
    _load("matplotlib.figure")


def _load(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            "The picture needs matplotlib, which is not installed. Run: pip install "
            "'tfdist[pipeline]'"
        ) from error
