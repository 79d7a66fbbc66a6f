"""The protocol between launcher and agents: JSON objects over TCP, one per line.

    agent to launcher                              launcher to agent
    hello    index, host, pid                      start   command, environment, cwd, cores, ...
    rank     index, environment: from a relay              again after "gone", if there are restarts
    standby  problem: why it was of no use
    started  pid                                   signal  number
    output   stream, text                          stop    grace_s: TERM, then KILL
                                                           of a worker in a step: in_step_grace_s
    state    process, progress, contact            alive   nothing: "I am here"
    ended    code (below 0 the signal), ago_s      bye     end now
    gone     was_killed: no process is left

Before the first message, both sides prove that they have the run's token: see `handshake.py`.
While its worker runs, an agent sends "state" every `BEAT_S` seconds. The launcher sends "alive"
every `SILENCE_S / 8` seconds. If the launcher receives nothing for `SILENCE_S` seconds, it treats
the agent as lost. An agent does so only if the launcher's machine does not answer either, because a
launcher that is suspended will go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Mapping
from typing import Any

from tfdist.cluster.rendezvous.sockets import retry_each_second
from tfdist.launch.workers.messages import parse_message

BEAT_S = 0.5
SILENCE_S = 20.0
# A line holds at most one chunk of output. JSON escapes make it at most six times as long.
LINE_LIMIT_BYTES = 1 << 20
CHUNK_BYTES = 1 << 16
# The error handler of UTF-8 for a worker's output: bytes that are not UTF-8 arrive unchanged.
AS_BYTES = "surrogateescape"
# `TCP_ESTABLISHED` in <netinet/tcp.h>. Each new try waits twice as long: 3 take about 3 s.
_ESTABLISHED, _MOST_UNANSWERED = 1, 2
# The time for which TCP keeps a connection to a host that does not answer: its default.
_KEEPS_S = 900

ADDRESSES_VARIABLE = "TFDIST_AGENT_LAUNCHERS"
TOKEN_VARIABLE = "TFDIST_AGENT_TOKEN"
# An agent's argument: its variables stand in the first line of its standard input, as JSON.
READS_ENVIRONMENT = "--environment-on-stdin"


class Channel:
    """One end of a connection between launcher and agent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        connection = writer.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            retry_each_second(connection, _KEEPS_S)

    def send(self, kind: str, **facts: Any) -> None:
        """Sends a message. Drops it without an error if the connection is closing."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps({"kind": kind, **facts}).encode() + b"\n")

    async def flush(self) -> None:
        """Waits until the other side has taken most of the messages that were sent."""
        with contextlib.suppress(ConnectionError):  # `receive` notices it as well
            await self._writer.drain()

    async def receive(self, timeout_s: float | None = None) -> Mapping[str, Any] | None:
        """Returns the next message, or None if the other side has closed the connection.

        Also returns None for a line that is not a message or is over `LINE_LIMIT_BYTES`. If no
        message arrives within `timeout_s` seconds, it raises a TimeoutError.
        """
        try:
            line = await asyncio.wait_for(self._reader.readline(), timeout_s)
        except asyncio.TimeoutError:  # not the built-in class in Python 3.10
            if timeout_s is None:  # TCP's own
                return None
            raise TimeoutError(f"silent for {timeout_s:g} s") from None
        except (OSError, ValueError):  # ValueError: a line over the limit
            return None
        if not line.endswith(b"\n"):
            return None
        return parse_message(line)

    def is_answered(self) -> bool:
        """Returns whether the other side's machine takes what was sent lately.

        It does so for a process that is suspended, too. False if it does not answer, as after a
        cut cable, which the kernel reports as an error only after many minutes.
        """
        connection = self._writer.get_extra_info("socket")
        # The first bytes of `struct tcp_info` in <linux/tcp.h>. The last two count what was sent
        # again without an answer: data, and questions whether there is room for data.
        state, _, retransmits, probes = connection.getsockopt(
            socket.IPPROTO_TCP, socket.TCP_INFO, 4
        )
        return bool(state == _ESTABLISHED and max(retransmits, probes) <= _MOST_UNANSWERED)

    def close(self) -> None:
        self._writer.close()
