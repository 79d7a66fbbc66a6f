"""The file by which a machine says that it will be taken away."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tfdist.cluster.environment import PREEMPTED
from tfdist.launch.errors import UsageError
from tfdist.process.text import shown


def find_preemption_file(environ: Mapping[str, str]) -> Path | None:
    """Returns the file that TFDIST_PREEMPTED names, for which a launcher looks; None without one.

    If the file is there already, or its folder is not there, it raises a UsageError.
    """
    text = environ.get(PREEMPTED, "")
    if not text:
        return None
    path = Path(text).absolute()
    if path.exists():
        raise UsageError(
            f"the file of {PREEMPTED}, {shown(text)}, is there already: this machine is taken "
            "away, or the file is old. Remove an old one."
        )
    if not path.parent.is_dir():
        raise UsageError(
            f"{PREEMPTED} is {shown(text)}, and there is no folder {shown(str(path.parent))}. Name "
            "a file in a folder that is there."
        )
    return path
