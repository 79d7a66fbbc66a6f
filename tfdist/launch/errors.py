"""Errors that end a command before or during the start of the workers."""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec

# What the launching side needs, by the name of its import; as in pyproject.toml.
REQUIREMENTS = {
    "cloudpickle": "cloudpickle>=2.2",
    "packaging": "packaging>=23",
    "psutil": "psutil>=5.9",
    "rich": "rich>=13.7",
    "shtab": "shtab>=1.7",
    "yaml": "pyyaml>=6",
}


class UsageError(ValueError):
    """An option, a file or the environment is wrong; the message is one or two lines.

    The command prints it and ends with exit code 2, before anything is started.
    """


class StartError(RuntimeError):
    """The workers could not be started; the message names those that are missing and the cause."""


def missing_requirement(error: ModuleNotFoundError) -> UsageError | None:
    """Returns the error to show where a package that tfdist needs is not installed.

    The fix installs all that are missing. None if the error is about another module.
    """
    if (error.name or "").partition(".")[0] not in REQUIREMENTS:
        return None
    missing = [text for name, text in REQUIREMENTS.items() if find_spec(name) is None]
    command = shlex.join([sys.executable, "-m", "pip", "install", *missing])
    return UsageError(f"{error.msg}, which tfdist needs. Run: {command}")
