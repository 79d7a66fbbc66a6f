"""A fixture of the tests of tfdist.testing that look at processes."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def read_pids(tmp_path: Path) -> Callable[[], list[int]]:
    """Reads the process ids that workers left as names of files in `tmp_path`."""
    return lambda: [int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()]
