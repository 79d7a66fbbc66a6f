"""A fixture of the tests of tfdist.testing that look at processes."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def read_pids(tmp_path: Path) -> Callable[[], list[int]]:
    """Reads the process ids that workers left as names of files in `tmp_path`."""
    return lambda: [int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()]


@pytest.fixture
def all_end_of(
    read_pids: Callable[[], list[int]], all_end: Callable[..., bool]
) -> Callable[[int], bool]:
    """Waits for the end of as many workers as have left their process ids."""
    return lambda number: len(read_pids()) == number and all_end(*read_pids())
