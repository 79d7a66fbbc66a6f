"""Pytest plugin: which tests each of pytest-xdist's processes gets, and in what order."""

from typing import Any

import pytest

# With `-n 4` the tests of a file run in one process, in order, as without it: they share what their
# fixtures made. So do those of these folders, whose fixtures are more expensive.
_ONE_PROCESS_FOLDERS = (
    "tests/conformance/test_keras_numbers",  # shares nothing with the others, and takes minutes
    "tests/faults/",
    "tests/launch/kubernetes/",
    "tests/virtual_hosts/",
    "tests/conformance/",
    "tests/movers/",
)
# What takes longest comes first, so that no process is left alone with it at the end.
_FIRST = (
    *_ONE_PROCESS_FOLDERS,
    "tests/examples/test_mnist.py",
    "tests/examples/test_ray.py",
    "tests/multi_worker/",
    "tests/examples/",
    "tests/docs/",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deals out whole files, and some folders, where pytest-xdist was asked for processes."""
    from xdist.scheduler import LoadScopeScheduling

    class FilesAndFolders(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            return next((one for one in _ONE_PROCESS_FOLDERS if file.startswith(one)), file)

    # Not those with the most tests first: a file of few may take long.
    config.option.loadscopereorder = False
    return FilesAndFolders(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # One of pytest-xdist's processes.
        items.sort(key=lambda item: _place(item.nodeid))


def _place(nodeid: str) -> int:
    places = (place for place, start in enumerate(_FIRST) if nodeid.startswith(start))
    return next(places, len(_FIRST))
