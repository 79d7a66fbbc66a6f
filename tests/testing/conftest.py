"""Fixtures of the tests of tfdist.testing that look at processes."""

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tfdist.testing.run import wait_until


def _is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def is_running() -> Callable[[int], bool]:
    """Tells whether a process with this id runs."""
    return _is_running


@pytest.fixture
def all_end() -> Callable[..., bool]:
    """Waits a little, and tells whether all processes with these ids have ended."""

    def wait(*pids: int, limit_s: float = 10.0) -> bool:
        return wait_until(lambda: not any(_is_running(pid) for pid in pids), limit_s)

    return wait


@pytest.fixture
def read_pids(tmp_path: Path) -> Callable[[], list[int]]:
    """Reads the process ids that workers left as names of files in `tmp_path`."""
    return lambda: [int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()]
