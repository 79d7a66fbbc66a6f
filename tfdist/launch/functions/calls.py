"""Calls that are sent to other processes: pickled by value, made there, and their outcomes."""

import contextlib
import os
import pickle
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from tfdist.launch.failures.failure import signal_name

_PACKAGE = Path(__file__).parents[2]
_RETURN_PLAIN = "Return plain values: numbers, strings, lists, NumPy arrays."
# The folders of the frames between a worker's start and the function of a call.
_OURS = (str(_PACKAGE / "launch" / "functions"), str(_PACKAGE / "testing"))


class WorkerTracebackError(Exception):
    """The text of a worker's exception that cannot be unpickled in the process that called."""


class WorkerFailedError(RuntimeError):
    """A worker raised an exception or its process ended; the others were stopped.

    Its `__cause__` is the worker's exception, or a `WorkerTracebackError` with its text.

    Args:
      message: The worker, its error, and its output.

    Attributes:
      worker: The index of the worker that failed first; at a time limit, of the first late one.
        None if only the failure box of `tfdist.launch` names it.
      exit_code: Its exit status if it ended without an exception: a code, or minus the number of
        the signal that ended it. None otherwise.
      output: The output of each worker, in worker order; empty after `tfdist.launch`, which has
        shown it.
    """

    def __init__(
        self, message: str, *, worker: int | None, exit_code: int | None, output: Sequence[str]
    ) -> None:
        super().__init__(message)
        self.worker = worker
        self.exit_code = exit_code
        self.output = tuple(output)

    @property
    def signal_name(self) -> str | None:
        """The signal that ended the worker, like "SIGKILL", or None."""
        if self.exit_code is None or self.exit_code >= 0:
            return None
        return signal_name(-self.exit_code)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a call in one worker."""

    time_s: float
    payload: bytes | None  # the value or the exception, pickled; None if that is impossible
    error: str | None = None  # the exception in one line, None if the call returned
    traceback: str = ""

    @classmethod
    def of_value(cls, value: Any) -> "Outcome":
        """Returns the outcome of a call that returned; a TypeError if the value cannot be sent."""
        import cloudpickle

        try:
            return cls(time_s=time.monotonic(), payload=cloudpickle.dumps(value))
        except Exception as error:
            kind = type(value).__name__
            raise TypeError(
                f"the result, of type {kind}, cannot be sent to the process that called: {error}. "
                f"{_RETURN_PLAIN}"
            ) from error

    @classmethod
    def of_error(cls, error: BaseException) -> "Outcome":
        import cloudpickle

        time_s = time.monotonic()
        text = "".join(traceback.format_exception(type(error), error, own_frames(error)))
        summary = traceback.format_exception_only(type(error), error)[-1].strip()
        payload: bytes | None = None
        with contextlib.suppress(Exception):
            payload = cloudpickle.dumps(error)
        return cls(time_s=time_s, payload=payload, error=summary, traceback=text)

    @classmethod
    def read(cls, path: Path) -> "Outcome | None":
        """Returns the outcome that the worker wrote, or None before that."""
        try:
            return cls(**pickle.loads(path.read_bytes()))
        except FileNotFoundError:
            return None

    def write(self, path: Path) -> None:
        write_whole(path, pickle.dumps(vars(self)))


def make_call(call: bytes) -> Any:
    """Makes a call that `pickle_call` returned, and returns its value."""
    import cloudpickle

    function, args, kwargs = cloudpickle.loads(call)
    return function(*args, **kwargs)


def own_frames(error: BaseException) -> TracebackType | None:
    """Returns the traceback of an error of `make_call`, without the frames of this package."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return trace


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that a reader sees all of it or no file."""
    draft = path.with_name(f"{path.name}.draft-{os.getpid()}")
    draft.write_bytes(content)
    draft.replace(path)


def pickle_call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bytes:
    """Returns a call as bytes that a worker can read without importing the function's module.

    It raises a TypeError if the function or an argument cannot be sent to another process.
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
    """Returns the value that a worker's call returned; a TypeError if it cannot be unpickled."""
    import cloudpickle

    assert outcome.payload is not None
    try:
        return cloudpickle.loads(outcome.payload)
    except Exception as error:
        raise TypeError(
            f"the result of worker {worker} cannot be read here: {error}. {_RETURN_PLAIN}"
        ) from error


def exception_of(outcome: Outcome) -> BaseException:
    """Returns a worker's exception, or one that holds its traceback as text."""
    import cloudpickle

    payload = outcome.payload
    # Unpickling an error of TensorFlow would import TensorFlow into this process.
    if payload is not None and ("tensorflow" in sys.modules or b"tensorflow" not in payload):
        with contextlib.suppress(Exception):
            error = cloudpickle.loads(payload)
            if isinstance(error, Exception):
                return error
    return WorkerTracebackError(outcome.traceback)


def _modules_by_value(function: Callable[..., Any]) -> list[ModuleType]:
    """Returns the modules that workers cannot import: the function's own, and those of pytest.

    The modules of tfdist and of installed packages are pickled by name: their classes and their
    state are then the worker's.
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
