"""The end of a program that uses tfdist: an error's line, and the exit code.

`install` replaces `sys.excepthook`, which Python calls for an error that ends the program. It
changes the text and the exit code, never whether the error ends the program. Importing tfdist does
not install it; these do:

    a strategy, a RunConfig (so an Estimator)   a run begins in this process
    `meet`                                      the same, for a program without either
    an agent of `tfdist run`                    the process that keeps a worker
    any OneLineError that is made               so errors that come before are one line as well
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, ClassVar, NoReturn

from tfdist.process.exit_codes import BAD_CONFIGURATION, INTERRUPTED
from tfdist.process.progress_file import find_progress_file

_SET_BY_LAUNCHERS = (
    *("TFDIST_PROGRESS_FILE", "TFDIST_INSTANCE_INDEX"),
    *("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK"),
)

# Logged before an error by a training that another start would repeat, number for number.
COMES_AGAIN = "A restart from the last checkpoint would end in the same way"

_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]

# What other workers hear of one whose program ends while it trains, without an error.
ENDED_INSIDE = "the program ended inside of fit"


class OneLineError(Exception):
    """An error with a message that is all that the user needs; it is shown without a stack.

    Attributes:
      exit_code: The exit code of the program if the error is not caught; see `exit_codes`.
    """

    exit_code: ClassVar[int] = BAD_CONFIGURATION

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        install()


def install() -> None:
    """Puts a hook in front of the present `sys.excepthook`; a second call changes nothing.

    A hook that the user has set is called for every error and shows it; the exit code is ours.
    """
    if not isinstance(sys.excepthook, _ExceptHook):
        sys.excepthook = _ExceptHook(sys.excepthook)


_Naming = Callable[[BaseException], OneLineError | None]
_namings: list[_Naming] = []


def name_errors(naming: _Naming) -> None:
    """Adds a function that names an error of a library in one line; None is for other errors.

    It is asked for an error that ends the program. A second call changes nothing.
    """
    install()
    if naming not in _namings:
        _namings.append(naming)


def named(error: BaseException) -> BaseException:
    """Returns an error as the functions of `name_errors` name it; else itself."""
    return next((found for naming in _namings if (found := naming(error)) is not None), error)


def is_launched(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether a launcher has started this process as one of several."""
    return any(name in environ for name in _SET_BY_LAUNCHERS)


def tell_when_leaving() -> None:
    """Registers the phase "leaving" to be written as soon as this process begins to end.

    It comes before all functions that are registered with `atexit` at the time of the call: these
    may wait without limit.
    """
    atexit.unregister(_say_leaving)
    atexit.register(_say_leaving)


class _ExceptHook:
    """The hook that `install` puts in place."""

    def __init__(self, previous: _Hook) -> None:
        self._previous = previous
        self.error: BaseException | None = None

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        error = named(error)
        kind = type(error)
        is_interactive = hasattr(sys, "ps1") or sys.flags.interactive
        if not is_interactive:
            self.error = error
            _say_leaving()
        line, code = None, None
        shown = _error_to_show(error)
        if shown is not None:
            line, code = f"{type(shown).__name__}: {shown}", shown.exit_code
        elif isinstance(error, KeyboardInterrupt):
            # Started by hand, Python ends itself by the signal, which ends a shell's loop as well.
            line, code = "Interrupted.", INTERRUPTED if is_launched() else None
        if line is not None and self._previous is sys.__excepthook__:
            print_to_stderr(line)
        else:
            self._previous(kind, error, trace)
        if code is not None and not is_interactive:
            sys.exit(code)  # Python takes the exit code from an error of the hook itself.


def _error_to_show(error: BaseException) -> OneLineError | None:
    """Returns an error for one line; also one that Keras has copied into another, and hidden."""
    hidden = error.__context__ if error.__suppress_context__ else None
    if isinstance(error, OneLineError):
        return error
    if isinstance(hidden, OneLineError) and str(hidden) in str(error):
        return hidden
    return None


def ending_error() -> BaseException | None:
    """Returns the uncaught error that is ending this program; None if there is none."""
    hook = sys.excepthook
    return hook.error if isinstance(hook, _ExceptHook) else None


def end_now(line: str, exit_code: int) -> NoReturn:
    """Ends this process from any thread, with a last line: the main thread may be blocked."""
    _say_leaving()
    print_to_stderr(line)
    sys.stdout.flush()
    os._exit(exit_code)


def print_to_stderr(line: str) -> None:
    """Prints one line at once, as one piece: `print` lets other threads write before its end."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _say_leaving() -> None:
    file = find_progress_file()
    if file is not None:
        file.write(phase="leaving")
