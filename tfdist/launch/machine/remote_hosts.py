"""Hosts of a run that cannot be found or reached from this machine."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence

import psutil

_SSH_LIMIT_S = 10.0
_ANSWER_LIMIT_S = 10.0
# With these, another program than ssh starts mpirun's daemons, and the names are for that program.
_OTHER_SHELLS = ("plm_rsh_agent", "orte_rsh_agent")
_SLURM_JOB = "SLURM_JOB_ID"
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


def find_unknown_host(
    names: Iterable[str], mpirun_args: Sequence[str], environ: Mapping[str, str]
) -> tuple[str, str] | None:
    """Returns the first host that has no address, with the reason; None if all have one.

    A name may be one of ~/.ssh/config: then the address there counts, and a host behind a proxy is
    taken as known.
    """
    has_other_shell = any(
        name in mpirun_args or f"OMPI_MCA_{name}" in environ for name in _OTHER_SHELLS
    )
    if has_other_shell or _SLURM_JOB in environ:
        return None
    for name in names:
        if (reason := _lookup_problem(name)) and (reason := _ssh_problem(name, reason)):
            return name, reason
    return None


def refusal_of_ssh(lines: Iterable[str]) -> str:
    """Returns the lines that ssh has printed about hosts that it did not reach, with a fix; or "".

    mpirun's own text around them is long, and says nothing about the reason.
    """
    found = {line: fix for line in lines for pattern, fix in _REFUSALS if re.match(pattern, line)}
    if not found:
        return ""
    fixes = " ".join(dict.fromkeys(found.values()))
    return f"{'; '.join(line.rstrip('.') for line in found)}. {fixes}"


async def lost_hosts(names: Iterable[str], shell: Sequence[str]) -> frozenset[str]:
    """Returns the hosts on which no command can be run; see `call_on_hosts`."""
    return await call_on_hosts(names, shell, "true")


async def call_on_hosts(
    names: Iterable[str], shell: Sequence[str], *command: str
) -> frozenset[str]:
    """Runs a command on each host, for 10 s at most, and returns the hosts where it failed.

    The `shell`, ssh and its options, runs it. This machine under any name is none of the hosts.
    """
    others = [name for name in names if name not in ("localhost", socket.gethostname())]
    answers = await asyncio.gather(*(_succeeds(name, shell, command) for name in others))
    failed = [name for name, answer in zip(others, answers, strict=True) if not answer]
    # This machine need not let itself in.
    are_here = await asyncio.gather(*(_is_here(name) for name in failed))
    return frozenset(name for name, is_here in zip(failed, are_here, strict=True) if not is_here)


async def _succeeds(name: str, shell: Sequence[str], command: Sequence[str]) -> bool:
    nothing = asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *(*shell, name, *command), stdin=nothing, stdout=nothing, stderr=nothing
        )
    except OSError:  # There is no ssh here, as in a Slurm job whose mpirun needs none.
        return False
    try:
        return await asyncio.wait_for(process.wait(), _ANSWER_LIMIT_S) == 0
    except asyncio.TimeoutError:
        return False
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _is_here(name: str) -> bool:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name, None)
    except (OSError, UnicodeError):
        return False
    own = {one.address for interface in psutil.net_if_addrs().values() for one in interface}
    return any(address[0] in own for *_, address in found)


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
