"""The options of `tfdist run`: their declarations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfdist.cluster.environment import USUAL_PROFILE_STEPS
from tfdist.launch.options.command_line import CommandLine
from tfdist.launch.options.declaration import BOOLEAN, Group, flag, option
from tfdist.launch.options.hosts import SHELL_SETTINGS, THIS_MACHINE, Host, is_this_machine
from tfdist.launch.options.shared_options import (
    FAILURES,
    NUM_INSTANCES,
    SIZE,
    START_TIMEOUT_DEFAULT,
    START_TIMEOUT_HELP,
    PoprunOptions,
    SizeOptions,
    WorkerOptions,
    snapshot_steps,
)
from tfdist.launch.options.values import (
    NETWORK,
    NUMBERED_SHELL_WORDS,
    SHELL_WORDS,
    STEPS,
    WORKER_INDICES,
    ColorMode,
    ProgressMode,
    any_path,
    any_text,
    one_of,
    seconds,
    whole_number,
)

_MACHINES = Group(
    "other machines",
    "They are reached by ssh, without a password, and need the same files at the same paths. "
    "Instances\nare put on the hosts in turn; if slots are given, one host after another is "
    "filled.",
)
_CORES = Group("processor cores")
_OUTPUT = Group("output")
_LOOKING = Group("looking without starting")
_FILES = Group("options in a file")
_MPIRUN = Group("mpirun", "Used with Horovod, and for other machines.")


@dataclass(frozen=True, kw_only=True)
class RunOptions(PoprunOptions, WorkerOptions, SizeOptions):
    """The options of one run.

    `show` has the indices of workers, `num_instances` for the evaluator; None shows all. `hosts`
    has at least one; "localhost" alone is this machine. `log_dir` None is a folder of the
    launcher's choice. `config` has all options of the run and the command, in the form of a file.
    """

    num_instances: int = option(
        whole_number(1),
        "worker processes",
        *NUM_INSTANCES,
        default=1,
        shown_default="1, or the sum of the hosts' slots",
        group=SIZE,
    )
    oversubscribe: bool = flag(
        "start more than 8 instances for each core of this machine", group=SIZE
    )
    hosts: tuple[Host, ...] = option(
        any_text("LIST"),
        "hosts, with slots (instances they take) if wanted: a,b or node[0-2,4] or a:2,b:4",
        *("-H", "--host"),
        default=(THIS_MACHINE,),
        shown_default="this machine",
        is_list=True,
        group=_MACHINES,
    )
    hostfile: str | None = option(
        any_text("FILE"), 'a file with one host a line: "NAME" or "NAME slots=N", and # comments'
    )
    host_subnet: str | None = option(
        NETWORK,
        "the network between the hosts, for mpirun, MPI and tfdist: 10.0.0.0/24 for example",
        shown_default="any",
    )
    port: int | None = option(
        whole_number(1, 65535, "PORT"),
        "first port of the workers on other machines; on this one they take free ports",
        shown_default="3737",
    )
    nodes: tuple[str, ...] = option(
        any_text("LIST"),
        "start this node's workers of a run for which this command is called once on each of these "
        "nodes: the host and first port of each, a:3737,b:3737",
        default=(),
        is_list=True,
        shown_default="this machine starts all",
    )
    node_rank: int | None = option(
        whole_number(0), "this node's place in --nodes, from 0", shown_default="none"
    )
    bind: str = option(
        one_of("cores", "numa", "none"),
        "bind workers to cores of their own, to NUMA nodes in turn, or to nothing",
        default="cores",
        shown_default="cores",
        group=_CORES,
    )
    numa_aware: bool | None = option(BOOLEAN, "poprun's name for --bind numa", is_exported=False)
    log_dir: Path | None = option(
        any_path("FOLDER"),
        "where each worker's output is kept, a file each",
        shown_default="a new folder in tfdist-logs",
        group=_OUTPUT,
    )
    keep_logs: int = option(
        whole_number(1),
        "how many folders stay in tfdist-logs; older ones are deleted",
        default=20,
    )
    show: tuple[int, ...] | None = option(
        WORKER_INDICES,
        "show only these workers' output, by index, or the evaluator's; failures of others are "
        "shown as well",
        *("--show", "--only-output-from-instance"),
        shown_default="all",
        is_list=True,
    )
    output: str = option(
        one_of("changes", "all"),
        "changes: a line that all workers print is shown once, like [0-3]; all: every line of "
        "each worker",
        default="changes",
    )
    tag_output: bool = option(BOOLEAN, "put [rank] before each line", default=True)
    color: ColorMode = option(
        one_of("auto", "always", "never"),
        "colors: on a terminal, always or never",
        default="auto",
        shown_default="auto; never if NO_COLOR is set",
    )
    progress: ProgressMode = option(
        one_of("auto", "bar", "plain", "none"),
        "of the whole run: a bar, plain lines, none, or auto: a bar on a terminal, else plain "
        "lines",
        default="auto",
    )
    print_topology: bool = option(
        BOOLEAN, "print the table of hosts, instances and replicas", default=True
    )
    verbosity: int = option(
        None,
        "print the commands, what is done, and TensorFlow's start-up lines; twice (-vv, --vv) also "
        "the environments and details",
        *("-v", "--verbose", "-vv", "--vv"),
        default=0,
    )
    profile: Path | None = option(
        any_path("FOLDER"),
        "record some steps of all workers, and write there where their time goes: of an "
        "Estimator's training a table, a picture and a trace, of Keras' fit a trace",
        shown_default="none",
    )
    profile_steps: str = option(
        STEPS,
        "the steps to record, counted from the start of the training",
        default=USUAL_PROFILE_STEPS,
        shown_default=USUAL_PROFILE_STEPS,
    )
    grace_s: float = option(
        seconds(is_zero_allowed=True),
        "how long a worker may save and leave after TERM, before KILL",
        default=30.0,
        group=FAILURES,
    )
    start_timeout_s: float = option(
        seconds(), START_TIMEOUT_HELP, default=300.0, shown_default=START_TIMEOUT_DEFAULT
    )
    stall_timeout_s: float | None = option(
        seconds(none_word="none"),
        'a worker that makes no step for so long counts as dead; "none" waits indefinitely',
        shown_default="none",
    )
    max_restarts: int = option(
        whole_number(0),
        "how often all workers are started again, from the last checkpoint, after one died",
        default=0,
    )
    min_instances: int | None = option(
        whole_number(1),
        "with --max-restarts, start again with fewer instances, but so many at least, where a host "
        "does not answer or the same worker fails twice in a row",
        shown_default="all of them",
    )
    rejoin_interval_s: float = option(
        seconds(),
        "with --min-instances, how often to look whether a host that was lost answers again: then "
        "the workers save, and all start again",
        default=60.0,
    )
    snapshot_steps: int | None = snapshot_steps()
    standby: bool = option(
        BOOLEAN,
        "with --max-restarts, keep a process for each worker of this machine that has imported "
        "what the program imports: a restart then saves the seconds that imports take",
        default=True,
    )
    dry_run: bool = flag(
        "print the commands and environments, and start nothing", is_exported=False, group=_LOOKING
    )
    offline_mode: bool | None = option(BOOLEAN, "poprun's name for --dry-run", is_exported=False)
    import_config: str | None = option(
        any_text("FILE"),
        "read options (and the command) from a YAML file; the command line wins",
        is_exported=False,
        group=_FILES,
    )
    export_config: Path | None = option(
        any_path("FILE"),
        "write all options and the command into a YAML file, then go on",
        is_exported=False,
    )
    overwrite_config: bool = option(
        BOOLEAN, "whether --export-config may replace a file", default=False, is_exported=False
    )
    mpi_global_args: tuple[str, ...] = option(
        SHELL_WORDS,
        "options of mpirun that stand before everything else",
        default=(),
        group=_MPIRUN,
    )
    mpi_local_args: tuple[str, ...] = option(
        SHELL_WORDS, "options of mpirun for every instance", default=()
    )
    instance_mpi_local_args: Mapping[int, tuple[str, ...]] = option(
        NUMBERED_SHELL_WORDS, "options of mpirun for one instance", default=dict
    )
    allow_run_as_root: bool = option(
        BOOLEAN, "whether mpirun may run as root", default=True, is_exported=False
    )
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def own_instances(self) -> range:
        """The indices of the instances that this command starts."""
        if self.node_rank is None:
            return range(self.num_instances)
        each = self.num_instances // len(self.nodes)
        return range(self.node_rank * each, (self.node_rank + 1) * each)

    @property
    def is_on_this_machine(self) -> bool:
        return is_this_machine(self.hosts)

    @property
    def uses_mpirun(self) -> bool:
        """True if mpirun starts the workers: with Horovod, and where its own options are given."""
        is_elsewhere = not self.is_on_this_machine
        return self.engine == "horovod" or (is_elsewhere and self._has_options_of_mpirun)

    @property
    def _has_options_of_mpirun(self) -> bool:
        """True if there are options of mpirun beside the one that names a remote shell."""
        words = list(self.mpi_global_args)
        while len(words) >= 3 and words[1] in SHELL_SETTINGS:
            del words[:3]  # --mca NAME VALUE
        return bool(words or self.mpi_local_args or self.instance_mpi_local_args)

    @property
    def keeps_agents(self) -> bool:
        """True if the agents, and their standbys, stay over restarts."""
        return self.standby and self.max_restarts > 0 and self.is_on_this_machine


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

A BOOL is yes, no, 1, 0, true or false. The exit code is the code of the worker that failed first;
2 says that the command line or a file it names is wrong, and that nothing was started."""

RUN = CommandLine(
    prog="tfdist run",
    options=RunOptions,
    description=_DESCRIPTION,
    usage="[options] [--] COMMAND [ARGUMENT...]",
    examples=_EXAMPLES,
)
