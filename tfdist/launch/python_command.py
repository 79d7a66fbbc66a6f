"""Commands that run a module of ours in a new interpreter."""

import os
import sys


def python_command(module: str, *args: str, with_packages: bool = True) -> list[str]:
    """Returns the command that runs `main(*args)` of a module of ours in a new interpreter.

    The module is found where this one was found, installed or not.

    Args:
      module: The module's dotted name.
      *args: What `main` gets.
      with_packages: False leaves out the installed packages, which starts faster.
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    code = (
        f"import sys; sys.path.insert(0, {root!r}); from {module} import main; main(*sys.argv[1:])"
    )
    flags = [] if with_packages else ["-S"]
    return [sys.executable, *flags, "-c", code, *args]
