"""Runs a program with its Estimator from tfdist or, by one changed name, from TensorFlow's own.

Started as a script, by any Python that has TensorFlow, it serves: each line of standard input is a
request, {"program", "arguments", "replacements", "answer"}, run in a process forked from this one,
whose TensorFlow is imported already. The line on standard output that answers it is the exit
status; "answer" names the file for what `run` returns.
"""

from __future__ import annotations
import __future__

import contextlib
import io
import json
import logging
import os
import sys
import traceback
import warnings
from typing import Any


def run(
    program: str, arguments: list[str], replacements: dict[str, str] | None = None
) -> dict[str, Any]:
    """Runs a program in this process.

    Args:
      program: Its path.
      arguments: Its command line arguments.
      replacements: Texts of the program and what takes their place.

    Returns:
      {"printed": its standard output, "logged": (level, line) of TensorFlow's logger from INFO on}.
    """
    with open(program, encoding="utf-8") as file:
        text = file.read()
    for old, new in (replacements or {}).items():
        text = text.replace(old, new)
    # Annotations stay unread: Python 3.9 does not know all of them.
    code = compile(text, program, "exec", flags=__future__.annotations.compiler_flag)
    logged = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append((record.levelname, record.getMessage()))

    logger = logging.getLogger("tensorflow")
    logger.addHandler(Keep())
    logger.setLevel(logging.INFO)
    sys.argv = [program, *arguments]
    sys.path.insert(0, os.path.dirname(program))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {"__name__": "__main__", "__file__": program})
    return {"printed": printed.getvalue(), "logged": logged}


def answer(request: dict[str, Any]) -> None:
    """Does what a request asks for, in the forked process, and leaves the answer in a file."""
    try:
        warnings.simplefilter("ignore")
        got = run(request["program"], request["arguments"], request["replacements"])
    except BaseException:
        got = {"error": traceback.format_exc()}
    with open(request["answer"], "w", encoding="utf-8") as file:
        json.dump(got, file)


def serve() -> None:
    """Serves until standard input ends."""
    import tensorflow as tf

    getattr(tf, "estimator", None) and tf.estimator.Estimator  # loads it
    print("ready", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.dup2(2, 1)  # what the program prints besides is not an answer
            answer(json.loads(line))
            sys.stderr.flush()
            os._exit(0)
        print(os.waitpid(pid, 0)[1], flush=True)


if __name__ == "__main__":
    serve()
