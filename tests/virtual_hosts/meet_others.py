"""Meets the other workers without TensorFlow, over MPI in a job of mpirun, else as strategies do.

    meet_others.py OUT

Each worker leaves a file in OUT, under its own index.
"""

import ctypes
import os
import sys
from pathlib import Path

from tfdist.cluster import find_cluster, find_mpi_rank, meet


def main(out: str) -> None:
    rank = find_mpi_rank()
    if rank is not None:
        index, count = rank.rank, sum_over_mpi(1)
    else:
        found = find_cluster()
        assert found is not None
        cluster, task = found
        meet(cluster, task)
        index, count = cluster.worker_index(task), len(cluster.workers)
    Path(out, str(index)).touch()
    # In one piece: without a buffer, `print` lets another worker write before the end of the line.
    sys.stdout.write(f"worker {index} of {count} on {os.uname().nodename} is done\n")


def sum_over_mpi(number: int) -> int:
    """Returns the sum of the ranks' numbers."""
    own = Path(sys.prefix, "lib", "libmpi.so.40")
    mpi = ctypes.CDLL(str(own) if own.exists() else own.name)
    # Open MPI's constants are the addresses of these.
    integer, add, world = (
        ctypes.byref(ctypes.c_byte.in_dll(mpi, f"ompi_mpi_{name}"))
        for name in ("int", "op_sum", "comm_world")
    )
    total = ctypes.c_int()
    mpi.MPI_Init(None, None)
    given = ctypes.byref(ctypes.c_int(number))
    mpi.MPI_Allreduce(given, ctypes.byref(total), 1, integer, add, world)
    mpi.MPI_Finalize()
    return total.value


if __name__ == "__main__":
    main(sys.argv[1])
