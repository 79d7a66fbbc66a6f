"""Facts about a host of a run, and the findings that follow from them."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfdist.launch.doctor.probe import PACKAGES
from tfdist.launch.doctor.report import Finding, absent, broken, good
from tfdist.launch.machine.remote_hosts import Refusal
from tfdist.process.text import listed, printable

_MOST_APART_S = 1.0


class Silent(Exception):
    """A probe has ended, or does not answer; the message says why."""


@dataclass(kw_only=True, eq=False)
class HostFacts:
    """Facts about a host.

    Attributes:
      refusal: Why no command can be run there.
      problem: Why tfdist's Python does not answer there.
      answers: Its versions, files and folder, in the form of `Probe`.
      ports: Why nothing can listen on a port of its workers, by port; "" if something can.
      reached_from: The answer of each other host that connected to a port of this one.
      ways_back: The same of its connections to this machine, by address.
    """

    name: str
    is_here: bool = False
    login_s: float = 0.0
    refusal: Refusal | None = None
    problem: str = ""
    answers: Mapping[str, Any] = field(default_factory=dict)
    clock_apart_s: float = 0.0
    clock_within_s: float = 0.0
    ports: dict[int, str] = field(default_factory=dict)
    reached_from: dict[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)
    ways_back: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    @contextlib.contextmanager
    def noting_silence(self) -> Iterator[None]:
        """Within this context, a probe that falls silent is a problem of this host."""
        try:
            yield
        except Silent as silent:
            self.problem = str(silent)


def findings_of(
    host: HostFacts, here: Mapping[str, Any], *, login: str, folder: str
) -> Iterator[Finding]:
    """Yields the findings about a host.

    `here` has the answers of this machine, and `login` is the program that reaches the host.
    """
    call = f"{login} {host.name}"
    if host.refusal is not None:
        yield broken(host.refusal.reason, host.refusal.fix)
        return
    if host.is_here:
        yield good("it is this machine")
    else:
        yield good(f"`{call} true` asks nothing and takes {host.login_s:.2f} s")
        if host.problem:
            yield judge_silence(host.problem, host.name)
            return
        yield from judge_versions(host.answers, here, call)
        yield from judge_folder(host.answers, here, folder, host.name)
        yield judge_clock(host.clock_apart_s, host.clock_within_s, host.name)
        yield judge_way_back(host.ways_back, host.name)
    yield from judge_ports(host)


def judge_silence(problem: str, name: str) -> Finding:
    """Returns why tfdist's Python does not answer on a host."""
    problem = printable(problem)
    python = shlex.quote(sys.executable)
    if "No module named" in problem:
        text = f"{python} is there without what this machine's has: {problem}"
    elif "not found" in problem or "No such file" in problem or problem == "exit code 127":
        text = f"there is no {python}"
    else:
        text = f"{python} does not answer there: {problem}"
    return broken(
        text,
        f"Have the same environment at the same path: rsync -a {shlex.quote(sys.prefix)}/ "
        f"{name}:{shlex.quote(sys.prefix)}/",
    )


def judge_versions(
    there: Mapping[str, Any], here: Mapping[str, Any], call: str
) -> Iterator[Finding]:
    """Yields whether a host has the versions of this machine."""
    own, other = here["versions"], there["versions"]
    python = shlex.quote(sys.executable)
    for name, version in own.items():
        if other[name] == version:
            continue
        text = f"{name} {other[name] or 'is not there'}, and {version or 'none'} here"
        if name in PACKAGES and version:
            fix = f"Run: {call} {python} -m pip install {PACKAGES[name]}=={version}"
        elif name in PACKAGES:
            fix = f"Run: {call} {python} -m pip uninstall -y {PACKAGES[name]}"
        elif name == "Horovod":
            where = call if version else "here"
            fix = f"With --engine horovod it is needed on both; {where}: tfdist horovod install"
            yield absent(text, fix)
            continue
        else:
            fix = "Have the same environment on both machines"
        yield broken(text, fix)
    if own != other:
        return
    versions = ", ".join(f"{name} {version}" for name, version in own.items() if version)
    if there["tfdist_files"] != here["tfdist_files"]:
        yield broken(f"{versions}: but other files of tfdist", "Copy tfdist's folder there again")
    else:
        yield good(f"as here: {versions}")


def judge_folder(
    there: Mapping[str, Any], here: Mapping[str, Any], folder: str, name: str
) -> Iterator[Finding]:
    """Yields whether a host has the current folder, with the same programs."""
    quoted = shlex.quote(folder)
    fix = f"Run: rsync -a {quoted}/ {name}:{quoted}/"
    if not there["has_folder"]:
        yield broken(f"there is no {folder}, where the program starts", fix)
        return
    own, other = here["programs"], there["programs"]
    missing = [name for name in own if name not in other]
    changed = [name for name in own if name in other and own[name] != other[name]]
    for names, what in ((missing, "there is no"), (changed, "another one is there:")):
        if names:
            yield broken(f"{folder}: {what} {listed(names)}", fix)
    if not missing and not changed:
        programs = f", with the same {listed(own)}" if own else ""
        yield good(f"{folder} is there{programs}")


def judge_clock(apart_s: float, within_s: float, name: str) -> Finding:
    """Returns whether a host's clock agrees; the difference is known within `within_s` seconds."""
    if abs(apart_s) - within_s <= _MOST_APART_S:
        return good(f"its clock agrees within {max(0.01, abs(apart_s) + within_s):.2f} s")
    what = "fast" if apart_s > 0 else "slow"
    text = f"its clock is {abs(apart_s):.1f} s {what}: times in logs do not compare"
    return absent(text, f"Run on {name}, as root: timedatectl set-ntp true")


def judge_way_back(ways: Mapping[str, Mapping[str, Any]], name: str) -> Finding:
    """Returns whether agents on a host reach the launcher on this machine."""
    for address, answer in ways.items():
        if "seconds" in answer:
            return good(f"it reaches the launcher here, at {address}")
    tried = listed(f"{address} ({_why(answer)})" for address, answer in ways.items())
    fix = (
        f"Let this machine's firewall pass {name} on all ports, name a network of both with "
        "--host-subnet, or start without ssh (tfdist run --nodes)"
    )
    return broken(f"it does not reach the launcher here: {tried}", fix)


def judge_ports(host: HostFacts) -> Iterator[Finding]:
    """Yields whether the other hosts reach the ports of a host's workers."""
    for port, problem in host.ports.items():
        if problem:
            fix = f"End the program that has it (ss -ltnp), or choose others with --port {port + 1}"
            yield broken(f"port {port} cannot be used: {problem}", fix)
    failed = {pair: one for pair, one in host.reached_from.items() if "problem" in one}
    for (other, port), answer in failed.items():
        yield broken(
            f"{other} does not reach {host.name}:{port}: {_why(answer)}",
            _fix_of_port(answer["problem"], other, host.name, port),
        )
    for port in host.ports:
        times = {
            other: one["seconds"]
            for (other, to), one in host.reached_from.items()
            if to == port and "seconds" in one
        }
        if times:
            worst = f"{max(times.values()) * 1e3:.2f} ms"
            there = "a message there and back takes"
            yield good(f"port {port} is reached from {listed(times)}; {there} {worst}")


def _fix_of_port(problem: str, other: str, name: str, port: int) -> str:
    if problem == "unknown":
        return f"Give {other} the name: a line ADDRESS {name} in its /etc/hosts"
    if problem == "stranger":
        return f"Compare `getent hosts {name}` on both machines"
    return f"Open TCP port {port} in the firewall of {name} for {other}"


def _why(answer: Mapping[str, Any]) -> str:
    texts = {
        "unknown": "it does not know that name",
        "stranger": "another machine or program answers there",
        "no answer": "no answer within 5 s",
    }
    return texts.get(answer["problem"], printable(answer["problem"]))
