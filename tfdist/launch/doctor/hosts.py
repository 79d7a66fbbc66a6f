"""The machines of a run: each is asked at the end of ssh, and each connects to each other one.

this machine   --ssh-->  a probe on each other host: facts, clock
each host      listens on the ports of its workers
each host      --TCP-->  the ports of each other one, and a port of this machine
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shlex
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from tfdist.launch.doctor.children import Children
from tfdist.launch.doctor.host_findings import HostFacts, Silent, findings_of
from tfdist.launch.doctor.probe import MARK, Probe
from tfdist.launch.doctor.report import Finding
from tfdist.launch.machine.ports import own_addresses
from tfdist.launch.machine.processes import python_command
from tfdist.launch.machine.remote_hosts import (
    LOGIN_LIMIT_S,
    call_on_host,
    own_names,
    refusal,
)
from tfdist.launch.options.hosts import Host, remote_shell

_PROBE = "tfdist.launch.doctor.probe"
_ANSWER_LIMIT_S = 30.0
_POLL_S = 0.1
_LINE_LIMIT_BYTES = 1 << 20
_MOST_PORTS = 16  # of one host: a firewall that passes these passes the next ones


class _RemoteProbe:
    """A probe at the end of ssh."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, **question: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(f"{json.dumps(question)}\n".encode())
        try:
            while line := await asyncio.wait_for(self._process.stdout.readline(), _ANSWER_LIMIT_S):
                text = line.decode(errors="replace")
                if text.startswith(MARK):
                    return dict(json.loads(text.removeprefix(MARK)))
        except asyncio.TimeoutError:
            raise Silent(f"no answer within {_ANSWER_LIMIT_S:g} s") from None
        assert self._process.stderr is not None
        said = (await self._process.stderr.read()).decode(errors="replace")
        lines = [line for line in said.splitlines() if line.strip()]
        raise Silent(lines[-1] if lines else f"exit code {await self._process.wait()}")


class _OwnProbe:
    """The probe of this machine."""

    def __init__(self) -> None:
        self._probe = Probe()

    async def ask(self, **question: Any) -> dict[str, Any]:
        return await asyncio.to_thread(self._probe.answer, question)

    def close(self) -> None:
        self._probe.close()


AnyProbe = _RemoteProbe | _OwnProbe


def check_hosts(
    hosts: Sequence[Host], *, port: int, subnet: str | None, children: Children
) -> Iterator[tuple[str, list[Finding]]]:
    """Yields each host with its findings; a signal that `children` has seen ends it.

    `port` is the first of the workers' ports; 0 is any free one, as MPI takes them.
    """
    shell = remote_shell((), os.environ)
    here, facts = asyncio.run(_stoppable(_look(hosts, shell, port, subnet), children))
    for one in facts:
        yield one.name, list(findings_of(one, here, login=shell[0], folder=os.getcwd()))


async def _stoppable(work: Any, children: Children) -> Any:
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=_POLL_S)
            children.raise_if_stopped()
        return await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _look(
    hosts: Sequence[Host], shell: Sequence[str], port: int, subnet: str | None
) -> tuple[Mapping[str, Any], list[HostFacts]]:
    """Returns the facts of this machine, and of each host."""
    own = _OwnProbe()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(own.close)
        here = await own.ask(ask="facts", folder=os.getcwd())
        names = own_names()
        facts = [HostFacts(name=one.name, is_here=one.name in names) for one in hosts]
        logins = (_log_in(one, own, shell, stack) for one in facts)
        probes = {
            one.name: probe
            for one, probe in zip(facts, await asyncio.gather(*logins), strict=True)
            if probe is not None
        }
        reached = [one for one in facts if one.name in probes]
        word = secrets.token_hex(8)
        slots = {one.name: min(one.slots or 1, _MOST_PORTS) for one in hosts}
        for one in reached:
            with one.noting_silence():
                for number in range(port, port + slots[one.name]) if port else (0,):
                    answer = await probes[one.name].ask(ask="listen", port=number, word=word)
                    one.ports[answer.get("port", number)] = answer.get("problem", "")
        await asyncio.gather(*(_connect(one, reached, probes[one.name], word) for one in reached))
        await _connect_back(reached, probes, own, subnet)
    return here, facts


async def _log_in(
    facts: HostFacts, own: _OwnProbe, shell: Sequence[str], stack: contextlib.AsyncExitStack
) -> AnyProbe | None:
    """Returns a probe on this host; None if there can be none, which the facts then say."""
    if facts.is_here:
        return own
    begin_s = time.monotonic()
    code, said = await call_on_host(facts.name, shell, "true", limit_s=LOGIN_LIMIT_S)
    facts.login_s = time.monotonic() - begin_s
    if code != 0:
        facts.refusal = refusal(facts.name, shell, code, said)
        return None
    probe = await stack.enter_async_context(_remote_probe(shell, facts.name))
    with facts.noting_silence():
        facts.answers = await probe.ask(ask="facts", folder=os.getcwd())
        before_s = time.time()
        clock = await probe.ask(ask="clock")
        after_s = time.time()
        facts.clock_apart_s = clock["time_s"] - (before_s + after_s) / 2
        facts.clock_within_s = (after_s - before_s) / 2
    return None if facts.problem else probe


@contextlib.asynccontextmanager
async def _remote_probe(shell: Sequence[str], name: str) -> AsyncIterator[_RemoteProbe]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(*shell, name, shlex.join(python_command(_PROBE))),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,
        limit=_LINE_LIMIT_BYTES,
    )
    try:
        yield _RemoteProbe(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()  # at which the probe ends, and ssh with it
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), _ANSWER_LIMIT_S / 10)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _connect(
    facts: HostFacts, others: Sequence[HostFacts], probe: AnyProbe, word: str
) -> None:
    """Connects a host to the ports of the others, and notes there what came of it."""
    with facts.noting_silence():
        for other in others:
            for port, problem in other.ports.items():
                if other is not facts and not problem:
                    answer = await probe.ask(ask="reach", host=other.name, port=port, word=word)
                    other.reached_from[facts.name, port] = answer


async def _connect_back(
    reached: Sequence[HostFacts],
    probes: Mapping[str, AnyProbe],
    own: _OwnProbe,
    subnet: str | None,
) -> None:
    """Connects each other host to a port that this machine chooses, as agents do."""
    word = secrets.token_hex(8)
    listening = await own.ask(ask="listen", port=0, word=word)
    for one in reached:
        with one.noting_silence():
            for address in () if one.is_here else own_addresses(subnet):
                answer = await probes[one.name].ask(
                    ask="reach", host=address, port=listening["port"], word=word
                )
                one.ways_back[address] = answer
                if "seconds" in answer:
                    break
