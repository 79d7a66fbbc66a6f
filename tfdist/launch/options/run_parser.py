"""The parser of `tfdist run`, and the text of its --help."""

from __future__ import annotations

import argparse

from tfdist.launch.options.option_parser import (
    OptionParser,
    boolean,
    network,
    numbered_shell_words,
    one_of,
    shell_words,
    whole_number,
    worker_indices,
)
from tfdist.launch.options.shared_options import (
    add_command_argument,
    add_failure_arguments,
    add_poprun_arguments,
    add_size_arguments,
    add_worker_arguments,
)

_DESCRIPTION = """\
Starts a training program as several workers, watches over them, and ends as they end.

Each worker ("instance") is one process of the program, and learns from its environment which one
it is: the program itself stays as it is for one worker. COMMAND is a program, a .py file or
"-m MODULE"; the last two run under this very Python."""

_EXAMPLES = """\
examples:
  two workers on this machine, over gRPC, which share its cores:
    tfdist run --num-instances 2 -- python train.py --epochs 3
  the same over Horovod and Open MPI, worker 0's output alone on the terminal:
    tfdist run --engine horovod --num-instances 2 --show 0 train.py --epochs 3
  four workers on two machines, and a fifth process that evaluates:
    tfdist run --host gpu[1-2]:2 --num-instances 4 --evaluator train.py
  go on from the last checkpoint when a worker dies, up to three times, or stands still for 5 min:
    tfdist run --num-instances 2 --max-restarts 3 --stall-timeout 300 train.py
  look at what would be started, and start nothing:
    tfdist run --num-instances 2 --dry-run -vv train.py
  keep the options in a file, and use them again with one change:
    tfdist run --num-instances 2 --export-config run.yaml train.py
    tfdist run --import-config run.yaml --num-instances 4

A BOOL is yes, no, 1, 0, true or false. The exit code is that of the worker that failed first;
2 says that the command line or a file it names is wrong, and that nothing was started."""


def run_parser() -> OptionParser:
    """Returns the parser of `tfdist run`."""
    parser = OptionParser(
        prog="tfdist run",
        usage="tfdist run [options] [--] COMMAND [ARGUMENT...]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    add_command_argument(parser)
    add_size_arguments(parser)
    _add_host_arguments(parser)
    add_worker_arguments(parser)
    _add_core_arguments(parser)
    _add_output_arguments(parser)
    add_failure_arguments(parser)
    _add_start_arguments(parser)
    _add_file_arguments(parser)
    _add_mpi_arguments(parser)
    add_poprun_arguments(parser)
    return parser


def _add_host_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "other machines",
        "They are reached by ssh, without a password, and need the same files at the same paths. "
        "Instances\nare put on the hosts in turn; if slots are given, one host after another is "
        "filled.",
    )
    group.add_argument(
        "-H",
        "--host",
        action="append",
        metavar="LIST",
        help="hosts, with slots (instances they take) if wanted: a,b or node[0-2,4] or a:2,b:4 "
        "(default: this machine)",
    )
    group.add_argument(
        "--hostfile",
        metavar="FILE",
        help='a file with one host a line: "NAME" or "NAME slots=N", and # comments',
    )
    group.add_argument(
        "--host-subnet",
        type=network,
        metavar="CIDR",
        help="the network between the hosts, for example 10.0.0.0/24 (default: any)",
    )
    group.add_argument(
        "--port",
        type=whole_number(1, 65535),
        metavar="PORT",
        help="first port of the workers on other machines; on this one they take free ports "
        "(default: chosen by tfdist)",
    )


def _add_core_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("processor cores")
    group.add_argument(
        "--bind",
        type=one_of("cores", "numa", "none"),
        metavar="TO",
        help="bind workers to cores of their own, to NUMA nodes in turn (numa), or to nothing "
        "(none) (default: cores)",
    )
    group.add_argument(
        "--numa-aware", type=boolean, metavar="BOOL", help="poprun's name for --bind numa"
    )


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "--log-dir",
        metavar="FOLDER",
        help="where each worker's output is kept, a file each (default: a new folder in "
        "tfdist-logs)",
    )
    group.add_argument(
        "--show",
        "--only-output-from-instance",
        action="append",
        type=worker_indices,
        metavar="LIST",
        help="show only these workers' output, by index, or the evaluator's; failures of "
        "others are shown as well; repeatable (default: all)",
    )
    group.add_argument(
        "--tag-output",
        type=boolean,
        default=True,
        metavar="BOOL",
        help="put [rank] before each line (default: yes)",
    )
    group.add_argument(
        "--color",
        type=one_of("auto", "always", "never"),
        metavar="WHEN",
        help="auto (on a terminal), always or never (default: auto; never if NO_COLOR is set)",
    )
    group.add_argument(
        "--progress",
        type=one_of("auto", "bar", "plain", "none"),
        default="auto",
        metavar="HOW",
        help="of the whole run: a bar, plain lines, none, or auto: a bar on a terminal, else plain "
        "lines (default: %(default)s)",
    )
    group.add_argument(
        "--print-topology",
        type=boolean,
        default=True,
        metavar="BOOL",
        help="print the table of hosts, instances and replicas (default: yes)",
    )
    group.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="print the commands and what is done; -vv also the environments and details",
    )
    group.add_argument(
        "-vv", "--vv", action="store_const", const=2, dest="verbose", help="the same as -v -v"
    )


def _add_start_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("looking without starting")
    group.add_argument(
        "--dry-run",
        type=boolean,
        nargs="?",
        const=True,
        metavar="=BOOL",
        help="print the commands and environments, and start nothing (default: no)",
    )
    group.add_argument(
        "--offline-mode", type=boolean, metavar="BOOL", help="poprun's name for --dry-run"
    )


def _add_file_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("options in a file")
    group.add_argument(
        "--import-config",
        metavar="FILE",
        help="read options (and the command) from a YAML file; the command line wins",
    )
    group.add_argument(
        "--export-config",
        metavar="FILE",
        help="write all options and the command into a YAML file, then go on",
    )
    group.add_argument(
        "--overwrite-config",
        type=boolean,
        default=False,
        metavar="BOOL",
        help="whether --export-config may replace a file (default: no)",
    )


def _add_mpi_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("mpirun", "Used with Horovod, and for other machines.")
    group.add_argument(
        "--mpi-global-args",
        action="append",
        type=shell_words,
        metavar='"ARGS"',
        help="options of mpirun that stand before everything else; repeatable",
    )
    group.add_argument(
        "--mpi-local-args",
        action="append",
        type=shell_words,
        metavar='"ARGS"',
        help="options of mpirun for every instance; repeatable",
    )
    group.add_argument(
        "--instance-mpi-local-args",
        action="append",
        type=numbered_shell_words,
        metavar='INDEX:"ARGS"',
        help="options of mpirun for one instance; repeatable",
    )
    group.add_argument(
        "--allow-run-as-root",
        type=boolean,
        default=True,
        metavar="BOOL",
        help="whether mpirun may run as root (default: yes)",
    )
