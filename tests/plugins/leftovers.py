"""Pytest plugin: a test that leaves a process, a thread or a changed variable behind fails."""

import os
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

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
_END_LIMIT_S = 20.0


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a process, a non-daemon thread or a changed variable.

    Processes are looked for, which takes milliseconds, after the tests with the marker `processes`:
    another test that starts one fails anyway.
    """
    may_start = request.node.get_closest_marker("processes") is not None
    variables = _variables()
    processes = _processes() if may_start else set()
    threads = _threads()
    yield
    give_up_s = time.monotonic() + _END_LIMIT_S
    while (left := _started_since(processes) if may_start else []) or _threads() - threads:
        if time.monotonic() > give_up_s:
            break
        time.sleep(0.01)
    assert not left, f"the test left processes running: {left}"
    assert not _threads() - threads, f"the test left threads: {_threads() - threads}"
    after = _variables()
    changed = {
        name for name in variables.keys() | after.keys() if variables.get(name) != after.get(name)
    }
    assert not changed, f"the test changed environment variables: {sorted(changed)}"


@pytest.fixture(autouse=True)
def own_loop_is_over() -> Iterator[None]:
    """Ends the loop of a test that trains in this process; a program's ends with its process."""
    yield
    module = sys.modules.get("tfdist.strategies.eager.own_loop")
    if module is not None:
        module.LOOP.end()


def _variables() -> dict[str, str]:
    ignored = _SET_BY_IMPORTS | _SET_BY_PYTEST
    return {name: value for name, value in os.environ.items() if name not in ignored}


def _processes() -> set[psutil.Process]:
    """Returns all descendants of this process."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # No child: a look through all processes of the machine is saved.
        return set()
    return set(psutil.Process().children(recursive=True))


def _started_since(before: set[psutil.Process]) -> list[str]:
    """Describes new descendants, except the fork server, which lives as long as the session."""
    return [_describe(process) for process in _processes() - before if not _is_server(process)]


def _is_server(process: psutil.Process) -> bool:
    """Returns whether it is the fork server: our own child. Its workers have the same command."""
    try:
        is_child = process.ppid() == os.getpid()
        return is_child and "tfdist.testing.fork_server" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {process.status()} {' '.join(process.cmdline())}"
    except psutil.NoSuchProcess:
        return f"{process.pid}, just ended"


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.daemon}
