"""The messages between workers before the start, and the texts for the user. No sockets.

Every other worker connects to the chief and sends one line, its `Hello`. The chief answers with
lines, each a `Reply`: "wait" whenever a worker joins or leaves, then "go" to all, or "end".
"""

import functools
import importlib.metadata
import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from tfdist import __version__
from tfdist.cluster.tasks import Cluster, printable
from tfdist.process.endings import OneLineError
from tfdist.process.exit_codes import LOST_WORKER, PORT_TAKEN

PROTOCOL = "tfdist-rendezvous"
VERSION = 2
LINE_MAX_BYTES = 1 << 20  # a hello lists the cluster: some 40 bytes for each worker
_MOST_NAMED = 4
_MOST_LINES = 2  # of an error
_LONGEST_LINE = 3000  # more than two lists of `_MOST_NAMED` of the longest addresses
_LARGEST = 1e9  # seconds, or a version


class RendezvousError(OneLineError, RuntimeError):
    """The workers cannot start together; the message is one or two lines for the user."""


class AbsentWorkerError(RendezvousError):
    """Another worker did not come in time, or left again before the start."""

    exit_code: ClassVar[int] = LOST_WORKER


class PortTakenError(RendezvousError):
    """This worker's port is in use."""

    exit_code: ClassVar[int] = PORT_TAKEN


@dataclass(frozen=True, kw_only=True)
class Member:
    """A worker as messages name it, for example worker 2 (localhost:3739)."""

    name: str
    address: str

    def __str__(self) -> str:
        return f"{self.name} ({self.address})"


@functools.cache
def installed_versions() -> str:
    """Returns the versions that all workers must have in common, as text for the user."""
    try:
        major, minor, *_ = importlib.metadata.version("tensorflow").split(".")
    except importlib.metadata.PackageNotFoundError:  # A build of another name.
        return f"tfdist {__version__}"
    return f"tfdist {__version__} with TensorFlow {major}.{minor}"


def different_versions(sender: Member, theirs: str, chief: Member, ours: str) -> str:
    """Returns the message for a worker whose packages would build another graph."""
    return (
        f"{sender} has {theirs}, {chief} has {ours}. Their graphs would not fit together.\n"
        "Install the same versions for all workers."
    )


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The first message of a worker.

    Attributes:
      process: A random text by which two processes of one task are told apart.
      installed: The versions of its packages, see `installed_versions`.
    """

    members: tuple[Member, ...]
    index: int
    process: str
    installed: str = field(default_factory=installed_versions)
    version: int = VERSION

    @property
    def sender(self) -> Member:
        """The worker that sends the message, as its own cluster lists it."""
        return self.members[self.index]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A line from the chief.

    Attributes:
      event: "wait" (a worker is missing), "go" (all have joined), or "end" (there is no start).
      missing: With "wait": the missing workers, as text for the user.
      waited_s: With "wait": the seconds that the chief has waited.
      limit_s: With "wait": the seconds that it waits at most.
      error: With "end": the message for the user.
      is_absence: With "end": whether a worker did not come.
    """

    event: str
    missing: str = ""
    waited_s: float = 0.0
    limit_s: float = 0.0
    error: str = ""
    is_absence: bool = False


def members_of(cluster: Cluster) -> tuple[Member, ...]:
    """Returns the training workers of the cluster in worker order."""
    return tuple(Member(name=task.name, address=cluster.address(task)) for task in cluster.workers)


def encode(words: Hello | Reply) -> bytes:
    """Returns the line that `parse_hello` or `parse_reply` reads."""
    line = {"protocol": PROTOCOL, "version": VERSION, **asdict(words)}
    return json.dumps(line).encode() + b"\n"


def parse_hello(line: bytes) -> Hello | None:
    """Returns the message of a worker, or None if the line is not one.

    Any process can send it, so its texts are made printable here.
    """
    words = _parse(line)
    try:
        members = tuple(
            Member(name=printable(str(one["name"])), address=printable(str(one["address"])))
            for one in words["members"]
        )
        index, version = int(words["index"]), int(words["version"])
        process = str(words["process"])
        installed = printable(str(words.get("installed", "")))  # Version 1 did not have it.
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    if not 0 <= index < len(members) or not 0 <= version <= _LARGEST:
        return None
    return Hello(
        members=members, index=index, process=process, installed=installed, version=version
    )


def parse_reply(line: bytes) -> Reply | None:
    """Returns the message of the chief, or None if the line is not one.

    Another process may have taken the chief's port, so its texts are made printable here.
    """
    words = _parse(line)
    try:
        return Reply(
            event=str(words["event"]),
            missing=printable(str(words["missing"]), _LONGEST_LINE),
            waited_s=_seconds_of(words["waited_s"]),
            limit_s=_seconds_of(words["limit_s"]),
            error="\n".join(
                printable(line, _LONGEST_LINE)
                for line in str(words["error"]).split("\n", _MOST_LINES)[:_MOST_LINES]
            ),
            is_absence=bool(words["is_absence"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def ending_error(reply: Reply) -> RendezvousError:
    """Returns the error of a reply "end"; the chief and the other workers raise it."""
    return AbsentWorkerError(reply.error) if reply.is_absence else RendezvousError(reply.error)


def refusal(hello: Hello, members: Sequence[Member], present: Collection[int]) -> str | None:
    """Returns why the run cannot start with this worker; None if it can.

    `members` are those of the cluster of the chief, which is the first; `present` has the indices
    of the workers that have joined already.
    """
    sender, chief = hello.sender, members[0]
    if hello.version != VERSION:
        return (
            f"{sender} has another version of tfdist: it speaks version {hello.version} of the "
            f"start-up protocol, {chief.name} version {VERSION}. Install one version everywhere."
        )
    if hello.installed != installed_versions():
        return different_versions(sender, hello.installed, chief, installed_versions())
    if hello.members != tuple(members):
        theirs, ours = _difference(hello.members, members)
        return (
            f"{sender.name} was started with another cluster: it lists {theirs}, "
            f"{chief.name} lists {ours}.\nGive all workers the same TF_CONFIG cluster."
        )
    if hello.index in present:
        return (
            f"Two processes were started as {sender}. Start each task once: "
            "give every process another task in TF_CONFIG."
        )
    return None


def name_missing(missing: Sequence[Member]) -> str:
    """Returns the missing workers by name and address, shortened where there are many."""
    named = [str(member) for member in missing[:_MOST_NAMED]]
    if len(missing) > _MOST_NAMED:
        return f"{', '.join(named)} and {len(missing) - _MOST_NAMED} more"
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


def waiting_line(missing: str, waited_s: float, limit_s: float, problem: str = "") -> str:
    """Returns the line that names the workers for which this process waits."""
    why = f": {problem}" if problem else ""
    return f"Waiting for {missing}{why}, {_seconds(waited_s)} s of {_seconds(limit_s)} s ..."


def missing_error(missing: str, limit_s: float, problem: str = "") -> str:
    """Returns the message of the error after the limit."""
    why = f" ({problem})" if problem else ""
    return (
        f"{missing} did not come within {_seconds(limit_s)} s{why}.\nStart every worker of the "
        "cluster, check its address and the firewall, or wait longer with TFDIST_START_TIMEOUT_S."
    )


def unreachable_error(missing: str, limit_s: float, problem: str) -> str:
    """Returns the message for workers that joined, but whose servers do not answer."""
    return (
        f"{missing} joined, but the TensorFlow server there cannot be reached: {problem} for "
        f"{_seconds(limit_s)} s.\nDid that worker end, or is there a firewall between the hosts?"
    )


def _parse(line: bytes) -> dict[str, Any]:
    try:
        words = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return words if isinstance(words, dict) and words.get("protocol") == PROTOCOL else {}


def _seconds_of(value: Any) -> float:
    return min(max(0.0, float(value)), _LARGEST)


def _difference(theirs: Sequence[Member], ours: Sequence[Member]) -> tuple[str, str]:
    """Returns both lists as text: complete if short, else lengths and the first difference."""
    if max(len(theirs), len(ours)) <= _MOST_NAMED and _addresses(theirs) != _addresses(ours):
        return _addresses(theirs), _addresses(ours)
    place = next(
        (i for i, (one, other) in enumerate(zip(theirs, ours, strict=False)) if one != other),
        min(len(theirs), len(ours)),
    )
    return _one_of(theirs, place), _one_of(ours, place)


def _addresses(members: Sequence[Member]) -> str:
    return f"[{', '.join(member.address for member in members)}]"


def _one_of(members: Sequence[Member], place: int) -> str:
    count = f"{len(members)} worker{'s' if len(members) > 1 else ''}"
    return f"{count}, among them {members[place]}" if place < len(members) else count


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 10 else f"{round(seconds, 1):g}"
