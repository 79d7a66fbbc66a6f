"""The start of MPI ranks: the mpirun to use, its options, and its environment."""

import contextlib
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_OPTIONS = (
    # By default mpirun binds each rank to one core, and refuses more ranks than cores.
    *("--bind-to", "none", "--oversubscribe"),
    # A waiting rank yields its core to a computing one.
    *("--mca", "mpi_yield_when_idle", "1"),
)
_LOCAL_OPTIONS = (
    # All ranks are on this machine and use shared memory. The libfabric transport ("ofi") would
    # add a second to every shutdown.
    *("--mca", "pml", "ob1", "--mca", "btl", "^tcp,ofi"),
    # Containers often forbid the single-copy mechanisms, and Open MPI then prints warnings.
    *("--mca", "btl_vader_single_copy_mechanism", "none"),
)
_REMOTE_OPTIONS = (
    # The libfabric transport and others try networks that do not reach the other machines.
    *("--mca", "pml", "ob1", "--mca", "btl", "^ofi"),
    # A disconnected machine is noticed after about 30 s: later than by workers and launcher, which
    # wait for 20 s. With the defaults it takes minutes.
    *("--mca", "oob_tcp_keepalive_time", "10"),
    *("--mca", "oob_tcp_keepalive_intvl", "5"),
    *("--mca", "oob_tcp_keepalive_probes", "4"),
)


def horovod_problem() -> str | None:
    """Returns the reason why Horovod runs cannot be started here, or None if they can."""
    missing = []
    if importlib.util.find_spec("horovod") is None:
        missing.append("Horovod is not installed for this Python")
    if find_mpirun() is None:
        missing.append(f"there is no mpirun in {Path(sys.prefix, 'bin')} or on PATH")
    if not missing:
        return None
    return f"engine 'horovod' needs Horovod and mpirun: {' and '.join(missing)}."


def find_mpirun() -> str | None:
    """Returns the path of the Python environment's mpirun, else of the one on PATH, else None."""
    return shutil.which("mpirun", path=str(Path(sys.prefix, "bin"))) or shutil.which("mpirun")


def open_mpi_version(text: str) -> str | None:
    """Returns "4.1.8" from the output of Open MPI's `mpirun --version`; None for another MPI."""
    found = re.search(r"Open MPI\)? v?(\d\S*)", text)
    return found[1] if found else None


def mpirun_command(mpirun: str, num_workers: int, command: Sequence[str]) -> tuple[str, ...]:
    """Returns the command that starts `command` as `num_workers` ranks on this machine."""
    size = str(num_workers)
    options = (*_OPTIONS, *_LOCAL_OPTIONS)
    return (mpirun, *options, "-np", size, "-H", f"localhost:{size}", *command)


def mpirun_options(
    mpirun: str, *, is_local: bool, subnet: str | None, kill_after_s: float
) -> tuple[str, ...]:
    """Returns mpirun's options for a whole run.

    `subnet` is the network between the machines, such as "10.0.0.0/24"; None leaves the choice to
    mpirun. A rank is killed `kill_after_s` seconds after TERM.
    """
    options = (*_OPTIONS, *(_LOCAL_OPTIONS if is_local else _REMOTE_OPTIONS))
    options += ("--mca", "odls_base_sigkill_timeout", str(round(kill_after_s)))
    if subnet is not None:
        options += ("--mca", "oob_tcp_if_include", subnet, "--mca", "btl_tcp_if_include", subnet)
    if not is_local and _is_from_pip(mpirun):
        options += ("--prefix", sys.prefix)  # the path of its daemon on the other machines
    return options


def mpirun_environment(mpirun: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns `environ` with the variables that this mpirun needs. The ranks inherit it."""
    # Killed ranks leave their shared-memory files behind, so these are placed in TMPDIR.
    # ("vader" is Open MPI 4's name for the shared-memory transport, "sm" is 5's.)
    additions = {
        f"OMPI_MCA_btl_{transport}_backing_directory": environ["TMPDIR"]
        for transport in ("vader", "sm")
        if "TMPDIR" in environ
    }
    if os.geteuid() == 0:
        additions |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if _is_from_pip(mpirun):
        # The installation folder of pip differs from the folder that Open MPI was compiled for.
        additions["OPAL_PREFIX"] = sys.prefix
    return {**additions, **environ}


def remove_session_folder(mpirun_pid: int) -> None:
    """Removes the temporary files that an mpirun of this machine has left because it was killed.

    Open MPI 4 has them in a folder for each host and user, with one for each mpirun in it.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"ompi.*.{os.geteuid()}/pid.{mpirun_pid}"):
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # another mpirun has files there
            folder.parent.rmdir()


def _is_from_pip(mpirun: str) -> bool:
    return Path(mpirun).parent == Path(sys.prefix, "bin")
