"""Hosts of a run that cannot be found or reached from this machine."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tfdist.process.text import printable

_SSH_LIMIT_S = 10.0
_ANSWER_LIMIT_S = 10.0
LOGIN_LIMIT_S = 30.0  # of a directory service that is slow
SLURM_JOB = "SLURM_JOB_ID"
# Lines of ssh that say why it did not reach a host, each with the fix.
_REFUSALS = (
    (
        r"ssh: connect to host .*: (?:Connection refused|No route to host|Connection timed out)",
        "Start sshd on that host, and let its firewall pass that port.",
    ),
    (r"ssh: Could not resolve hostname", "Correct the name, or add it to ~/.ssh/config."),
    (r".*Host key verification failed", "Call ssh once by hand, and accept the host's key."),
    (r".*Permission denied \(", "Put your public key there: ssh-copy-id."),
    (r".*(?:ssh|orted): (?:command )?not found", "Install it, or put it on PATH, there and here."),
)


def find_unknown_host(names: Iterable[str]) -> tuple[str, str] | None:
    """Returns the first host that has no address, with the reason; None if all have one.

    A name may be one of ~/.ssh/config: then the address there counts, and a host behind a proxy is
    taken as known.
    """
    for name in names:
        if (reason := _lookup_problem(name)) and (reason := _ssh_problem(name, reason)):
            return name, reason
    return None


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The reason in ssh's words why a host cannot be used, and what to do."""

    reason: str
    fix: str


def refusal_of_ssh(lines: Iterable[str]) -> Refusal | None:
    """Returns the lines that ssh has printed about hosts that it did not reach, with a fix.

    mpirun's own text around them is long, and says nothing about the reason.
    """
    found = {line: fix for line in lines for pattern, fix in _REFUSALS if re.match(pattern, line)}
    if not found:
        return None
    reason = "; ".join(line.rstrip(".") for line in found)
    return Refusal(reason=reason, fix=" ".join(dict.fromkeys(found.values())))


async def refusals_of_hosts(names: Iterable[str], shell: Sequence[str]) -> dict[str, Refusal]:
    """Runs `true` on each host by `shell`, and returns why it failed, for each host where it did.

    This machine under any name is none of the hosts, and need not let itself in.
    """
    failed = await _failures(names, shell, "true", limit_s=LOGIN_LIMIT_S)
    return {name: refusal(name, shell, code, said) for name, (code, said) in failed.items()}


def refusal(name: str, shell: Sequence[str], code: int | None, said: str) -> Refusal:
    """Returns why `true` failed on a host, by its exit code (None: no answer) and its output."""
    lines = [printable(line.strip()) for line in said.splitlines() if line.strip()]
    known = refusal_of_ssh(lines)
    by_hand = f"To try it: {' '.join([*shell[:1], name, 'true'])}"
    if known is not None:
        return Refusal(reason=known.reason, fix=f"{known.fix} {by_hand}")
    reason = lines[-1].rstrip(".") if lines else f"{shell[0]} ended with exit code {code}"
    if code is None:
        reason = f"{shell[0]} had no answer within {LOGIN_LIMIT_S:g} s"
    return Refusal(reason=reason, fix=f"This must work without a question: {by_hand[11:]}")


async def lost_hosts(names: Iterable[str], shell: Sequence[str]) -> frozenset[str]:
    """Returns the hosts on which no command can be run; see `call_on_hosts`."""
    return await call_on_hosts(names, shell, "true")


async def call_on_hosts(
    names: Iterable[str], shell: Sequence[str], *command: str
) -> frozenset[str]:
    """Runs a command on each host, for 10 s at most, and returns the hosts where it failed.

    The `shell`, ssh and its options, runs it. This machine under any name is none of the hosts, and
    need not let itself in.
    """
    return frozenset(await _failures(names, shell, *command))


async def _failures(
    names: Iterable[str], shell: Sequence[str], *command: str, **limit: float
) -> dict[str, tuple[int | None, str]]:
    """Returns the exit codes and the output of the calls that failed, by the host's name."""
    own = own_names()
    others = [name for name in names if name not in own]
    answers = await asyncio.gather(
        *(call_on_host(name, shell, *command, **limit) for name in others)
    )
    failed = {name: one for name, one in zip(others, answers, strict=True) if one[0] != 0}
    are_here = await asyncio.gather(*(_is_here(name) for name in failed))
    return {
        name: one
        for (name, one), is_own in zip(failed.items(), are_here, strict=True)
        if not is_own
    }


async def call_on_host(
    name: str, shell: Sequence[str], *command: str, limit_s: float = _ANSWER_LIMIT_S
) -> tuple[int | None, str]:
    """Runs a command on a host, and returns its exit code, None at the limit, and its stderr."""
    nothing, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *(*shell, name, *command),
            stdin=nothing,
            stdout=nothing,
            stderr=pipe,
            start_new_session=True,  # without a terminal that ssh could ask on
        )
    except OSError as error:  # There is no ssh here, as in a Slurm job whose mpirun needs none.
        return 127, f"{shell[0]}: {error.strerror or error}"
    try:
        _, said = await asyncio.wait_for(process.communicate(), limit_s)
        return process.returncode, said.decode(errors="replace")
    except asyncio.TimeoutError:
        return None, ""
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def own_names() -> frozenset[str]:
    """Returns this machine's names: its hostname, its addresses, and /etc/hosts' names of these.

    No name server is asked.
    """
    addresses = _own_addresses()
    names = {"localhost", socket.gethostname(), *addresses}
    with contextlib.suppress(OSError):
        for line in Path("/etc/hosts").read_text(encoding="utf-8", errors="replace").splitlines():
            address, *called = line.partition("#")[0].split() or [""]
            names |= set(called) if address in addresses else set()
    return frozenset(names)


async def _is_here(name: str) -> bool:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name, None)
    except (OSError, UnicodeError):
        return False
    own = _own_addresses()
    return any(address[0] in own for *_, address in found)


def _own_addresses() -> set[str]:
    return {one.address for interface in psutil.net_if_addrs().values() for one in interface}


def _lookup_problem(name: str) -> str:
    """Returns why a name has no address, or ""."""
    try:
        socket.getaddrinfo(name, None)
    except (OSError, UnicodeError) as error:
        return str(getattr(error, "strerror", None) or error)
    return ""


def _ssh_problem(name: str, reason: str) -> str:
    """Returns why the address that ssh's configuration has for a name is none, or ""."""
    try:
        done = subprocess.run(
            ["ssh", "-G", "--", name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SSH_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return reason
    settings = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    if any(settings.get(key, "none") != "none" for key in ("proxycommand", "proxyjump")):
        return ""
    hostname = settings.get("hostname", name)
    return reason if hostname == name else _lookup_problem(hostname)
