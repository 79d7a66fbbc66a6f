"""Checks around every test that it leaves nothing behind: no process, thread or variable."""

import os
import threading
import time
from collections.abc import Iterator
from importlib.metadata import entry_points

import psutil
import pytest

_PLUGIN = "tfdist.testing.pytest_plugin"
# With tfdist installed, pytest has found the plugin by itself.
pytest_plugins = (
    [] if any(entry.value == _PLUGIN for entry in entry_points(group="pytest11")) else [_PLUGIN]
)

_SET_BY_IMPORTS = {  # of TensorFlow, and of tfdist.estimator
    "ENABLE_RUNTIME_UPTIME_TELEMETRY",
    "HDF5_PLUGIN_PATH",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "TF2_BEHAVIOR",
    "TF_USE_LEGACY_KERAS",
    "TPU_ML_PLATFORM",
    "TPU_ML_PLATFORM_VERSION",
}
_SET_BY_PYTEST = {"PYTEST_CURRENT_TEST"}
_END_LIMIT_S = 5.0


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Fails a test that leaves a process, a non-daemon thread or a changed variable."""
    variables = _variables()
    processes = _processes()
    threads = _threads()
    yield
    give_up_s = time.monotonic() + _END_LIMIT_S
    while _processes() - processes or _threads() - threads:
        if time.monotonic() > give_up_s:
            break
        time.sleep(0.01)
    left = [_describe(process) for process in _processes() - processes]
    assert not left, f"the test left processes running: {left}"
    assert not _threads() - threads, f"the test left threads: {_threads() - threads}"
    after = _variables()
    changed = {
        name for name in variables.keys() | after.keys() if variables.get(name) != after.get(name)
    }
    assert not changed, f"the test changed environment variables: {sorted(changed)}"


def _variables() -> dict[str, str]:
    ignored = _SET_BY_IMPORTS | _SET_BY_PYTEST
    return {name: value for name, value in os.environ.items() if name not in ignored}


def _processes() -> set[psutil.Process]:
    """Returns our descendants, without the fork server, which lives as long as the session."""
    children = psutil.Process().children()
    servers = [child for child in children if "tfdist.testing.fork_server" in _describe(child)]
    return set(psutil.Process().children(recursive=True)) - set(servers)


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {process.status()} {' '.join(process.cmdline())}"
    except psutil.NoSuchProcess:
        return f"{process.pid}, just ended"


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.daemon}
