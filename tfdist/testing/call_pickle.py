"""Sending a call to workers, and bringing values and exceptions back, by value."""

import contextlib
import os
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from tfdist.testing.failures import WorkerTracebackError
from tfdist.testing.worker_process import Outcome


def pickle_call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bytes:
    """Returns a call as bytes that a worker can read without importing the test's module.

    Raises:
      TypeError: If the function or an argument cannot be sent to another process.
    """
    import cloudpickle

    modules = _modules_by_value(function)
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps((function, args, kwargs)))
    except Exception as error:
        raise TypeError(
            f"the call cannot be sent to a worker: {error}. "
            "Make what cannot be pickled (sessions, locks, open files) inside the function."
        ) from error
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def value_of(outcome: Outcome, worker: int) -> Any:
    """Returns the value that a worker's call returned.

    Raises:
      TypeError: If the value cannot be made again in the test's process.
    """
    import cloudpickle

    assert outcome.payload is not None
    try:
        return cloudpickle.loads(outcome.payload)
    except Exception as error:
        raise TypeError(
            f"the result of worker {worker} cannot be read in the test: {error}. "
            "Return plain values: numbers, strings, lists, NumPy arrays."
        ) from error


def exception_of(outcome: Outcome) -> BaseException:
    """Returns a worker's exception, or one that holds its traceback as text."""
    import cloudpickle

    payload = outcome.payload
    # To have a TensorFlow error itself, the test would have to import TensorFlow.
    if payload is not None and ("tensorflow" in sys.modules or b"tensorflow" not in payload):
        with contextlib.suppress(Exception):
            error = cloudpickle.loads(payload)
            if isinstance(error, Exception):
                return error
    return WorkerTracebackError(outcome.traceback)


def _modules_by_value(function: Callable[..., Any]) -> list[ModuleType]:
    """Returns the modules that workers cannot import: the function's own, and those of pytest.

    The modules of tfdist and of installed packages go by name, so that their classes and their
    state are the worker's.
    """
    while isinstance(function, partial):
        function = function.func
    own = getattr(function, "__module__", None) or type(function).__module__
    installed = tuple(
        sysconfig.get_path(kind) + os.sep for kind in ("stdlib", "purelib", "platlib")
    )
    chosen = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is None or name.split(".")[0] in ("tfdist", "__main__"):
            continue
        is_pytests = os.path.basename(file).startswith(("test_", "conftest."))
        if (name == own or is_pytests) and not os.path.abspath(file).startswith(installed):
            chosen.append(module)
    return chosen
