"""Runs of a script inside a worker, which has TensorFlow imported already."""

import contextlib
import io
import os
import runpy
import sys


def run_script(argv: list[str]) -> str:
    """Runs a script in this process, and returns what it wrote to standard output."""
    sys.argv = argv
    sys.path.insert(0, os.path.dirname(argv[0]))  # As Python does for a script.
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(argv[0], run_name="__main__")
    return printed.getvalue()
