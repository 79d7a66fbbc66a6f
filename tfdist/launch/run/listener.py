"""The launcher's port: connections of agents are passed on, all others are dropped.

Any user of the machine can connect. Until a connection has proved that it has the run's token, it
costs one file descriptor and 64 bytes, for a few seconds at most, and the number of such
connections is limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from tfdist.launch.workers.channel import LINE_LIMIT_BYTES, Channel
from tfdist.launch.workers.handshake import admit

MOST_STRANGERS = 16  # connections without a proof, in addition to the agents to come
_HANDSHAKE_LIMIT_S = 10.0
# The wait after the system has refused to accept a connection, for lack of file descriptors.
_PAUSE_S = 0.1


@dataclass(kw_only=True, eq=False)
class Listener:
    """Accepts connections until it is closed.

    Args:
      on_agent: Called with the channel of each agent. It is closed when the call has returned.
      on_stranger: Called with the IP address of each connection that is dropped.
    """

    host: str
    token: str
    num_agents: int
    on_agent: Callable[[Channel], Coroutine[Any, Any, None]]
    on_stranger: Callable[[str], None]

    def __post_init__(self) -> None:
        self._socket = socket.create_server((self.host, 0), backlog=1024)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        # The tasks are kept here and not by asyncio, which would print a traceback for a connection
        # that is still open at the end.
        self._tasks: set[asyncio.Task[None]] = set()
        self._unproved: dict[socket.socket, asyncio.Task[None]] = {}  # oldest first
        self._keep(self._accept())

    async def close(self) -> None:
        self.on_stranger = lambda sender: None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self._socket)
            except OSError:
                await asyncio.sleep(_PAUSE_S)
                continue
            if len(self._unproved) >= self.num_agents + MOST_STRANGERS:
                oldest = next(iter(self._unproved))
                self._unproved.pop(oldest).cancel()
            self._unproved[connection] = self._keep(self._receive(connection, address[0]))
            await asyncio.sleep(0)  # agents get their turn while others connect all the time

    async def _receive(self, connection: socket.socket, sender: str) -> None:
        is_agent = False
        try:
            is_agent = await asyncio.wait_for(admit(connection, self.token), _HANDSHAKE_LIMIT_S)
        except (OSError, asyncio.TimeoutError):
            pass
        finally:
            self._unproved.pop(connection, None)
            if not is_agent:
                connection.close()
                self.on_stranger(sender)
        if is_agent:
            streams = await asyncio.open_connection(sock=connection, limit=LINE_LIMIT_BYTES)
            with contextlib.closing(Channel(*streams)) as channel:
                await self.on_agent(channel)

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
