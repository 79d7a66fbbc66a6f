"""The command line of `tfdist run` and its config file, read into `RunOptions`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfdist.cluster.environment import read_start_timeout
from tfdist.cluster.tf_config import is_tf_config_set
from tfdist.launch.errors import UsageError
from tfdist.launch.options import run_rules as rules
from tfdist.launch.options.command_line import COMMAND
from tfdist.launch.options.config_file import check_export, read_config
from tfdist.launch.options.declaration import options_of
from tfdist.launch.options.hosts import Host, is_this_machine, place_instances
from tfdist.launch.options.program import program_command
from tfdist.launch.options.run_options import RUN, RunOptions
from tfdist.launch.options.values import MOST
from tfdist.process.text import listed

# Two names of one choice: either of them on the command line replaces both of a file.
_SAME = (("hosts", "hostfile"), ("bind", "numa_aware"), ("dry_run", "offline_mode"))


def parse_run_options(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> RunOptions:
    """Reads and checks the arguments of `tfdist run`. Starts no process and writes no file.

    What is wrong is a UsageError; a start timeout in the environment, a ClusterError.
    """
    given = _with_config_file(RUN.parse(argv))
    dry_run, notices = rules.dry_run(given.get("dry_run"), given.pop("offline_mode", None))
    bind = rules.binding(given.get("bind"), given.pop("numa_aware", None))
    hosts = rules.hosts(given.get("hosts"), given.get("hostfile"))
    nodes = rules.nodes(given.get("nodes"), given.get("node_rank"), given)
    num_instances = given.get("num_instances") or len(nodes) or _num_slots(hosts) or 1
    given |= {"bind": bind or "cores", "num_instances": num_instances}
    uses_port = not is_this_machine(hosts) and given.get("engine") != "horovod"
    settled = {
        COMMAND: program_command(given.get(COMMAND, ()), environ.get("PATH")),
        "num_replicas": rules.total_replicas(num_instances, given.get("num_replicas")),
        "hosts": hosts,
        "nodes": nodes,
        "host_subnet": None if is_this_machine(hosts) else given.get("host_subnet"),
        "port": given.get("port") if uses_port else None,
        "environment": rules.environment(given.get("environment", ()), environ),
        "show": rules.shown_workers(
            given.get("show"), num_instances, given.get("evaluator", False)
        ),
        "color": given.get("color") or ("never" if environ.get("NO_COLOR") else "auto"),
        "verbosity": min(given.get("verbosity", 0), 2),
        "start_timeout_s": given.get("start_timeout_s") or read_start_timeout(environ),
        "dry_run": dry_run,
        "mpi_global_args": rules.split_words(given.get("mpi_global_args", ())),
        "mpi_local_args": rules.split_words(given.get("mpi_local_args", ())),
        "instance_mpi_local_args": rules.instance_words(
            given.get("instance_mpi_local_args", ()), num_instances
        ),
        "config": _as_in_a_file(given),
    }
    options = RunOptions(**{**given, **settled})
    _check_together(options, given)
    notices = [*given["notices"], *notices, *_notices(options, given, environ)]
    return replace(options, notices=tuple(notices))


def _with_config_file(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of the command line, completed from the file of --import-config."""
    path = given.pop("import_config", None)
    if path is None:
        return given
    in_file = read_config(path, RUN)
    for names in _SAME:
        if given.keys() & names:
            in_file = {name: value for name, value in in_file.items() if name not in names}
    return {**in_file, **given}


def _num_slots(hosts: Sequence[Host]) -> int:
    """Returns the sum of the hosts' slots, or 0 if they have none."""
    slots = sum(host.slots or 0 for host in hosts)
    if slots > MOST:
        raise UsageError(
            f"the hosts have {slots} slots, and a run has at most {MOST} instances. "
            "Give fewer slots, or --num-instances."
        )
    return slots


def _check_together(options: RunOptions, given: Mapping[str, Any]) -> None:
    """Checks options against each other and against this machine."""
    if options.log_dir is not None:
        rules.check_folder("--log-dir", options.log_dir)
    if options.profile is not None:
        rules.check_profile(options.profile)
    if options.export_config is not None:
        check_export(str(options.export_config), options.overwrite_config)
    if "port" in given:
        rules.check_port(given["port"], options.num_instances)
    rules.check_restarts(
        most=options.num_instances,
        least=options.min_instances,
        snapshot_steps=options.snapshot_steps,
        max_restarts=options.max_restarts,
    )
    if options.uses_mpirun and not options.allow_run_as_root:
        rules.check_root()


def _notices(
    options: RunOptions, given: Mapping[str, Any], environ: Mapping[str, str]
) -> Iterator[str]:
    """Yields a line for each option or variable that has no effect in this run."""
    used = {host.name for host in place_instances(options.hosts, options.num_instances)}
    idle = [host.name for host in options.hosts if host.name not in used]
    if idle:
        yield f"{listed(idle)} gets no instance: --num-instances is {options.num_instances}"
    if options.is_on_this_machine:
        if "host_subnet" in given:
            yield "--host-subnet is ignored: no other hosts are given (--host)"
        if "port" in given:
            yield "--port is ignored: workers on this machine take free ports"
    elif "port" in given and options.engine == "horovod":
        yield "--port is ignored: Horovod's workers find each other through mpirun"
    for option in options_of(RunOptions).values():
        reason = option.ignored
        if option.group.title == "mpirun" and not options.uses_mpirun:
            reason = "--engine grpc uses no mpirun"
            if not options.is_on_this_machine and option.field == "mpi_global_args":
                reason = ""  # it names the remote shell
        if reason and option.field in given:
            yield f"{option.long_name} is ignored: {reason}"
    if is_tf_config_set(environ):
        yield "TF_CONFIG of this environment is not used: each worker gets its own"


def _as_in_a_file(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all options and the command in the form of a file of --export-config."""
    values = {}
    for option in options_of(RunOptions).values():
        if option.is_exported:
            value = given.get(option.field, option.default_in_file)
            if value is None and option.value:
                value = option.value.none_word
            value = str(value) if isinstance(value, Path) else value
            values[option.key] = list(value) if isinstance(value, tuple) else value
    return {**dict(sorted(values.items())), COMMAND: list(given[COMMAND])}
