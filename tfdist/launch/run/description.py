"""The description of a run before it starts: topology, commands, and environments."""

from __future__ import annotations

import itertools
import math
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tfdist.launch.failures.failure import joined_names, numbers_text
from tfdist.launch.options.run_options import RunOptions
from tfdist.launch.options.secret_names import HIDDEN, hide_in_command, hide_in_variable
from tfdist.launch.run.starters import starters_of
from tfdist.launch.workers.plan import Plan, WorkerPlan
from tfdist.process.text import printable

_TITLE = "tfdist topology"
_HOST_WIDTHS = (253, 24, 12)  # limits to try for the length of a host name; 253 is DNS's limit
_MOST_LISTED = 8  # more workers than this are described with their number of cores only
_MOST_COMMANDS = 16  # of more workers only some commands are printed
_LONGEST_SHOWN = 600  # characters of a command or a value then
_CUT = " ... "
_THREADS_VARIABLE = "OMP_NUM_THREADS"
_GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"


def description(
    options: RunOptions, plan: Plan, *, verbosity: int, width: int = 100
) -> Iterator[str]:
    """Yields the notices, the topology, smaller sizes and, if asked for, the commands.

    Of many workers only some commands are printed, and long ones in part, unless `verbosity` is 2.
    """
    yield from (f"tfdist: {notice}" for notice in options.notices)
    if options.print_topology:
        yield topology_text(plan, width)
        if options.min_instances not in (None, options.num_instances):
            least, most = options.min_instances, options.num_instances - 1
            sizes = f"{most} to {least}" if most > least else f"{least}"
            yield f"smaller sizes: {sizes} instances, where a host or a worker is left out"
    if verbosity > 0:
        if options.uses_mpirun or not options.is_on_this_machine:
            yield "# the agents that start the workers are started by"
            is_complete = _is_complete(plan, verbosity)
            starters = starters_of(plan, options, os.environ)
            most = 1 if starters[0].is_mpirun else len(starters) if is_complete else 2
            for starter in starters[:most]:
                command = command_text(starter.command)
                cut = command if is_complete else _cut(command)
                yield cut if cut == command else f"# {cut}"  # In a shell nothing of it is run.
        yield from command_lines(plan, is_complete=_is_complete(plan, verbosity))


def _is_complete(plan: Plan, verbosity: int) -> bool:
    return verbosity > 1 or len(plan.workers) <= _MOST_COMMANDS


def topology_text(plan: Plan, width: int) -> str:
    """Returns the topology table, and below it the hosts, devices, cores, threads and GPUs."""
    return "\n".join([topology_table(plan, width), *_notes(plan)])


def topology_table(plan: Plan, width: int) -> str:
    """Returns the table with one column per replica, grouped by instance and host.

    If that is wider than the terminal, a column is an instance. If that is too wide as well, a
    column is a host. Both show numbers as ranges. Hosts that still do not fit are counted in one
    column. If even that is too wide, one column stands for the whole run.
    """
    instances = [worker for worker in plan.workers if worker.replicas]
    by_host = [[w for w in instances if w.host == host.name] for host in plan.hosts]
    by_host = [workers for workers in by_host if workers]
    levels = [
        [_column(plan, [w], [replica]) for host in by_host for w in host for replica in w.replicas],
        [_column(plan, [w], w.replicas) for host in by_host for w in host],
        [_column(plan, host, [r for w in host for r in w.replicas]) for host in by_host],
    ]
    for columns, host_width in itertools.product(levels, _HOST_WIDTHS):
        lines = _drawn(columns, host_width)
        if len(lines[1]) <= width:
            return "\n".join(lines)
    columns = levels[-1]
    most = min(len(columns) - 2, width)  # no column is narrower than a character
    for num_first in range(most, 0, -1):
        left_out = dict.fromkeys(columns[0], "...")
        left_out["hosts"] = f"{len(columns) - 1 - num_first} more"
        lines = _drawn([*columns[:num_first], left_out, columns[-1]], _HOST_WIDTHS[-1])
        if len(lines[1]) <= width:
            return "\n".join(lines)
    whole = _column(plan, instances, [r for worker in instances for r in worker.replicas])
    whole["hosts"] = f"{len(by_host)} hosts" if len(by_host) > 1 else whole["hosts"]
    return "\n".join(_drawn([whole], _HOST_WIDTHS[-1]))


def _column(plan: Plan, workers: Sequence[WorkerPlan], replicas: Iterable[int]) -> dict[str, str]:
    """Returns one column of the table: the text of each row."""
    column = {"hosts": workers[0].host}
    if plan.num_ilds is not None:
        total = sum(len(worker.replicas) for worker in plan.workers)
        replicas = list(replicas)
        column["ILDs"] = numbers_text(replica * plan.num_ilds // total for replica in replicas)
    column["instances"] = numbers_text(worker.index for worker in workers)
    column["replicas"] = numbers_text(replicas)
    return column


def _drawn(columns: Sequence[Mapping[str, str]], host_width: int) -> list[str]:
    """Returns the lines of the table; neighbours with equal texts share a cell."""
    rows: dict[str, list[tuple[str, int]]] = {}  # the text and column span of each cell
    for row in columns[0]:
        groups = itertools.groupby(column[row] for column in columns)
        rows[row] = [(text, len(list(group))) for text, group in groups]
    rows["hosts"] = [(_shortened(text, host_width), span) for text, span in rows["hosts"]]

    label = max(map(len, rows)) + 2
    # The smallest column width at which every text fits with a space on both sides.
    column_width = max(
        math.ceil((len(text) + 3) / span) - 1 for cells in rows.values() for text, span in cells
    )
    column_width = max(column_width, math.ceil((len(_TITLE) + 2 - label) / len(columns)) - 1)
    body = len(columns) * (column_width + 1) - 1
    width = label + 1 + body
    lines = [f" {'=' * width}", f"|{_TITLE.center(width)}|", f"|{'=' * width}|"]
    for row, cells in rows.items():
        texts = [text.center(span * (column_width + 1) - 1) for text, span in cells]
        lines.append("|".join(["", f" {row}".ljust(label), *texts, ""]))
        lines.append(f"|{'-' * label}|{'-' * body}|")
    return [*lines[:-1], f" {'-' * width}"]


def _shortened(name: str, width: int) -> str:
    """Shortens a host's name: removes the domain first, then the beginning of the name."""
    if len(name) <= width:
        return name
    machine = name.split(".")[0]
    if len(machine) <= width and not machine.isdigit():  # not an address
        return machine
    return f"...{(name if machine.isdigit() else machine)[3 - width :]}"


def _notes(plan: Plan) -> list[str]:
    instances = [worker for worker in plan.workers if worker.replicas]
    used = {worker.host for worker in plan.workers}
    unused = [host.name for host in plan.hosts if host.name not in used]
    notes = [f"no worker on: {', '.join(unused)}"] if unused else []
    notes += [f"{w.name} on: {w.host}" for w in plan.workers if not w.replicas]
    notes.append(f"devices per replica: {plan.workers[0].devices_per_replica}")
    cores = {w.name: _cores_text(w) for w in plan.workers}
    if len(set(cores.values())) > 1 and len(cores) > _MOST_LISTED:
        cores = {w.name: str(len(w.cores)) if w.cores else _cores_text(w) for w in plan.workers}
    for title, texts in {
        "cores": cores,
        "threads": {w.name: _threads_text(w) for w in plan.workers},
        "GPUs": {w.name: _variable_text(w, _GPUS_VARIABLE) for w in instances},
    }.items():
        if any(texts.values()):
            notes.append(f"{title}: {_for_each({k: v or 'not set' for k, v in texts.items()})}")
    return notes


def _cores_text(worker: WorkerPlan) -> str:
    if worker.cores is not None:
        return numbers_text(worker.cores)
    if worker.share is None or worker.share.bind == "none":
        return "not bound"
    if worker.share.bind == "numa":
        return "the cores of one memory node of its host"
    num_workers = worker.share.num_workers
    return "all of its host" if num_workers == 1 else f"1/{num_workers} of its host's"


def _threads_text(worker: WorkerPlan) -> str:
    if worker.share is None:
        return _variable_text(worker, _THREADS_VARIABLE)
    return str(worker.share.threads or "as many as cores")


def _variable_text(worker: WorkerPlan, name: str) -> str:
    """Returns a variable's value as one word that a shell leaves as it is; "" if it is not set."""
    value = worker.environment.get(name, "")
    return shlex.quote(printable(value)) if value else ""


def _for_each(texts: Mapping[str, str]) -> str:
    """Returns each text once, with the names of its workers."""
    workers: dict[str, list[str]] = {}
    for name, text in texts.items():
        workers.setdefault(text, []).append(name)
    if len(workers) > 1:
        return ", ".join(f"{text} for {joined_names(names)}" for text, names in workers.items())
    text = next(iter(workers))
    return f"{text} for each worker" if len(texts) > 1 and text[0].isdigit() else text


def command_lines(plan: Plan, *, is_complete: bool = True) -> list[str]:
    """Returns lines that start each worker by hand when pasted into a terminal.

    Variables that all instances share are exported once. Secrets are hidden. Without `is_complete`
    the first two instances and the last one stand for all, and long values are cut.
    """
    alone = [w for w in plan.workers if not w.replicas]
    instances = [w for w in plan.workers if w.replicas]
    shared = _shared_variables(instances)
    lines: list[str] = []
    # Workers outside the instances come first, because the exports below do not apply to them.
    for worker in alone:
        lines += _worker_lines(worker, {}, is_complete)
    if shared:
        names = joined_names(worker.name for worker in instances)
        lines += [f"# {names}", f"export {_assignments(shared)}"]
    shown = instances if is_complete else instances[:2]
    for worker in shown:
        lines += _worker_lines(worker, shared, is_complete)
    if not is_complete:
        names = joined_names(worker.name for worker in instances[2:-1])
        lines.append(f"# {names}: the same, each with its own numbers")
        lines += _worker_lines(instances[-1], shared, is_complete)
        lines.append(f"#{_CUT}stands for what is left out; -vv prints all of it")
    if any(HIDDEN in line for line in lines):
        lines.append(f"# {HIDDEN} stands for a secret")
    return lines


def _shared_variables(workers: Sequence[WorkerPlan]) -> dict[str, str]:
    """Returns the variables that all of several workers have in common."""
    if len(workers) < 2:
        return {}
    first, *others = [worker.environment for worker in workers]
    return {
        name: value
        for name, value in first.items()
        if all(other.get(name) == value for other in others)
    }


def _worker_lines(
    worker: WorkerPlan, exported: Mapping[str, str], is_complete: bool
) -> tuple[str, str]:
    own = {k: v for k, v in worker.environment.items() if k not in exported}
    shown = own if is_complete else {name: _cut(value) for name, value in own.items()}
    log = shlex.quote(printable(str(worker.log_path)))
    command = f"{_assignments(shown)} {command_text(worker.command)}".lstrip()
    return (
        f"# {worker.name} on {worker.host}, log: {log}",
        command if shown == own else f"# {command}",  # In a shell nothing of it is run.
    )


def _cut(text: str) -> str:
    """Returns a text without its middle, if it is long."""
    if len(text) <= _LONGEST_SHOWN:
        return text
    return f"{text[: _LONGEST_SHOWN // 2]}{_CUT}{text[-_LONGEST_SHOWN // 4 :]}"


def command_text(command: Sequence[str]) -> str:
    """Returns a command as it is typed into a shell, with its secrets hidden."""
    return shlex.join(hide_in_command(command))


def _assignments(variables: Mapping[str, str]) -> str:
    return " ".join(
        f"{name}={shlex.quote(hide_in_variable(name, value))}"
        for name, value in sorted(variables.items())
    )
