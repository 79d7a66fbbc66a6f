"""The options of `tfdist run`, read and checked before any process is started."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tfdist.launch.options import run_rules as rules
from tfdist.launch.options.config_file import check_export, read_config
from tfdist.launch.options.hosts import THIS_MACHINE, Host, is_this_machine, place_instances
from tfdist.launch.options.option_parser import COMMAND, ColorMode, OptionParser, ProgressMode
from tfdist.launch.options.program import program_command
from tfdist.launch.options.run_parser import run_parser
from tfdist.launch.options.run_rules import total_replicas
from tfdist.launch.options.shared_options import MEANINGLESS, meaningless_notices

# Options that are not written into files: those that concern one call or its user instead of the
# run, and second names of other options.
_NOT_IN_FILES = {
    "allow_run_as_root",
    *("help", "dry_run", "offline_mode", "numa_aware"),
    *("import_config", "export_config", "overwrite_config"),
    *(name[2:].replace("-", "_") for name in MEANINGLESS),
}


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of one run.

    Attributes:
      command: The command that every worker runs. A .py file and "-m MODULE" follow the path of
        this Python.
      engine: "grpc" or "horovod".
      num_instances: The number of worker processes, without the evaluator.
      num_replicas: The number of replicas in the whole run, a multiple of `num_instances`.
      devices_per_replica: The number of devices of each replica.
      evaluator: True if the run has an evaluator.
      hosts: The machines, at least one; "localhost" alone is this machine.
      host_subnet: The network between the hosts, such as "10.0.0.0/24".
      port: The first port of the workers on other machines.
      bind: "cores", "numa" or "none".
      threads: The number of compute threads of each worker; None divides the cores.
      environment: Variables for the workers, in addition to those that the launcher sets.
      log_dir: The folder of the workers' logs; None for a folder of the launcher's choice.
      show: The indices of the workers to show, `num_instances` for the evaluator; None shows all.
      tag_output: If True, each line begins with its worker's tag.
      color: "auto", "always" or "never".
      progress: "auto", "bar", "plain" or "none".
      print_topology: If True, prints the table of hosts, instances and replicas.
      verbosity: 0, 1 (commands) or 2 (environments and details as well).
      grace_s: Seconds between TERM and KILL.
      start_timeout_s: Seconds that the workers wait for each other at the start.
      stall_timeout_s: Seconds without a step after which a worker counts as dead; None sets no
        limit.
      max_restarts: The largest number of restarts of all workers.
      dry_run: If True, prints commands and environments, and starts nothing.
      mpi_global_args: mpirun's options before all others.
      mpi_local_args: mpirun's options for every instance.
      instance_mpi_local_args: mpirun's options for single instances, by index.
      num_ilds: A row of the topology table, without further effect.
      export_config: The file to which `config` is written.
      overwrite_config: If True, an existing file is replaced.
      config: All options of the run and the command, in the form of a file.
      notices: A line for each option without effect in this run. Printed with -v or without.
    """

    command: tuple[str, ...]
    engine: str = "grpc"
    num_instances: int = 1
    num_replicas: int = 1
    devices_per_replica: int = 1
    evaluator: bool = False
    hosts: tuple[Host, ...] = (THIS_MACHINE,)
    host_subnet: str | None = None
    port: int | None = None
    bind: str = "cores"
    threads: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    log_dir: Path | None = None
    show: tuple[int, ...] | None = None
    tag_output: bool = True
    color: ColorMode = "auto"
    progress: ProgressMode = "auto"
    print_topology: bool = True
    verbosity: int = 0
    grace_s: float = 30.0
    start_timeout_s: float = 300.0
    stall_timeout_s: float | None = None
    max_restarts: int = 0
    dry_run: bool = False
    mpi_global_args: tuple[str, ...] = ()
    mpi_local_args: tuple[str, ...] = ()
    instance_mpi_local_args: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    num_ilds: int | None = None
    export_config: Path | None = None
    overwrite_config: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    notices: tuple[str, ...] = ()

    @property
    def replicas_per_instance(self) -> int:
        """The number of replicas of each instance."""
        return self.num_replicas // self.num_instances

    @property
    def is_on_this_machine(self) -> bool:
        """True if the run uses no other machine."""
        return is_this_machine(self.hosts)

    @property
    def uses_mpirun(self) -> bool:
        """True if mpirun starts the workers: with Horovod, and on other machines."""
        return self.engine == "horovod" or not self.is_on_this_machine


def parse_run_options(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> RunOptions:
    """Reads and checks the arguments of `tfdist run`. Starts no process and writes no file.

    Raises:
      UsageError: If an option, a file that it names, or the command is wrong.
      SystemExit: After --help, with status 0.
    """
    parser = run_parser()
    given = _read(argv, parser)
    dry_run, offline_notices = rules.dry_run(given.dry_run, given.offline_mode)
    given.bind = rules.binding(given.bind, given.numa_aware)
    chosen = _with_defaults(given, parser)
    hosts = rules.hosts(chosen.host, chosen.hostfile)
    is_local = is_this_machine(hosts)
    options = RunOptions(
        command=program_command(given.command, environ.get("PATH")),
        engine=chosen.engine,
        num_instances=chosen.num_instances,
        num_replicas=total_replicas(chosen.num_instances, chosen.num_replicas),
        devices_per_replica=chosen.devices_per_replica,
        evaluator=chosen.evaluator,
        hosts=hosts,
        host_subnet=None if is_local else chosen.host_subnet,
        port=None if is_local or chosen.engine == "horovod" else chosen.port,
        bind=chosen.bind or "cores",
        threads=chosen.threads,
        environment=rules.environment(chosen.env or (), environ),
        log_dir=None if chosen.log_dir is None else Path(chosen.log_dir),
        show=rules.shown_workers(chosen.show, chosen.num_instances, chosen.evaluator),
        tag_output=chosen.tag_output,
        color=chosen.color or ("never" if environ.get("NO_COLOR") else "auto"),
        progress=chosen.progress,
        print_topology=chosen.print_topology,
        verbosity=min(chosen.verbose, 2),
        grace_s=chosen.grace,
        start_timeout_s=chosen.start_timeout or rules.start_timeout(environ),
        stall_timeout_s=None if chosen.stall_timeout == math.inf else chosen.stall_timeout,
        max_restarts=chosen.max_restarts,
        dry_run=dry_run,
        mpi_global_args=rules.split_words(chosen.mpi_global_args or ()),
        mpi_local_args=rules.split_words(chosen.mpi_local_args or ()),
        instance_mpi_local_args=rules.instance_words(
            chosen.instance_mpi_local_args or (), chosen.num_instances
        ),
        num_ilds=chosen.num_ilds,
        export_config=None if chosen.export_config is None else Path(chosen.export_config),
        overwrite_config=chosen.overwrite_config,
        config=_as_in_a_file(chosen),
    )
    notices = [*offline_notices, *_settle(options, given, environ), *meaningless_notices(given)]
    return replace(options, notices=tuple(notices))


def _read(argv: Sequence[str], parser: OptionParser) -> argparse.Namespace:
    """Returns the options of the command line, completed from the file of --import-config."""
    given = parser.parse_given(argv)
    if given.import_config is None:
        return given
    merged = vars(read_config(given.import_config, parser)).copy()
    said = {name: value for name, value in vars(given).items() if value not in (None, [])}
    for names in (("host", "hostfile"), ("bind", "numa_aware"), ("dry_run", "offline_mode")):
        if said.keys() & names:  # either of two names of an option replaces both
            merged.update(dict.fromkeys(names))
    return argparse.Namespace(**{**merged, **said})


def _with_defaults(given: argparse.Namespace, parser: OptionParser) -> argparse.Namespace:
    return argparse.Namespace(
        **{
            name: parser.get_default(name) if value is None else value
            for name, value in vars(given).items()
        }
    )


def _settle(
    options: RunOptions, given: argparse.Namespace, environ: Mapping[str, str]
) -> list[str]:
    """Checks options against each other; returns a line for each that has no effect.

    Raises:
      UsageError: If options contradict each other or cannot work on this machine.
    """
    if options.log_dir is not None:
        rules.check_log_dir(options.log_dir)
    if options.export_config is not None:
        check_export(str(options.export_config), options.overwrite_config)
    if given.port is not None:
        rules.check_port(given.port, options.num_instances)
    if options.uses_mpirun:
        rules.check_root(given.allow_run_as_root)
    used = place_instances(options.hosts, options.num_instances)
    return [
        *rules.idle_host_notices(options.hosts, used),
        *network_notices(options, given),
        *mpirun_notices(options, given),
        *rules.environment_notices(environ),
    ]


def _as_in_a_file(chosen: argparse.Namespace) -> dict[str, Any]:
    values = {
        name.replace("_", "-"): "none" if value == math.inf else value
        for name, value in vars(chosen).items()
        if name not in _NOT_IN_FILES and name != COMMAND
    }
    return {**dict(sorted(values.items())), COMMAND: list(chosen.command)}


def network_notices(options: RunOptions, given: argparse.Namespace) -> list[str]:
    """Returns a line for each network option that this run does not use."""
    notices = []
    if options.is_on_this_machine:
        if given.host_subnet is not None:
            notices.append("--host-subnet is ignored: no other hosts are given (--host)")
        if given.port is not None:
            notices.append("--port is ignored: workers on this machine take free ports")
    elif given.port is not None and options.engine == "horovod":
        notices.append("--port is ignored: Horovod's workers find each other through mpirun")
    return notices


def mpirun_notices(options: RunOptions, given: argparse.Namespace) -> list[str]:
    """Returns a line for each mpirun option that was given if the run does not use mpirun."""
    if options.uses_mpirun:
        return []
    names = ("mpi_global_args", "mpi_local_args", "instance_mpi_local_args", "allow_run_as_root")
    return [
        f"--{name.replace('_', '-')} is ignored: on this machine --engine grpc uses no mpirun"
        for name in names
        if getattr(given, name) is not None
    ]
