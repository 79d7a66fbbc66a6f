"""The messages between workers before the start, and the texts for the user. No sockets.

Every other worker connects to the chief and sends one line, its `Hello`. The chief answers with
lines, each a `Reply`: "wait", again while the missing workers change, at most once a second; then
"go" to all, or "end". A hello has a digest of the cluster. The list itself follows only where the
digest differs, when the chief asks for it ("list"): the error names the difference.
"""

import functools
import hashlib
import importlib.metadata
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from tfdist import __version__
from tfdist.cluster.tasks import Cluster
from tfdist.process.endings import OneLineError
from tfdist.process.exit_codes import LOST_WORKER, PORT_TAKEN
from tfdist.process.text import printable

PROTOCOL = "tfdist-rendezvous"
VERSION = 3
HELLO_MAX_BYTES = 1 << 13  # without the list: two names and an address, perhaps in escapes
LINE_MAX_BYTES = 1 << 20  # the list of the cluster: some 40 bytes for each worker
MOST_NAMED = 4
_MOST_LINES = 2  # of an error
_LONGEST_LINE = 3000  # more than two lists of `MOST_NAMED` of the longest addresses
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
      sender: The worker that sends the message, as its own cluster lists it.
      process: A random text by which two processes of one task are told apart.
      digest: Equal for equal clusters, see `digest_of`.
      members: All workers of its cluster; empty if they are not sent.
      installed: The versions of its packages, see `installed_versions`.
    """

    index: int
    sender: Member
    process: str
    digest: str
    members: tuple[Member, ...] = ()
    installed: str = field(default_factory=installed_versions)
    version: int = VERSION


def hello_of(members: Sequence[Member], index: int, process: str) -> Hello:
    """Returns the hello of a worker with the list of its cluster."""
    return Hello(
        index=index,
        sender=members[index],
        process=process,
        digest=digest_of(members),
        members=tuple(members),
    )


def digest_of(members: Sequence[Member]) -> str:
    """Returns a text that only the same workers in the same order have."""
    listed = json.dumps([(member.name, member.address) for member in members])
    return hashlib.sha256(listed.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A line from the chief.

    Attributes:
      event: "wait" (a worker is missing), "list" (the chief asks for the cluster), "go" (all have
        joined), or "end" (there is no start).
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
        members = tuple(_member_of(member) for member in words.get("members", ()))
        index, version = _count_of(words["index"]), _count_of(words["version"])
        # Earlier versions sent the list, and neither the sender nor the versions of packages.
        sender = _member_of(words["sender"]) if "sender" in words else members[index]
        return Hello(
            index=index,
            sender=sender,
            process=_text_of(words["process"]),
            digest=_text_of(words.get("digest", "")),
            members=members,
            installed=_text_of(words.get("installed", "")),
            version=version,
        )
    except (AttributeError, LookupError, TypeError, ValueError):
        return None


def parse_reply(line: bytes) -> Reply | None:
    """Returns the message of the chief, or None if the line is not one.

    Another process may have taken the chief's port, so its texts are made printable here.
    """
    words = _parse(line)
    try:
        return Reply(
            event=_text_of(words["event"]),
            missing=_text_of(words["missing"], _LONGEST_LINE),
            waited_s=_seconds_of(words["waited_s"]),
            limit_s=_seconds_of(words["limit_s"]),
            error="\n".join(
                _text_of(line, _LONGEST_LINE)
                for line in words["error"].split("\n", _MOST_LINES)[:_MOST_LINES]
            ),
            is_absence=words["is_absence"] is True,
        )
    except (AttributeError, LookupError, TypeError, ValueError):
        return None


def ending_error(reply: Reply) -> RendezvousError:
    """Returns the error of a reply "end"; the chief and the other workers raise it."""
    return AbsentWorkerError(reply.error) if reply.is_absence else RendezvousError(reply.error)


def refusal(hello: Hello, ours: Hello, *, is_present: bool = False) -> str | None:
    """Returns why the run cannot start with this worker; None if it can.

    `ours` is the receiver's own hello, whose cluster has the chief first. `is_present` says
    whether another process has joined as the same worker.
    """
    sender, chief = hello.sender, ours.members[0]
    if hello.version != VERSION:
        return (
            f"{sender} has another version of tfdist: it speaks version {hello.version} of the "
            f"start-up protocol, {chief.name} version {VERSION}. Install one version everywhere."
        )
    if hello.installed != ours.installed:
        return different_versions(sender, hello.installed, chief, ours.installed)
    if hello.digest != ours.digest:
        theirs, own = _difference(hello.members, ours.members)
        return (
            f"{sender.name} was started with another cluster: it lists {theirs}, "
            f"{chief.name} lists {own}.\nGive all workers the same TF_CONFIG cluster."
        )
    if is_present:
        return (
            f"Two processes were started as {sender}. Start each task once: "
            "give every process another task in TF_CONFIG."
        )
    return None


def lacks_list(hello: Hello, ours: Hello) -> bool:
    """Returns whether `refusal` needs the list of a cluster that the hello does not have."""
    is_other = hello.digest != ours.digest and not hello.members
    return is_other and hello.version == VERSION and hello.installed == ours.installed


def name_missing(missing: Sequence[Member], count: int | None = None) -> str:
    """Returns the missing workers by name and address, shortened where there are many.

    `count` is the number of all, where `missing` has only the first `MOST_NAMED`.
    """
    named = [str(member) for member in missing[:MOST_NAMED]]
    others = (len(missing) if count is None else count) - MOST_NAMED
    if others > 0:
        return f"{', '.join(named)} and {others} more"
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


def _member_of(words: Any) -> Member:
    return Member(name=_text_of(words["name"]), address=_text_of(words["address"]))


def _text_of(value: Any, most: int = 300) -> str:
    if not isinstance(value, str):
        raise TypeError
    return printable(value, most)


def _count_of(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise ValueError
    return value


def _seconds_of(value: Any) -> float:
    if type(value) not in (int, float) or math.isnan(value):
        raise ValueError
    return float(min(max(0, value), _LARGEST))


def _difference(theirs: Sequence[Member], ours: Sequence[Member]) -> tuple[str, str]:
    """Returns both lists as text: complete if short, else lengths and the first difference."""
    if max(len(theirs), len(ours)) <= MOST_NAMED and _addresses(theirs) != _addresses(ours):
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
