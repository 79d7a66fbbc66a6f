"""The options of `tfdist slurm`: their declarations, and the checks of their values."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tfdist.launch.options.command_line import CommandLine
from tfdist.launch.options.declaration import Group, flag, option
from tfdist.launch.options.shared_options import (
    FAILURES,
    NUM_INSTANCES,
    SIZE,
    START_TIMEOUT_DEFAULT,
    START_TIMEOUT_HELP,
    SizeOptions,
    WorkerOptions,
    snapshot_steps,
)
from tfdist.launch.options.values import (
    checked,
    matching,
    seconds,
    split_words,
    whole_number,
    wrong,
)
from tfdist.process.text import shown

_TIME = re.compile(
    r"(?:(?P<days>[0-9]{1,4})-(?P<day_hours>[0-9]{1,2})(?::(?P<day_minutes>[0-9]{1,2}))?"
    r"(?::(?P<day_seconds>[0-9]{1,2}))?"
    r"|(?:(?:(?P<hours>[0-9]{1,5}):)?(?P<minutes>[0-9]{1,7}):)(?P<seconds>[0-9]{1,2})"
    r"|(?P<only_minutes>[0-9]{1,7}))"
)


def time_limit_s(text: str) -> int:
    """Returns a time limit in seconds, or 0 if the text is not a time limit."""
    match = _TIME.fullmatch(text)
    if match is None:
        return 0
    part = {name: int(digits or 0) for name, digits in match.groupdict().items()}
    minutes = part["day_minutes"] + part["minutes"] + part["only_minutes"]
    hours = part["days"] * 24 + part["day_hours"] + part["hours"] + minutes / 60
    return round(hours * 3600) + part["day_seconds"] + part["seconds"]


def _check_time_limit(text: str) -> None:
    if time_limit_s(text) <= 0:
        raise wrong(
            text,
            "are MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS and "
            "DAYS-HOURS:MINUTES:SECONDS above 0",
            "02:30:00",
        )


def _check_sbatch_words(text: str) -> None:
    for word in split_words(text):
        if not re.fullmatch(r"--[a-z][a-z-]*(=[A-Za-z0-9_.,:/@%+=&|*()\[\]-]+)?", word):
            raise ValueError(
                f"got {shown(word)}, allowed are options of sbatch as --name or --name=value, "
                "without blanks and quotation marks in a value. "
                "Write for example --sbatch-args='--exclusive --mem=16G'."
            )


def _check_names(text: str) -> None:
    for name in text.split(","):
        _NAME.read(name)


_NAME = matching(
    "[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}",
    "NAME",
    'are up to 64 letters, digits, "_", "-" and ".", the first a letter, a digit or _',
    "train-1",
)
_MEMORY = matching(
    "[0-9]{1,9}[KMGT]?", "SIZE", "is a whole number with K, M, G or T after it", "16G"
)
# Without blanks, and without %, which sbatch reads as a pattern.
_FOLDER = matching(
    "(?!-)[A-Za-z0-9_./+=@,:-]+",
    "FOLDER",
    'are letters, digits and "_./+=@,:-", since sbatch reads other characters in its own way',
    "logs",
)
_NODES = Group(
    "nodes", "Their product is --num-instances; what is left out follows from the others."
)
_JOB = Group("the job")


@dataclass(frozen=True, kw_only=True)
class SlurmOptions(WorkerOptions, SizeOptions):
    """The options of one job. An option that is None is left to Slurm, or was not given.

    `environment` has the variables that the script sets. Those given without a value are not in
    it: the workers get them from the environment in which the job is submitted.
    """

    num_instances: int = option(
        whole_number(1),
        "worker processes, one a task",
        *NUM_INSTANCES,
        default=1,
        shown_default="nodes times tasks per node",
        group=SIZE,
    )
    # Hidden, because it is refused.
    evaluator: bool = flag(None)
    nodes: int = option(whole_number(1), "nodes of the job", default=1, group=_NODES)
    tasks_per_node: int = option(whole_number(1), "instances on each node", default=1)
    cpus_per_task: int | None = option(
        whole_number(1),
        "processor cores of each instance, and threads that compute",
        shown_default="Slurm's",
    )
    gpus_per_task: int | None = option(whole_number(1), "GPUs of each instance")
    mem: str | None = option(_MEMORY, "memory of each node, like 16G")
    job_name: str = option(_NAME, "its name", default="", shown_default="the program's", group=_JOB)
    time: str | None = option(
        checked(_check_time_limit, "LIMIT"),
        "how long it may take, as Slurm writes it: 90 (minutes), 02:30:00, 1-12 (days-hours)",
    )
    partition: str | None = option(checked(_check_names, "NAME[,NAME]"), "where it may run")
    account: str | None = option(_NAME, "who is charged for it")
    qos: str | None = option(_NAME, "its quality of service")
    sbatch_args: tuple[str, ...] = option(
        checked(_check_sbatch_words, '"ARGS"'),
        "more options of sbatch, like --constraint=v100",
        default=(),
    )
    log_dir: str = option(
        _FOLDER,
        "where the script, the job's log and each worker's log go; all nodes must share it",
        default="logs",
    )
    dry_run: bool = flag("print the script, and submit nothing")
    wait: bool = flag("wait for the job's end, and end with its exit code")
    save_before_end_s: int = option(
        whole_number(1, 65535, "SECONDS"),
        "how long before the time limit the workers are told to save and stop (SIGUSR1)",
        default=120,
        group=FAILURES,
    )
    requeue: bool = flag(
        "put the job back into the queue when its time is over, when it is preempted, and when a "
        "node of it is lost"
    )
    max_restarts: int = option(
        whole_number(0),
        "how often all workers are started again within the job, from the last checkpoint, after "
        "one died",
        default=0,
    )
    min_instances: int | None = option(
        whole_number(1),
        "with --max-restarts, start again without nodes that do not answer, if so many instances "
        "at least are left",
        shown_default="all of them",
    )
    snapshot_steps: int | None = snapshot_steps()
    grace_s: float = option(
        seconds(is_zero_allowed=True),
        "how long the other workers may take to end once one has failed",
        default=30.0,
    )
    start_timeout_s: float | None = option(
        seconds(), START_TIMEOUT_HELP, shown_default=START_TIMEOUT_DEFAULT
    )


_EXAMPLES = """\
examples:
  three nodes, a worker each, over gRPC, for two hours:
    tfdist slurm --nodes 3 --cpus-per-task 8 --time 02:00:00 train.py --epochs 3
  two nodes with four GPUs each, a worker a GPU, over Horovod, again and again until it is done:
    tfdist slurm --engine horovod --nodes 2 --tasks-per-node 4 --gpus-per-task 1 --requeue train.py
  look at the script, and submit nothing:
    tfdist slurm --nodes 3 --dry-run train.py

A BOOL is yes, no, 1, 0, true or false. The exit code is sbatch's, or with --wait the job's: the
code of the worker that failed first. 2 says that the command line is wrong, and that nothing was
submitted."""

SLURM = CommandLine(
    prog="tfdist slurm",
    options=SlurmOptions,
    description="Write a Slurm batch script for a run, and submit it.",
    usage="[options] [--] COMMAND [ARGUMENT...]",
    examples=_EXAMPLES,
)
