"""The nodes of a job that are left after a loss, and a start of the workers on these alone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from tfdist.cluster.rendezvous.sockets import connect
from tfdist.cluster.slurm import expand_node_list
from tfdist.launch.errors import UsageError

# The default port of slurmd. If the cluster uses another one, a live node refuses the connection,
# which is an answer as well.
_ANY_PORT = 6818
_CONTROLLER_LIMIT_S = 30.0
# With this variable srun does not wait until an earlier step has ended, also on a lost node.
OVERLAP = "SLURM_OVERLAP"
_NODES_OPTION = "--nodes="  # of srun
_RANKS_OPTION = "-np"  # of mpirun


def find_answering(nodes: Iterable[str]) -> list[str]:
    """Returns the nodes that answer, in their order; those that do not take a few seconds."""
    names = list(nodes)
    with ThreadPoolExecutor(max_workers=len(names) or 1) as pool:
        answers = list(pool.map(_does_answer, names))
    return [name for name, answer in zip(names, answers, strict=True) if answer]


def nodes_at_start(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the nodes that the job got."""
    return expand_node_list(environ["SLURM_JOB_NODELIST"], "SLURM_JOB_NODELIST")


def find_nodes_left(job_id: str, nodes: Iterable[str]) -> list[str]:
    """Returns the nodes that answer and are still the job's, for Slurm; else UsageError.

    Slurm takes a node that it has declared down out of a job with --no-kill.
    """
    said = _ask("squeue", "--noheader", "--format=%N", f"--jobs={job_id}").strip()
    of_the_job = expand_node_list(said, "squeue's NODELIST") if said else []
    return find_answering(node for node in nodes if node in of_the_job)


def remove_on_nodes(job_id: str, folder: str) -> None:
    """Removes a folder on the nodes of the job that answer; a UsageError if Slurm does not."""
    left = find_nodes_left(job_id, nodes_at_start())
    places = (f"--nodes={len(left)}", f"--ntasks={len(left)}", f"--nodelist={','.join(left)}")
    _ask("srun", *places, "--ntasks-per-node=1", "rm", "-rf", folder)


def end_steps(job_id: str) -> None:
    """Ends what a killed `srun` has left on nodes that answer; a UsageError if Slurm does not."""
    said = _ask("squeue", "--noheader", "--steps", "--format=%i", f"--jobs={job_id}")
    for step in said.split():
        if step.rpartition(".")[2].isdigit():  # Else it is the batch script's.
            _ask("scancel", step)


def command_on(command: Sequence[str], nodes: Sequence[str], tasks_per_node: int) -> list[str]:
    """Returns the command of `srun` or `mpirun`, changed so that it uses these nodes alone."""
    words = list(command)
    number = str(len(nodes) * tasks_per_node)
    at = next(i for i, word in enumerate(words) if word.startswith((_NODES_OPTION, _RANKS_OPTION)))
    if words[at] == _RANKS_OPTION:
        places = ",".join(f"{node}:{tasks_per_node}" for node in nodes)
        words[at : at + 2] = [_RANKS_OPTION, number, "--host", places]
    else:
        size = (f"{_NODES_OPTION}{len(nodes)}", f"--ntasks={number}")
        words[at : at + 1] = [*size, f"--nodelist={','.join(nodes)}"]
    return words


def _does_answer(node: str) -> bool:
    try:
        connect(f"{node}:{_ANY_PORT}").close()
    except ConnectionRefusedError:
        return True  # No process listens on this port, but the node has answered.
    except OSError:
        return False
    return True


def _ask(*command: str) -> str:
    """Returns what one of Slurm's commands prints; a UsageError if it fails or takes too long."""
    environ, limit_s = {**os.environ, OVERLAP: "1"}, _CONTROLLER_LIMIT_S
    try:
        done = subprocess.run(
            command, env=environ, check=True, capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"{command[0]} got no answer from Slurm's controller within {limit_s:g} s"
        ) from None
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or error
        raise UsageError(f"{command[0]} failed: {str(said).strip()}") from None
    return done.stdout
