"""The files of a timeline in a folder: text, picture and trace."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tfdist.pipeline.timeline import Timeline
from tfdist.pipeline.timeline_image import save_image
from tfdist.pipeline.timeline_text import text_of
from tfdist.pipeline.timeline_trace import trace_of


def write_timeline(timeline: Timeline, directory: str | os.PathLike[str]) -> list[Path]:
    """Writes `timeline.txt`, `trace.json` and `timeline.png` into a folder, which is made.

    Files of these names are replaced. The picture comes last: without matplotlib the others are
    there.

    Returns:
      The three paths, in the order above.

    Raises:
      ImportError: One line, if matplotlib is not installed; see
        `tfdist.pipeline.timeline_image.check_can_draw`, which tells so before.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    text, trace, image = paths = [
        folder / name for name in ("timeline.txt", "trace.json", "timeline.png")
    ]
    text.write_text(text_of(timeline), encoding="utf-8")
    trace.write_text(json.dumps(trace_of(timeline)), encoding="utf-8")
    save_image(timeline, image)
    return paths
