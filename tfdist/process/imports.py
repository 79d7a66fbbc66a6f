"""The modules that this process has imported, written for the standby of its agent.

A standby imports in advance what the program has imported when it began to train: modules of
Python, of installed packages and of tfdist. The program's own modules are left to the program,
which the user may change between two starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

IMPORTS_VARIABLE = "TFDIST_IMPORTS_FILE"
# Python imports them at its start, and a standby runs in place of the first.
_OF_SITE = ("sitecustomize", "usercustomize")


def write_imports() -> None:
    """Writes the names of the imported modules, and the variables set so far, if a launcher asks.

    Does so once. A file that cannot be written is left out: the next start then takes longer.
    """
    path = os.environ.get(IMPORTS_VARIABLE, "")
    if not path or os.path.exists(path):
        return
    modules, own = imported_modules()
    begin = _initial_environment()
    changes = {
        name: os.environ.get(name)
        for name in {*begin, *os.environ}
        if begin.get(name) != os.environ.get(name)
    }
    draft = Path(f"{path}.{os.getpid()}")
    with contextlib.suppress(OSError):
        draft.write_text(json.dumps({"modules": modules, "own": own, "environment": changes}))
        draft.replace(path)


def imported_modules() -> tuple[list[str], list[str]]:
    """Returns the names of the imported modules: the installed ones, and all others.

    They are in the order in which their imports began, as far as the start-up file of a new worker
    has noted that (`tfdist/launch/standby/import_order.py`).
    """
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    roots = [f"{os.path.realpath(sysconfig.get_path(name))}{os.sep}" for name in names]
    roots.append(f"{os.path.realpath(Path(__file__).parents[1])}{os.sep}")  # tfdist
    installed: list[str] = []
    own: list[str] = []
    noted = (getattr(finder, "tfdist_import_order", None) for finder in sys.meta_path)
    begun: dict[str, None] = next((order for order in noted if order is not None), {})
    loaded = dict(sys.modules)
    for name in dict.fromkeys([*begun, *loaded]):
        file = _file_of(name, loaded[name]) if name in loaded else None
        if file is not None and name not in _OF_SITE:
            is_installed = os.path.realpath(file).startswith(tuple(roots))
            (installed if is_installed else own).append(name)
    return installed, own


def _file_of(name: str, module: ModuleType) -> str | None:
    # Not by attribute: that would load a module that is to be loaded when it is used.
    try:
        spec = object.__getattribute__(module, "__dict__").get("__spec__")
    except AttributeError:
        return None
    has_file = spec is not None and spec.has_location and spec.name == name
    return spec.origin if has_file and isinstance(spec.origin, str) else None


def _initial_environment() -> dict[str, str]:
    """Returns the environment with which this process was started."""
    with contextlib.suppress(OSError):
        text = Path("/proc/self/environ").read_bytes()
        pairs = (entry.partition(b"=") for entry in text.split(b"\0") if entry)
        return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    return dict(os.environ)
