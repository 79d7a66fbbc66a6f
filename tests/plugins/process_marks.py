"""Pytest plugin: the marker `processes`, for the tests that start processes.

`scripts/test.sh --quick` leaves these tests out. A test has the marker if it uses one of the
fixtures below or stands in one of the folders below; other tests and modules name it themselves.
A test without it that starts a process fails.
"""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

_FIXTURES = {"fake_cluster", "launch"}
_FOLDERS = (
    "tests/conformance/",
    "tests/examples/",
    "tests/faults/",
    "tests/movers/",
    "tests/multi_worker/",
    "tests/testing/",
    "tests/virtual_hosts/",
)
_STARTS = {  # what Python reports before it starts a process
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "subprocess.Popen",
}
_started: list[str] = []


def _note_start(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _STARTS:
        _started.append(f"{event}({', '.join(str(argument)[:100] for argument in arguments[:2])})")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "processes: the test starts processes")
    sys.addaudithook(_note_start)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        uses_one = _FIXTURES.intersection(getattr(item, "fixturenames", ()))
        if uses_one or item.nodeid.startswith(_FOLDERS):
            item.add_marker(pytest.mark.processes)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _started.clear()  # What was started while the tests were collected.


@pytest.fixture(autouse=True)
def only_marked_tests_start_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that starts a process and has no marker `processes`."""
    yield
    if _started and request.node.get_closest_marker("processes") is None:
        pytest.fail(f"the test starts a process: mark it with pytest.mark.processes. {_started[0]}")
