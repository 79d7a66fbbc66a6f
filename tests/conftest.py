"""Checks around every test that it leaves nothing behind; reading log lines and event files."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import psutil
import pytest

_PLUGIN = "tfdist.testing.pytest_plugin"
# With tfdist installed, pytest has found the plugin by itself.
pytest_plugins = (
    [] if any(entry.value == _PLUGIN for entry in entry_points(group="pytest11")) else [_PLUGIN]
)

# A shell that starts us in the background lets us ignore Ctrl-C, and all that we start with it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Every Python that is started reads the module in there first, and starts faster.
_QUICK_START = str(Path(__file__).with_name("quick_start"))
_PATHS = os.environ.get("PYTHONPATH", "").split(os.pathsep)
if _QUICK_START not in _PATHS:
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_QUICK_START, *_PATHS]))

# The same arithmetic on every machine. Where TensorFlow uses oneDNN by itself, a product's order of
# addition depends on the shapes, so that numbers that should agree to 6 decimals may miss by 1e-6.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

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

# With `-n 2` the tests of a file run in one process, in order, as without it: they share what their
# fixtures made. So do those of these folders, whose fixtures are the dearer ones.
_ONE_PROCESS_FOLDERS = (
    "tests/faults/",
    "tests/launch/kubernetes/",
    "tests/virtual_hosts/",
    "tests/conformance/",
    "tests/movers/",
)
# What the tests of pipelines compute on, beside the host.
_NUM_CPU_DEVICES = 8
# What takes longest comes first, so that no process is left alone with it at the end.
_FIRST = (
    *_ONE_PROCESS_FOLDERS,
    "tests/examples/test_mnist.py",
    "tests/examples/test_ray.py",
    "tests/multi_worker/",
    "tests/examples/",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-fault-table",
        action="store_true",
        help="write what the tests of faults have seen into docs/faults.md",
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


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Makes the logical CPUs of the tests of pipelines, in the process that will run them.

    TensorFlow takes them only before it starts, and a test module may start it by being imported.
    """
    config = session.config
    if config.getoption("numprocesses", None):  # The process that deals out tests, and runs none.
        return
    folder = Path(__file__).parent / "pipeline"
    chosen = [config.invocation_params.dir / arg.split("::")[0] for arg in config.args]
    if any(folder.is_relative_to(path) or path.is_relative_to(folder) for path in chosen):
        from tfdist.pipeline.devices import set_cpu_devices

        set_cpu_devices(_NUM_CPU_DEVICES)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # One of pytest-xdist's processes.
        items.sort(key=lambda item: _place(item.nodeid))


def _place(nodeid: str) -> int:
    places = (place for place, start in enumerate(_FIRST) if nodeid.startswith(start))
    return next(places, len(_FIRST))


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


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The lines that TensorFlow's logger gets during the test, from INFO on."""

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    lines: list[str] = []
    logger = logging.getLogger("tensorflow")
    handler, level = Keep(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lines
    logger.setLevel(level)
    logger.removeHandler(handler)


@pytest.fixture
def read_events() -> Callable[[Path | str], dict[str, list[tuple[int, Any]]]]:
    """Reads a folder's event files: tag to (step, value) pairs."""

    import tensorflow.compat.v1 as v1

    def read_events(folder: Path | str) -> dict[str, list[tuple[int, Any]]]:
        v1.summary.FileWriterCache.clear()
        found: dict[str, list[tuple[int, Any]]] = {}
        for path in sorted(Path(folder).glob("events.out.tfevents.*")):
            for event in v1.train.summary_iterator(str(path)):
                for value in event.summary.value:
                    which = value.WhichOneof("value")
                    plain = value.simple_value if which == "simple_value" else value.tensor
                    found.setdefault(value.tag, []).append((event.step, plain))
        return found

    return read_events
