"""How MPI ranks are started: which mpirun, with which options and environment."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_OPTIONS = (
    # By default each rank is bound to one core, and there may not be more ranks than cores.
    *("--bind-to", "none", "--oversubscribe"),
    # A rank that waits leaves its core to one that computes.
    *("--mca", "mpi_yield_when_idle", "1"),
)
_LOCAL_OPTIONS = (
    # All ranks are on this machine: shared memory serves. The libfabric transport ("ofi") would
    # cost a second at every shutdown.
    *("--mca", "pml", "ob1", "--mca", "btl", "^tcp,ofi"),
    # Containers often forbid what it would use instead, and Open MPI prints warnings.
    *("--mca", "btl_vader_single_copy_mechanism", "none"),
)
_REMOTE_OPTIONS = (
    # The libfabric transport and others try networks that reach nobody.
    *("--mca", "pml", "ob1", "--mca", "btl", "^ofi"),
    # A machine that was cut off is noticed after some 10 s; by default, after minutes.
    *("--mca", "oob_tcp_keepalive_time", "5"),
    *("--mca", "oob_tcp_keepalive_intvl", "2"),
    *("--mca", "oob_tcp_keepalive_probes", "3"),
)


def horovod_problem() -> str | None:
    """Returns why Horovod runs cannot be started here, or None if they can."""
    missing = []
    if importlib.util.find_spec("horovod") is None:
        missing.append("Horovod is not installed for this Python")
    if find_mpirun() is None:
        missing.append(f"there is no mpirun in {Path(sys.prefix, 'bin')} or on PATH")
    if not missing:
        return None
    return f"engine 'horovod' needs Horovod and mpirun: {' and '.join(missing)}."


def find_mpirun() -> str | None:
    """Returns the path of the environment's own mpirun, else of the one on PATH."""
    return shutil.which("mpirun", path=str(Path(sys.prefix, "bin"))) or shutil.which("mpirun")


def mpirun_command(mpirun: str, num_workers: int, command: Sequence[str]) -> tuple[str, ...]:
    """Returns the command that starts `command` as that many ranks on this machine."""
    size = str(num_workers)
    options = (*_OPTIONS, *_LOCAL_OPTIONS)
    return (mpirun, *options, "-np", size, "-H", f"localhost:{size}", *command)


def mpirun_options(
    mpirun: str, *, is_local: bool, subnet: str | None, kill_after_s: float
) -> tuple[str, ...]:
    """Returns mpirun's options for a whole run.

    Args:
      mpirun: Its path.
      is_local: Whether all ranks are on this machine.
      subnet: The network to use between machines, such as "10.0.0.0/24"; None: whichever works.
      kill_after_s: How long ranks have between TERM and KILL.
    """
    options = (*_OPTIONS, *(_LOCAL_OPTIONS if is_local else _REMOTE_OPTIONS))
    options += ("--mca", "odls_base_sigkill_timeout", str(round(kill_after_s)))
    if subnet is not None:
        options += ("--mca", "oob_tcp_if_include", subnet, "--mca", "btl_tcp_if_include", subnet)
    if not is_local and _is_from_pip(mpirun):
        options += ("--prefix", sys.prefix)  # the other machines find its daemon there
    return options


def mpirun_environment(mpirun: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment in which this mpirun works; the ranks inherit it."""
    # Killed ranks leave their shared memory behind: it belongs with the other temporary files.
    # ("vader" is Open MPI 4's name for the shared-memory transport, "sm" is 5's.)
    additions = {
        f"OMPI_MCA_btl_{transport}_backing_directory": environ["TMPDIR"]
        for transport in ("vader", "sm")
        if "TMPDIR" in environ
    }
    if os.geteuid() == 0:
        additions |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if _is_from_pip(mpirun):
        # Installed by pip it lies elsewhere than where it was compiled for.
        additions["OPAL_PREFIX"] = sys.prefix
    return {**additions, **environ}


def _is_from_pip(mpirun: str) -> bool:
    return Path(mpirun).parent == Path(sys.prefix, "bin")
