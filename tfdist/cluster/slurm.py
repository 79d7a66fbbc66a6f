"""A Slurm step as a cluster: each task of the step is a worker, on a port made from the job id."""

import itertools
import math
import re
from collections.abc import Mapping
from functools import partial

from tfdist.cluster.tasks import Cluster, ClusterError, Task, read_integer
from tfdist.process.text import shown

_STEP_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_PROCID",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_TASKS_PER_NODE",
)
_MOST_NAMES = 100_000

_integer = partial(
    read_integer,
    digits=18,
    advice="Start the program with srun, and do not set this variable by hand.",
)


def find_slurm_step(environ: Mapping[str, str]) -> tuple[Cluster, Task] | None:
    """Reads the variables that `srun` gives to each task of a step.

    Returns the step's tasks as workers in the order of SLURM_PROCID, and this task; None outside of
    a step and in a step of one task (for example an interactive shell). Variables that contradict
    each other are a ClusterError.
    """
    if find_step_place(environ) is None:
        return None
    num_tasks = _integer(environ, "SLURM_STEP_NUM_TASKS")
    if num_tasks <= 1:
        return None
    if num_tasks > _MOST_NAMES:
        raise ClusterError(
            f"SLURM_STEP_NUM_TASKS is {num_tasks}, at most {_MOST_NAMES} are possible. Start the "
            "program with srun, and do not set this variable by hand."
        )
    rank = _integer(environ, "SLURM_PROCID")
    if rank >= num_tasks:
        raise ClusterError(
            f"SLURM_PROCID is {rank} but SLURM_STEP_NUM_TASKS is {num_tasks}: ranks go from 0 to "
            f"{num_tasks - 1}. Start the program with srun, and do not set these variables by hand."
        )
    nodes = expand_node_list(environ["SLURM_STEP_NODELIST"])
    places = _places(environ, num_tasks, len(nodes))
    _check_own_place(environ, rank, places[rank])
    port = first_port(
        job_id=_integer(environ, "SLURM_JOB_ID"),
        step_id=_integer(environ, "SLURM_STEP_ID") if "SLURM_STEP_ID" in environ else 0,
    )
    addresses = tuple(f"{nodes[node]}:{port + local_rank}" for node, local_rank in places)
    return Cluster(jobs={"worker": addresses}), Task(type="worker", index=rank)


def find_step_place(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Returns a task's rank and the number of tasks as `srun` wrote them; None outside of a step.

    Nothing is checked, and a step of one task counts as well.
    """
    if any(name not in environ for name in _STEP_VARIABLES):
        return None
    return environ["SLURM_PROCID"], environ["SLURM_STEP_NUM_TASKS"]


def first_port(*, job_id: int, step_id: int = 0) -> int:
    """Returns the port of a node's first task: 20000 + 64 * ((job_id + 100 * step_id) % 199).

    Two jobs on one node get different ports, 64 for each of 199 consecutive jobs, and so do two
    steps of a job. All ports stay below 32768, where the ports begin that Linux assigns by itself.
    """
    return 20000 + 64 * ((job_id + 100 * step_id) % 199)


def expand_node_list(text: str, called: str = "SLURM_STEP_NODELIST") -> list[str]:
    """Expands Slurm's short form: "n[08-10],m" gives n08, n09, n10 and m.

    A ClusterError, which calls the text by the name `called` of its variable or option, refuses
    other texts and more than 100000 names.
    """
    part = r"(?:[^,\[\]\s]|\[[0-9,-]+\])+"
    if not re.fullmatch(rf"{part}(?:,{part})*", text):
        raise ClusterError(f'{called} {shown(text)} is not a node list. Write it like "n[0-3],m".')
    try:
        patterns = [_alternatives(pattern) for pattern in re.findall(part, text)]
        _check_count(sum(math.prod(len(words) for words in pattern) for pattern in patterns))
    except ValueError as error:
        raise ClusterError(f"{called} {shown(text)} has {error}.") from None
    return ["".join(name) for pattern in patterns for name in itertools.product(*pattern)]


def _alternatives(pattern: str) -> list[list[str]]:
    """Returns, for each piece of "n[08-10]-ib", what may stand there."""
    pieces = re.split(r"\[(.*?)\]", pattern)  # every second one stood in brackets
    return [_expand_ranges(one) if index % 2 else [one] for index, one in enumerate(pieces)]


def _expand_ranges(text: str) -> list[str]:
    numbers: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if int(first) > int(last):
            raise ValueError(f'the range {shown(part)}. Write a range like "0-3" or "7"')
        _check_count(len(numbers) + int(last) - int(first) + 1)
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return numbers


def _check_count(count: int) -> None:
    if count > _MOST_NAMES:
        raise ValueError(f"more than {_MOST_NAMES} names. Make its ranges smaller")


def _places(environ: Mapping[str, str], num_tasks: int, num_nodes: int) -> list[tuple[int, int]]:
    """Returns (node index, place on that node) of each task, nodes filled one after another."""
    tasks_per_node = _tasks_per_node(environ["SLURM_STEP_TASKS_PER_NODE"])
    if len(tasks_per_node) != num_nodes or sum(tasks_per_node) != num_tasks:
        raise ClusterError(
            f"SLURM_STEP_TASKS_PER_NODE ({environ['SLURM_STEP_TASKS_PER_NODE']}) means "
            f"{sum(tasks_per_node)} tasks on {len(tasks_per_node)} nodes, but SLURM_STEP_NUM_TASKS "
            f"is {num_tasks} and SLURM_STEP_NODELIST has {num_nodes} nodes "
            f"({environ['SLURM_STEP_NODELIST']}).\n"
            "Start the program with srun, and do not set these variables by hand."
        )
    return [(node, local) for node, tasks in enumerate(tasks_per_node) for local in range(tasks)]


def _tasks_per_node(text: str) -> list[int]:
    """Reads "2(x3),1": two tasks on each of three nodes, then one."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", part)
        if not match:
            raise ClusterError(
                f"SLURM_STEP_TASKS_PER_NODE {shown(text)} is not a list of task counts. Start the "
                'program with srun, which writes it like "2(x3),1".'
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _check_own_place(environ: Mapping[str, str], rank: int, place: tuple[int, int]) -> None:
    # `srun --distribution=cyclic` assigns the ranks differently; every address would be wrong.
    for name, expected in zip(("SLURM_NODEID", "SLURM_LOCALID"), place, strict=True):
        if name in environ and _integer(environ, name) != expected:
            raise ClusterError(
                f"{name} is {environ[name]} for SLURM_PROCID {rank}, expected {expected}: nodes "
                "are taken to be filled one after another. Use srun --distribution=block."
            )
