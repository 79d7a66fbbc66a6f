"""Runs of a script inside a worker, which has TensorFlow imported already."""

import contextlib
import io
import os
import runpy
import sys
import time
from typing import Any


def run_script(argv: list[str]) -> str:
    """Runs a script in this process, and returns what it wrote to standard output."""
    sys.argv = argv
    sys.path.insert(0, os.path.dirname(argv[0]))  # As Python does for a script.
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(argv[0], run_name="__main__")
    return printed.getvalue()


def run_to_error(path: str, *arguments: str) -> dict[str, Any]:
    """Runs a script in this process, with TensorFlow imported before.

    Returns:
      said: The one line that it ends with on standard error, or None. seconds: From its first line.
    """
    import tensorflow  # noqa: F401

    from tfdist.process.endings import OneLineError

    sys.argv = [path, *arguments]
    start_s = time.monotonic()
    said = None
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        said = end.code
    except OneLineError as error:
        said = f"{type(error).__name__}: {error}"
    return {"said": said, "seconds": time.monotonic() - start_s}
