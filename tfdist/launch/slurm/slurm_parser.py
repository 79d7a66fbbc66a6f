"""The command line of `tfdist slurm`, and checks of its options' values."""

from __future__ import annotations

import argparse
import re
import shlex
from argparse import ArgumentTypeError

from tfdist.cluster.tasks import shown
from tfdist.launch.options.option_parser import (
    OptionParser,
    boolean,
    seconds,
    seconds_from_0,
    whole_number,
)
from tfdist.launch.options.shared_options import (
    add_command_argument,
    add_size_arguments,
    add_worker_arguments,
)

_EXAMPLES = """\
examples:
  three nodes, a worker each, over gRPC, for two hours:
    tfdist slurm --nodes 3 --cpus-per-task 8 --time 02:00:00 train.py --epochs 3
  two nodes with four GPUs each, a worker a GPU, over Horovod, again and again until it is done:
    tfdist slurm --engine horovod --nodes 2 --tasks-per-node 4 --gpus-per-task 1 --requeue train.py
  look at the script, and submit nothing:
    tfdist slurm --nodes 3 --dry-run train.py

A BOOL is yes, no, 1, 0, true or false. The exit code is sbatch's; with --wait the job's, which is
that of the worker that failed first; 2 says that the command line is wrong, and that nothing was
submitted."""

_TIME = re.compile(
    r"(?:(?P<days>[0-9]{1,4})-(?P<day_hours>[0-9]{1,2})(?::(?P<day_minutes>[0-9]{1,2}))?"
    r"(?::(?P<day_seconds>[0-9]{1,2}))?"
    r"|(?:(?:(?P<hours>[0-9]{1,5}):)?(?P<minutes>[0-9]{1,7}):)(?P<seconds>[0-9]{1,2})"
    r"|(?P<only_minutes>[0-9]{1,7}))"
)


def add_arguments(parser: OptionParser) -> None:
    """Adds the options of `tfdist slurm` to the parser."""
    parser.usage = "tfdist slurm [options] [--] COMMAND [ARGUMENT...]"
    parser.epilog = _EXAMPLES
    add_command_argument(parser)
    add_size_arguments(parser)
    instances = parser.option("--num-instances")
    instances.default = None
    parser.option("--evaluator").help = argparse.SUPPRESS  # Hidden, because it is refused.
    instances.help = "worker processes, one a task (default: nodes times tasks per node)"
    _add_place_arguments(parser)
    add_worker_arguments(parser)
    _add_job_arguments(parser)
    _add_end_arguments(parser)


def _add_place_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "nodes", "Their product is --num-instances; what is left out follows from the others."
    )
    group.add_argument("--nodes", type=whole_number(1), metavar="N", help="nodes of the job")
    group.add_argument(
        "--tasks-per-node",
        type=whole_number(1),
        metavar="N",
        help="instances on each node (default: 1)",
    )
    group.add_argument(
        "--cpus-per-task",
        type=whole_number(1),
        metavar="N",
        help="processor cores of each instance, and threads that compute (default: Slurm's)",
    )
    group.add_argument(
        "--gpus-per-task", type=whole_number(1), metavar="N", help="GPUs of each instance"
    )
    group.add_argument("--mem", type=memory, metavar="SIZE", help="memory of each node, like 16G")


def _add_job_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the job")
    group.add_argument(
        "--job-name", type=name, metavar="NAME", help="its name (default: the program's)"
    )
    group.add_argument(
        "--time",
        type=time_limit,
        metavar="LIMIT",
        help="how long it may take, as Slurm writes it: 90 (minutes), 02:30:00, 1-12 (days-hours)",
    )
    group.add_argument("--partition", type=names, metavar="NAME[,NAME]", help="where it may run")
    group.add_argument("--account", type=name, metavar="NAME", help="who is charged for it")
    group.add_argument("--qos", type=name, metavar="NAME", help="its quality of service")
    group.add_argument(
        "--sbatch-args",
        action="append",
        type=sbatch_words,
        metavar='"ARGS"',
        help="more options of sbatch, like --constraint=v100; repeatable",
    )
    group.add_argument(
        "--log-dir",
        type=folder,
        default="logs",
        metavar="FOLDER",
        help="where the script, the job's log and each worker's log go; all nodes must share it "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--dry-run",
        type=boolean,
        nargs="?",
        const=True,
        default=False,
        metavar="=BOOL",
        help="print the script, and submit nothing (default: no)",
    )
    group.add_argument(
        "--wait",
        type=boolean,
        nargs="?",
        const=True,
        default=False,
        metavar="=BOOL",
        help="wait for the job's end, and end with its exit code (default: no)",
    )


def _add_end_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("when something goes wrong")
    group.add_argument(
        "--save-before-end",
        type=whole_number(1, 65535),
        default=120,
        metavar="SECONDS",
        help="how long before the time limit the workers are told to save and stop (SIGUSR1) "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--requeue",
        type=boolean,
        nargs="?",
        const=True,
        default=False,
        metavar="=BOOL",
        help="put the job back into the queue when its time is over, when it is preempted, and "
        "when a node of it is lost (default: no)",
    )
    group.add_argument(
        "--max-restarts",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="how often all workers are started again within the job, from the last checkpoint, "
        "after one died (default: %(default)s)",
    )
    group.add_argument(
        "--grace",
        type=seconds_from_0,
        default=30.0,
        metavar="SECONDS",
        help="how long the other workers may take to end once one has failed (default: 30)",
    )
    group.add_argument(
        "--start-timeout",
        type=seconds,
        metavar="SECONDS",
        help="how long the workers wait for each other at the start "
        "(default: TFDIST_START_TIMEOUT_S of the environment, or 300)",
    )


def time_limit(text: str) -> str:
    """Checks a time limit in Slurm's notation and returns it unchanged."""
    if time_limit_s(text) <= 0:
        raise ArgumentTypeError(
            f"got {shown(text)}, allowed are MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, "
            "DAYS-HOURS and DAYS-HOURS:MINUTES:SECONDS above 0. Write for example 02:30:00."
        )
    return text


def time_limit_s(text: str) -> int:
    """Returns a time limit in seconds, or 0 if the text is not a time limit."""
    match = _TIME.fullmatch(text)
    if match is None:
        return 0
    part = {name: int(digits or 0) for name, digits in match.groupdict().items()}
    minutes = part["day_minutes"] + part["minutes"] + part["only_minutes"]
    hours = part["days"] * 24 + part["day_hours"] + part["hours"] + minutes / 60
    return round(hours * 3600) + part["day_seconds"] + part["seconds"]


def name(text: str) -> str:
    """Checks the name of a job, an account or a quality of service and returns it unchanged."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", text):
        raise ArgumentTypeError(
            f'got {shown(text)}, allowed are up to 64 letters, digits, "_", "-" and ".", the first '
            "a letter, a digit or _. Write for example train-1."
        )
    return text


def names(text: str) -> str:
    """Checks names separated by commas and returns them unchanged."""
    for one in text.split(","):
        name(one)
    return text


def memory(text: str) -> str:
    """Checks an amount of memory: a number with K, M, G or T, or without a unit in megabytes."""
    if not re.fullmatch(r"[0-9]{1,9}[KMGT]?", text):
        raise ArgumentTypeError(
            f"got {shown(text)}, allowed is a whole number with K, M, G or T after it. "
            "Write for example 16G."
        )
    return text


def folder(text: str) -> str:
    """Checks a folder for sbatch's output: no blanks, and no %, which sbatch reads as a pattern."""
    if not re.fullmatch(r"[A-Za-z0-9_./+=@,:-]+", text) or text.startswith("-"):
        raise ArgumentTypeError(
            f'got {shown(text)}, allowed are letters, digits and "_./+=@,:-", since sbatch reads '
            "other characters in its own way. Write for example logs."
        )
    return text


def sbatch_words(text: str) -> str:
    """Checks options of sbatch for #SBATCH lines and returns them unchanged."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ArgumentTypeError(
            f"got {shown(text)}, which cannot be split into words: {str(error).lower()}. "
            "Close each quotation mark."
        ) from None
    for word in words:
        if not re.fullmatch(r"--[a-z][a-z-]*(=[A-Za-z0-9_.,:/@%+=&|*()\[\]-]+)?", word):
            raise ArgumentTypeError(
                f"got {shown(word)}, allowed are options of sbatch as --name or --name=value, "
                "without blanks and quotation marks in a value. "
                "Write for example --sbatch-args='--exclusive --mem=16G'."
            )
    return text
