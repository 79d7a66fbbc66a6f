"""The programs `examples/bert/run_pretraining.py` and `examples/cnn/train.py`, in this process."""

import contextlib
import importlib
import io
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = {
    "bert": str(EXAMPLES / "bert" / "run_pretraining.py"),
    "cnn": str(EXAMPLES / "cnn" / "train.py"),
}
OF_ONE = [str(Path(script).parent) for script in SCRIPTS.values()]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The end of a program: its exit code, standard output, and standard error."""

    code: int
    out: str
    err: str


@contextlib.contextmanager
def modules_of(name: str) -> Iterator[None]:
    """Makes the modules of "bert" or "cnn" importable; both have one of the same name."""
    folder = str(EXAMPLES / name)
    others = {
        one: module
        for one, module in list(sys.modules.items())
        if _folder_of(module) in OF_ONE and _folder_of(module) != folder
    }
    for one in others:
        del sys.modules[one]
    with mock.patch.object(sys, "path", [folder, str(EXAMPLES / "application"), *sys.path]):
        try:
            yield
        finally:
            for one, module in list(sys.modules.items()):
                if _folder_of(module) == folder:
                    del sys.modules[one]
            sys.modules.update(others)


def load(name: str) -> Any:
    """Returns a module, in `modules_of`."""
    return importlib.import_module(name)


def _folder_of(module: Any) -> str:
    # No Path: there are thousands of modules.
    return os.path.dirname(getattr(module, "__dict__", {}).get("__file__") or "")


def run_application(
    name: str,
    *options: str,
    within: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Ended:
    """Runs the program of "bert" or "cnn" to its end, with its modules prepared by `within`."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.ExitStack() as scopes:
        scopes.enter_context(modules_of(name))
        scopes.enter_context(within())
        scopes.enter_context(mock.patch.dict(os.environ))  # It sets TensorFlow's log level.
        scopes.enter_context(mock.patch.object(sys, "argv", [SCRIPTS[name], *options]))
        scopes.enter_context(contextlib.redirect_stdout(out))
        scopes.enter_context(contextlib.redirect_stderr(err))
        try:
            runpy.run_path(SCRIPTS[name], run_name="__main__")
        except SystemExit as end:
            code = int(end.code or 0)
    return Ended(code=code, out=out.getvalue(), err=err.getvalue())
