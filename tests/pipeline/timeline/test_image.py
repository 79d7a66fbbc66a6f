"""The picture of a timeline, and the folder with all its files."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.image
import matplotlib.pyplot
import pytest

from tfdist.pipeline.timeline.files import write_timeline
from tfdist.pipeline.timeline.image import save_image
from tfdist.pipeline.timeline.step_times import Timeline
from tfdist.profile.picture import check_can_draw

Simulate = Callable[..., Timeline]

FORWARD, BACKWARD = (0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00)


def test_forward_and_backward_take_as_much_of_the_picture_as_of_the_time(
    simulate: Simulate, tmp_path: Path
) -> None:
    save_image(simulate("grouped", 3, [0.002] * 2, [0.006] * 2), tmp_path / "timeline.png")
    pixels = (matplotlib.image.imread(tmp_path / "timeline.png")[..., :3] * 255).round()
    forward, backward = (
        int((abs(pixels - colour).max(axis=-1) < 2).sum()) for colour in (FORWARD, BACKWARD)
    )
    assert backward / forward == pytest.approx(3, rel=0.15)


def test_a_picture_is_higher_with_more_devices_and_wider_with_more_micro_batches(
    simulate: Simulate, tmp_path: Path
) -> None:
    def size(*args: Any, **kwargs: Any) -> tuple[int, ...]:
        save_image(simulate(*args, **kwargs), tmp_path / "timeline.png")
        return matplotlib.image.imread(tmp_path / "timeline.png").shape[:2]

    height, width = size("interleaved", 4, [1.0] * 2, [1.0] * 2)
    assert size("interleaved", 4, [1.0] * 2, [1.0] * 2, replicas=2) > (height + 100, width)
    assert size("interleaved", 40, [1.0] * 2, [1.0] * 2)[1] > width + 1000


def test_names_with_dollars_are_not_read_as_formulas(simulate: Simulate, tmp_path: Path) -> None:
    timeline = simulate("grouped", 1, [0.001], names=[r"$\notamark{$"])
    save_image(timeline, tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").stat().st_size > 0


def test_without_matplotlib_one_line_names_the_fix_and_the_other_files_are_there(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError) as reported:
        check_can_draw()
    assert str(reported.value) == (
        "The picture needs matplotlib, which is not installed. Run: pip install 'tfdist[pipeline]'"
    )
    with pytest.raises(ImportError, match="needs matplotlib"):
        write_timeline(simulate("grouped", 1, [0.001]), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["timeline.txt", "trace.json"]


def test_drawing_leaves_no_figure_behind(simulate: Simulate, tmp_path: Path) -> None:
    save_image(simulate("interleaved", 3, [1.0] * 2, [1.0] * 2), tmp_path / "timeline.png")
    assert matplotlib.pyplot.get_fignums() == []
