"""The rank of this process under Open MPI or Horovod's own launcher; other launchers are refused.

| launcher | variables | supported |
|---|---|---|
| Open MPI's `mpirun`; `horovodrun --mpi`, which starts it | OMPI_COMM_WORLD_RANK, ... | yes |
| `horovodrun --gloo`, Horovod on Spark, Horovod on Ray | HOROVOD_RANK, ... | yes |
| MPICH, Intel MPI, Cray | PMI_RANK, PMI_SIZE | no |
| MVAPICH | MV2_COMM_WORLD_RANK, MV2_COMM_WORLD_SIZE | no |
| PMIx without Open MPI | PMIX_RANK | no |

`srun` may set the PMI and PMIx variables as well; its tasks are found by the Slurm variables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tfdist.cluster.slurm import find_step_place
from tfdist.cluster.tasks import ClusterError, read_integer
from tfdist.process.text import shown

MPIRUN, HOROVODRUN = "mpirun", "horovodrun"

# Prefixes of what Horovod's own launcher sets; other HOROVOD_ variables are settings.
OF_HOROVODRUN = (
    *("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_", "HOROVOD_CROSS_", "HOROVOD_HOSTNAME"),
    *("HOROVOD_CONTROLLER", "HOROVOD_GLOO_RENDEZVOUS_", "HOROVOD_ELASTIC"),
)
# Prefixes of launchers that are not supported. Open MPI's own ranks need their PMIX variables.
OF_OTHER_LAUNCHERS = ("PMI_", "PMIX_", "MV2_COMM_WORLD_")
OF_LAUNCHERS = ("OMPI_COMM_WORLD_", *OF_HOROVODRUN, *OF_OTHER_LAUNCHERS)

_PREFIXES = {MPIRUN: "OMPI_COMM_WORLD_", HOROVODRUN: "HOROVOD_"}
_FIELDS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
_SIZES = ("PMI_SIZE", "MV2_COMM_WORLD_SIZE")


@dataclass(frozen=True, kw_only=True)
class MpiRank:
    """This process's place in a run that `mpirun` or Horovod's own launcher started.

    Attributes:
      rank: Position in the whole run, from 0.
      size: Number of processes in the run.
      local_rank: Position among the processes of this machine, from 0.
      local_size: Number of processes on this machine.
      launcher: "mpirun", or "horovodrun" for all ways to start Horovod without MPI.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    launcher: str = MPIRUN


def find_mpi_rank(environ: Mapping[str, str] = os.environ) -> MpiRank | None:
    """Finds this process's rank among those that `mpirun` or Horovod's own launcher started.

    If both have set their variables in `environ`, HOROVOD_CONTROLLER decides, as in Horovod.

    Returns:
      The rank, or None if neither started this process.

    Raises:
      ClusterError: If some of a launcher's four variables are missing or contradict each other, or
        Horovod may change the number of processes during the run.
    """
    is_gloo = environ.get("HOROVOD_CONTROLLER", "").lower() == "gloo"
    for launcher in (HOROVODRUN, MPIRUN) if is_gloo else (MPIRUN, HOROVODRUN):
        names = [_PREFIXES[launcher] + field for field in _FIELDS]
        if any(name in environ for name in names):
            return _read_rank(environ, launcher, names)
    return None


def has_mpi_rank(environ: Mapping[str, str]) -> bool:
    """Returns whether `mpirun` or Horovod's launcher started this process; checks nothing."""
    return any(f"{prefix}RANK" in environ for prefix in _PREFIXES.values())


def check_launcher(environ: Mapping[str, str] = os.environ) -> None:
    """Refuses one of several processes that were started by a launcher that is not supported.

    Each would act as the chief and train alone. For a process without a TF_CONFIG that lists the
    workers. The ClusterError has the launcher's variable, and the launchers that are supported.
    """
    if has_mpi_rank(environ):
        return
    slurm_place = find_step_place(environ)
    for name in _SIZES:
        text = environ.get(name, "")
        size = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0
        # Other numbers than the step's: `srun` only started the daemons of another launcher.
        if size > 1 and (environ.get(name.replace("SIZE", "RANK")), text) != slurm_place:
            raise _not_supported(f"{name} is {size}", f"these {size} processes", name)
    if "PMIX_RANK" in environ and slurm_place is None:  # PMIx does not give the size.
        found = f"PMIX_RANK is {shown(environ['PMIX_RANK'])}, without Open MPI's variables"
        raise _not_supported(found, "its processes", "PMIX_RANK")


def _not_supported(found: str, processes: str, name: str) -> ClusterError:
    return ClusterError(
        f"{found}: {processes} come from an MPI launcher that is not supported, and each would "
        "train alone.\n"
        "Start them with tfdist run, Open MPI's mpirun, horovodrun --gloo or srun, or set "
        f"TF_CONFIG for each. If this process is to train alone, unset {name}."
    )


def _read_rank(environ: Mapping[str, str], launcher: str, names: list[str]) -> MpiRank:
    if launcher == HOROVODRUN and environ.get("HOROVOD_ELASTIC", "0") != "0":
        raise ClusterError(
            f"HOROVOD_ELASTIC is {shown(environ['HOROVOD_ELASTIC'])}: the number of processes may "
            "change during the run, which is not supported. Start them with horovodrun -np N, "
            "without --min-np, --max-np and --host-discovery-script."
        )
    present = [name for name in names if name in environ]
    # Horovod's settings begin with HOROVOD_ as well.
    all_of = "all OMPI_COMM_WORLD variables" if launcher == MPIRUN else ", ".join(names)
    numbers: list[int] = []
    for name in names:
        if name not in environ:
            raise ClusterError(
                f"{name} is not set, though {present[0]} is. Start the program with {launcher}, "
                f"which sets both, or unset {all_of}."
            )
        numbers.append(read_integer(environ, name, advice=f"Leave it to {launcher}."))
    rank, size, local_rank, local_size = numbers
    for name, number, limit_name, limit in (
        (names[0], rank, names[1], size),
        (names[2], local_rank, names[3], local_size),
        (names[3], local_size, names[1], size + 1),
    ):
        if number >= limit:
            raise ClusterError(
                f"{name} is {number} but {limit_name} is {environ[limit_name]}. "
                f"Leave these variables to {launcher}."
            )
    return MpiRank(
        rank=rank, size=size, local_rank=local_rank, local_size=local_size, launcher=launcher
    )
