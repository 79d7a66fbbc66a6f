"""Tests of distributed programs: real local workers for a function or a script.

With tfdist installed, pytest has the fixture `fake_cluster`. Names are imported when they are first
used: pytest loads the plugin in this package in every project that has tfdist installed.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdist.launch.functions.calls import WorkerFailedError, WorkerTracebackError
    from tfdist.launch.machine.ports import ReservedPorts
    from tfdist.testing.engines import EngineMissingError, engine_problem
    from tfdist.testing.failures import WorkerTimeoutError
    from tfdist.testing.fake_cluster import FakeCluster
    from tfdist.testing.scripts import CompletedWorker, ScriptRun, ScriptWorker

__all__ = [
    "CompletedWorker",
    "EngineMissingError",
    "FakeCluster",
    "ReservedPorts",
    "ScriptRun",
    "ScriptWorker",
    "WorkerFailedError",
    "WorkerTimeoutError",
    "WorkerTracebackError",
    "engine_problem",
]

_HOMES = {
    "CompletedWorker": "tfdist.testing.scripts",
    "EngineMissingError": "tfdist.testing.engines",
    "FakeCluster": "tfdist.testing.fake_cluster",
    "ReservedPorts": "tfdist.launch.machine.ports",
    "ScriptRun": "tfdist.testing.scripts",
    "ScriptWorker": "tfdist.testing.scripts",
    "WorkerFailedError": "tfdist.launch.functions.calls",
    "WorkerTimeoutError": "tfdist.testing.failures",
    "WorkerTracebackError": "tfdist.launch.functions.calls",
    "engine_problem": "tfdist.testing.engines",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__]
