"""The machines of a run, from --host or --hostfile, and the placement of the instances.

A list that is wrong or too small is a UsageError.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tfdist.cluster.slurm import expand_node_list
from tfdist.cluster.tasks import ClusterError, is_loopback, split_address
from tfdist.launch.errors import UsageError
from tfdist.process.text import did_you_mean, listed, shown

SSH = ["ssh", "-o", "BatchMode=yes"]
# mpirun's parameters that name another program than ssh. The hosts' names are for that program.
SHELL_SETTINGS = ("plm_rsh_agent", "orte_rsh_agent")
_MOST_CHARACTERS = 1_000_000
_EXAMPLE = 'Name a file with one host a line, for example "gpu1 slots=2".'


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine of the run: the user's name for it, "localhost" for this one, and its slots."""

    name: str
    slots: int | None = None


THIS_MACHINE = Host(name="localhost")


def remote_shell(mpi_args: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Returns the command that mpirun would use in place of ssh, if one is set, else ssh's."""
    given = [value for name, value in itertools.pairwise(mpi_args) if name in SHELL_SETTINGS]
    variables = [f"OMPI_MCA_{name}" for name in SHELL_SETTINGS]
    given += [environ[name] for name in variables if name in environ]
    return shlex.split(given[0]) if given else SSH


def parse_host_list(text: str) -> tuple[Host, ...]:
    """Reads hosts in the format of --host: "a,b", "node[0-2,4]", "a:2,[fe80::1]:4"."""
    try:
        return _checked(host for part in _split_at_commas(text) for host in _read_part(part))
    except ValueError as error:
        raise UsageError(f"--host {shown(text)}: {error}") from None


def read_hostfile(path: str) -> tuple[Host, ...]:
    """Reads a file with one host per line, in Open MPI's format: "NAME" or "NAME slots=N"."""
    named = f"--hostfile {shown(path)}"
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MOST_CHARACTERS + 1)
    except OSError as error:
        raise UsageError(f"{named} cannot be read: {error.strerror}. {_EXAMPLE}") from None
    except ValueError:
        raise UsageError(f"{named} is not a text file in UTF-8. {_EXAMPLE}") from None
    if len(text) > _MOST_CHARACTERS:
        raise UsageError(
            f"{named} has more than {_MOST_CHARACTERS} characters, the most allowed. {_EXAMPLE}"
        )
    hosts: list[Host] = []
    where = ""
    try:
        for number, line in enumerate(text.splitlines(), start=1):
            where = f", line {number}"
            words = line.partition("#")[0].split()
            if words:
                hosts += _checked(_read_line(words))
        where = ""
        return _checked(hosts)
    except ValueError as error:
        raise UsageError(f"{named}{where}: {error}") from None


def place_instances(hosts: Sequence[Host], num_instances: int) -> tuple[Host, ...]:
    """Returns the host of each instance.

    Without slots, the instances are placed on the hosts in turn, as by poprun. With slots, one host
    after another is filled, as by mpirun.
    """
    if hosts[0].slots is None:
        return tuple(hosts[index % len(hosts)] for index in range(num_instances))
    places = sum(host.slots or 0 for host in hosts)
    if places < num_instances:
        each = ", ".join(f"{host.name}:{host.slots}" for host in hosts[:4])
        more = ", ..." if len(hosts) > 4 else ""
        raise UsageError(
            f"the hosts have {places} slots ({each}{more}), and --num-instances is "
            f"{num_instances}.\nGive them more slots, add a host, or use --num-instances {places}."
        )
    in_order = (host for host in hosts for _ in range(host.slots or 0))
    return tuple(itertools.islice(in_order, num_instances))


def _split_at_commas(text: str) -> list[str]:
    """Splits a text at the commas outside brackets."""
    parts, is_in_brackets = [""], False
    for character in text:
        if character == "," and not is_in_brackets:
            parts.append("")
            continue
        is_in_brackets = character == "[" or (is_in_brackets and character != "]")
        parts[-1] += character
    parts = [part.strip() for part in parts]
    if "" in parts:
        raise ValueError(
            "there is nothing before, between or after its commas, where a host should be. "
            "Write for example gpu1,gpu2."
        )
    return parts


def _read_part(part: str) -> list[Host]:
    if part.count(":") > 1 and not part.startswith("["):
        raise ValueError(f"{shown(part)} has two colons. Put an IPv6 address in brackets: [::1]:2.")
    if "://" in part:
        raise ValueError(f"{shown(part)} starts with a protocol. Write only NAME or NAME:SLOTS.")
    # A colon within brackets belongs to an IPv6 address.
    is_in_brackets = part.startswith("[") and (part.endswith("]") or "]" not in part)
    name, colon, slots = (part, "", "") if is_in_brackets else part.rpartition(":")
    if colon and not name:
        raise ValueError(f"{shown(part)} has slots but no name. Write NAME or NAME:SLOTS.")
    if re.fullmatch(r"\[[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*\]", name or part):
        names = [name or part]
    else:
        names = expand_node_list(name or part, called="the pattern")
    return [_host(host_name, _slots(slots) if colon else None) for host_name in names]


def _read_line(words: Sequence[str]) -> list[Host]:
    hosts = [host for part in _split_at_commas(words[0]) for host in _read_part(part)]
    slots: int | None = None
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if name != "slots" or not equals or slots is not None:
            raise ValueError(
                f"got {shown(word)} after the host, allowed is slots=N, once."
                f"{did_you_mean(name, ['slots'])} "
                'A whole line: "gpu1 slots=2".'
            )
        slots = _slots(value)
    if slots is None:
        return hosts
    if any(host.slots is not None for host in hosts):
        raise ValueError(f"it gives slots twice, in {shown(' '.join(words))}. Keep slots={slots}.")
    return [Host(name=host.name, slots=slots) for host in hosts]


def _slots(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) < 1:
        raise ValueError(
            f"got {shown(text)} as a number of slots, allowed are whole numbers from 1 to 99999. "
            "Write for example gpu1:2, or slots=2 in a file."
        )
    return int(text)


def _host(name: str, slots: int | None) -> Host:
    try:
        return Host(name=split_address(f"{name}:1")[0], slots=slots)
    except ValueError as error:
        why = str(error)
        is_said = "is not a host" in why
        raise ClusterError(why if is_said else f"{shown(name)} is not a host: {why}") from None


def _checked(hosts: Iterable[Host]) -> tuple[Host, ...]:
    """Checks a whole list; callers put the option's name before the message of a ValueError."""
    found = tuple(hosts)
    if not found:
        raise ValueError('it names no host. Name one a line, for example "gpu1 slots=2".')
    names = [host.name.lower() for host in found]
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise ValueError(
            f"it names {shown(name)} twice, once is allowed. For {count} instances there write "
            f"{name}:{count}, or slots={count} in a file."
        )
    local = [host.name for host in found if is_loopback(host.name)]
    if local and len(found) > 1:
        other = next(host.name for host in found if host.name != local[0])
        raise ValueError(
            f"it has {shown(local[0])}, which each machine takes for itself, beside "
            f"{shown(other)}. Use names that all machines know each other by."
        )
    with_slots = [host for host in found if host.slots is not None]
    if with_slots and len(with_slots) < len(found):
        without = next(host.name for host in found if host.slots is None)
        raise ValueError(
            f"{shown(without)} has no slots, but {shown(with_slots[0].name)} has "
            f"{with_slots[0].slots}. Give slots to all hosts ({listed(names)}) or to none."
        )
    return found


def is_this_machine(hosts: Sequence[Host]) -> bool:
    """Returns whether the whole run is on this machine."""
    return len(hosts) == 1 and is_loopback(hosts[0].name)
