"""The start-up file of a new worker: notes the order in which its imports begin.

Python runs a copy of this file as `sitecustomize`, before it looks at the program. `sys.modules` is
in the order in which imports ended, and two modules that import each other cannot be imported in
that one. It needs nothing but Python's standard library, and little of that.
"""

import os
import sys
from typing import Any

# PYTHONPATH of the program, before the folder of this file was put in front of it.
VARIABLE = "TFDIST_PYTHONPATH"


class ImportOrder:
    """A finder that finds no module, and notes each name for which it is asked first."""

    def __init__(self) -> None:
        self.tfdist_import_order: dict[str, None] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        self.tfdist_import_order.setdefault(name)


def main() -> None:
    """Begins to note imports, and gives the program its own PYTHONPATH."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [one for one in sys.path if os.path.abspath(one or ".") != folder]
    path = os.environ.pop(VARIABLE)
    if path:
        os.environ["PYTHONPATH"] = path
    else:
        del os.environ["PYTHONPATH"]
    sys.meta_path.insert(0, ImportOrder())


if __name__ == "sitecustomize":
    main()
    # The program's own one, if there is one; `site` knows what to do if there is none.
    del sys.modules["sitecustomize"]
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
