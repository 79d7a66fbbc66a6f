"""How a program that uses tfdist ends: one line where that says it all, and the right exit code.

Importing `tfdist.cluster`, or what builds on it, puts `sys.excepthook` in place. It changes how an
error is shown and which exit code it gives, never whether it ends the program.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, ClassVar, NoReturn

from tfdist.process.exit_codes import BAD_CONFIGURATION
from tfdist.process.progress_file import find_progress_file

_SET_BY_LAUNCHERS = (
    *("TFDIST_PROGRESS_FILE", "TFDIST_INSTANCE_INDEX"),
    *("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK"),
)
_INTERRUPTED = 130

_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


class OneLineError(Exception):
    """An error whose message says all that the user needs: shown without a stack.

    Attributes:
      exit_code: What the program ends with if nobody catches it; see `exit_codes`.
    """

    exit_code: ClassVar[int] = BAD_CONFIGURATION


def install() -> None:
    """Puts our hook in front of the present one; a second call changes nothing.

    A user's own hook is called in our place for every error, and keeps the exit code.
    """
    if not isinstance(sys.excepthook, _ExceptHook):
        sys.excepthook = _ExceptHook(sys.excepthook)


def is_launched(environ: Mapping[str, str] = os.environ) -> bool:
    """Says whether a program, not a person, has started this process as one of several."""
    return any(name in environ for name in _SET_BY_LAUNCHERS)


def tell_when_leaving() -> None:
    """Has the launcher told as soon as this process begins to end, before anything that may hang.

    Each call moves that before everything that was registered with `atexit` meanwhile.
    """
    atexit.unregister(_say_leaving)
    atexit.register(_say_leaving)


def exit_code_of(error: BaseException, *, launched: bool) -> int | None:
    """Returns the exit code of an error that ends the program; None leaves it to Python."""
    if isinstance(error, OneLineError):
        return error.exit_code
    # Started by hand, Python ends itself by the signal: a shell's loop then ends, too.
    return _INTERRUPTED if isinstance(error, KeyboardInterrupt) and launched else None


def line_for(error: BaseException) -> str | None:
    """Returns what stands for the stack, or None where the stack is wanted."""
    if isinstance(error, KeyboardInterrupt):
        return "Interrupted."
    return f"{type(error).__name__}: {error}" if isinstance(error, OneLineError) else None


class _ExceptHook:
    """What `sys.excepthook` is.

    Args:
      previous: What it was before.
    """

    def __init__(self, previous: _Hook) -> None:
        self._previous = previous
        self.error: BaseException | None = None

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        is_interactive = hasattr(sys, "ps1") or sys.flags.interactive
        if not is_interactive:
            self.error = error
            _say_leaving()
        line = line_for(error)
        if line is not None and self._previous is sys.__excepthook__:
            print(line, file=sys.stderr, flush=True)
        else:
            self._previous(kind, error, trace)
        code = exit_code_of(error, launched=is_launched())
        if code is not None and not is_interactive:
            sys.exit(code)  # Python takes the exit code from an error of the hook itself.


def ending_error() -> BaseException | None:
    """Returns the error that nobody caught and that is ending this program, if that is why."""
    hook = sys.excepthook
    return hook.error if isinstance(hook, _ExceptHook) else None


def end_now(line: str, exit_code: int) -> NoReturn:
    """Ends this process from any thread, with a last line; for a main thread that cannot do it."""
    _say_leaving()
    print(line, file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(exit_code)


def _say_leaving() -> None:
    file = find_progress_file()
    if file is not None:
        file.write(phase="leaving")
