"""Options that `run`, `slurm` and `kubernetes` share, and poprun's options without effect."""

from __future__ import annotations

import argparse
import math

from tfdist.launch.options.option_parser import (
    COMMAND,
    boolean,
    one_of,
    seconds,
    seconds_from_0,
    seconds_or_none,
    variable,
    whole_number,
)

ENGINES = ("grpc", "horovod")

_NO_VIPU = "there is no V-IPU server: the devices are those of the machines themselves"
_NO_PARTITION = "there are no partitions: each worker uses devices of the machine it runs on"

# poprun's other options, each with the name of its value and the reason why it has no effect.
MEANINGLESS = {
    "--executable-cache-path": ("FOLDER", "TensorFlow compiles no executables to keep"),
    "--sync-type": ("TYPE", "the engine synchronises the workers, there are no sync groups"),
    "--vipu-server-host": ("HOST", _NO_VIPU),
    "--vipu-server-port": ("PORT", _NO_VIPU),
    "--vipu-server-timeout": ("SECONDS", _NO_VIPU),
    "--vipu-partition": ("NAME", _NO_PARTITION),
    "--vipu-partition-attempts": ("N", _NO_PARTITION),
    "--vipu-allocation": ("NAME", _NO_PARTITION),
    "--vipu-cluster": ("NAME", _NO_PARTITION),
    "--update-partition": ("BOOL", _NO_PARTITION),
    "--reset-partition": ("BOOL", _NO_PARTITION),
    "--remove-partition": ("BOOL", _NO_PARTITION),
}


def add_command_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the command that every worker runs: a list of words called `command`."""
    parser.add_argument(
        COMMAND,
        nargs="*",
        metavar="COMMAND",
        help="what every worker runs; its own options follow it",
    )


def add_size_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the numbers of workers, replicas and devices, and for the engine.

    `num_replicas` stays None if it is not given: see `run_rules.total_replicas`.
    """
    group = parser.add_argument_group("size of the run")
    group.add_argument(
        "--engine",
        type=one_of(*ENGINES),
        default="grpc",
        metavar="ENGINE",
        help="what connects the workers: grpc (TensorFlow's own, through TF_CONFIG) or horovod "
        "(over Open MPI) (default: %(default)s)",
    )
    group.add_argument(
        "--num-instances",
        type=whole_number(1),
        default=1,
        metavar="N",
        help="worker processes (default: %(default)s)",
    )
    group.add_argument(
        "--num-replicas",
        type=whole_number(1),
        metavar="N",
        help="copies of the model in the whole run, divided evenly between the instances "
        "(default: one per instance)",
    )
    group.add_argument(
        "--devices-per-replica",
        "--ipus-per-replica",
        type=whole_number(1),
        default=1,
        metavar="N",
        help="devices of each copy of the model (default: %(default)s)",
    )
    group.add_argument(
        "--evaluator",
        type=boolean,
        nargs="?",
        const=True,
        default=False,
        metavar="=BOOL",
        help="add a process that evaluates each new checkpoint (default: no)",
    )


def add_worker_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for each worker: variables (`env`, a list of words) and `threads`."""
    group = parser.add_argument_group("each worker")
    group.add_argument(
        "-x",
        "--env",
        action="append",
        type=variable,
        metavar="NAME[=VALUE]",
        help="a variable for the workers, with this value or the one it has here (which keeps a "
        "secret out of files and of this command); repeatable; workers on this machine get all "
        "variables of this environment anyway",
    )
    group.add_argument(
        "--threads",
        type=whole_number(1),
        metavar="N",
        help="threads that compute in each worker (default: a machine's cores, divided between "
        "its workers)",
    )


def add_failure_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for failures: time limits, the grace period, and restarts."""
    group = parser.add_argument_group("when something goes wrong")
    group.add_argument(
        "--grace",
        type=seconds_from_0,
        default=30.0,
        metavar="SECONDS",
        help="how long a worker may save and leave after TERM, before KILL (default: 30)",
    )
    group.add_argument(
        "--start-timeout",
        type=seconds,
        metavar="SECONDS",
        help="how long the workers wait for each other at the start "
        "(default: TFDIST_START_TIMEOUT_S of the environment, or 300)",
    )
    group.add_argument(
        "--stall-timeout",
        type=seconds_or_none,
        default=math.inf,
        metavar="SECONDS",
        help='a worker that makes no step for so long counts as dead; "none" waits indefinitely '
        "(default: none)",
    )
    group.add_argument(
        "--max-restarts",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="how often all workers are started again, from the last checkpoint, after one died "
        "(default: %(default)s)",
    )


def add_poprun_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of poprun that have no effect here."""
    group = parser.add_argument_group(
        "accepted for poprun's sake", "They change nothing; a line says why."
    )
    group.add_argument(
        "--num-ilds",
        type=whole_number(1),
        metavar="N",
        help="link domains: a row of the topology table",
    )
    for name, (metavar, _) in MEANINGLESS.items():
        group.add_argument(name, metavar=metavar)


def meaningless_notices(given: argparse.Namespace) -> list[str]:
    """Returns a line for each option that was given and has no effect."""
    return [
        f"{name} is ignored: {reason}"
        for name, (_, reason) in MEANINGLESS.items()
        if getattr(given, name[2:].replace("-", "_")) is not None
    ]
