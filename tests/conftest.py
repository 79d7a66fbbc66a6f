"""The environment of all tests, and fixtures that read logs and event files, or watch processes."""

import gc
import logging
import os
import runpy
import signal
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import psutil
import pytest

_PLUGIN = "tfdist.testing.pytest_plugin"
# With tfdist installed, pytest has found the plugin by itself.
_IS_INSTALLED = any(entry.value == _PLUGIN for entry in entry_points(group="pytest11"))
pytest_plugins = [
    "leftovers",  # these are in plugins/
    "mutated_lines",
    "process_marks",
    "dealing",
    *([] if _IS_INSTALLED else [_PLUGIN]),
]

# A shell that starts us in the background lets us ignore Ctrl-C, and all that we start with it;
# nohup does so with the end of the terminal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Every Python that is started reads the module in the first folder, and starts faster; workers
# import what they run from the second.
_FOLDERS = [str(Path(__file__).with_name(name)) for name in ("quick_start", "programs")]
_PATHS = os.environ.get("PYTHONPATH", "").split(os.pathsep)
if _FOLDERS[0] not in _PATHS:
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*_FOLDERS, *_PATHS]))
    runpy.run_path(f"{_FOLDERS[0]}/sitecustomize.py")

# The same arithmetic on every machine. Where TensorFlow uses oneDNN by itself, a product's order of
# addition depends on the shapes, so that numbers that should agree to 6 decimals may miss by 1e-6.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

# What the tests of pipelines compute on, beside the host.
_NUM_CPU_DEVICES = 8


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-fault-table",
        action="store_true",
        help="write what the tests of faults have seen into docs/faults.md",
    )
    parser.addoption(
        "--write-keras-numbers",
        action="store_true",
        help="write what the tests of Keras programs have seen into docs/keras-numbers.md",
    )


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


def pytest_collection_finish() -> None:
    # TensorFlow's half a million objects stay: no collection of garbage needs to look at them.
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def collect_log() -> Callable[[], list[str]]:
    """Starts to collect the lines that TensorFlow's logger gets from INFO on; for a worker."""

    def collect_log() -> list[str]:
        import logging

        class Keep(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                lines.append(record.getMessage())

        lines: list[str] = []
        logger = logging.getLogger("tensorflow")
        logger.addHandler(Keep())
        logger.setLevel(logging.INFO)
        return lines

    return collect_log


@pytest.fixture
def logged(collect_log: Callable[[], list[str]]) -> Iterator[list[str]]:
    """The lines that TensorFlow's logger gets during the test, from INFO on."""
    logger = logging.getLogger("tensorflow")
    handlers, level = list(logger.handlers), logger.level
    yield collect_log()
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.fixture
def snapshot_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of /dev/shm; this process belongs to a run that may start again."""
    from tfdist.process import snapshot_folders
    from tfdist.strategies.saving import snapshots

    folder = tmp_path / "memory"
    folder.mkdir()
    for module in (snapshots, snapshot_folders):
        monkeypatch.setattr(module, "MEMORY", folder)
    monkeypatch.setenv("TFDIST_RUN", snapshot_folders.new_run())
    return folder


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


@pytest.fixture(scope="session")
def within() -> Callable[[float], float]:
    """Makes a limit longer where more processes want to run than this machine has cores."""
    return lambda limit_s: limit_s * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def _is_running(pid: int) -> bool:
    """Returns whether a process runs; one that has ended does not, also before its parent notes."""
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
    from tfdist.testing.run import wait_until

    def wait(*pids: int, limit_s: float = 10.0) -> bool:
        return wait_until(lambda: not any(_is_running(pid) for pid in pids), limit_s)

    return wait
