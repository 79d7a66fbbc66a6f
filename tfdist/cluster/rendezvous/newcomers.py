"""Newcomers: connections to a port before their first message is complete, read side by side.

Any process that reaches the port may connect. One that says nothing, says it slowly, or something
else, delays no other one:

    the port --accepted--> a newcomer --its first message--> admitted: it belongs to the caller
                               |
                               +-- no message of this run, too long, too late --> closed
                               +-- too many at once: the oldest --------------->  closed

All connections that wait are accepted, however many come a second: a worker stands in the same
queue of the kernel, so a limit there would hold it up. Accepting one takes some microseconds.
"""

import errno
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tfdist.cluster.rendezvous.protocol import LINE_MAX_BYTES

# Newcomers at once, in addition to the workers that are expected.
MOST_STRANGERS = 64
# Connections accepted in one look, so that the caller gets its turn while others keep connecting.
_AT_ONCE = 64
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_S = 0.05

_Message = TypeVar("_Message")


@dataclass(frozen=True)
class Unfinished:
    """The message is not complete. `ask`, if not empty, is sent once: it asks for the rest."""

    ask: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Admitted(Generic[_Message]):
    """A connection with its first message, and the bytes received so far. It does not block."""

    connection: socket.socket
    sender_ip: str
    message: _Message
    received: bytes


@dataclass(eq=False, kw_only=True)
class _Newcomer:
    connection: socket.socket
    sender_ip: str
    most_bytes: int
    since_s: float = field(default_factory=time.monotonic)
    received: bytes = b""
    is_extended: bool = False


class Newcomers(Generic[_Message]):
    """The newcomers of some listening sockets, which the caller closes.

    Args:
      read: Returns the message in the bytes that a newcomer has sent so far: `Unfinished` if it is
        not complete, None if it is not a message of this run.
      limit_s: The seconds in which the message must be complete.
      most_bytes: The longest message; `LINE_MAX_BYTES` for one that has been asked for more.
      most: The number of newcomers at once.
      on_stranger: Called with the IP address of each newcomer that is closed, except for one that
        left by itself.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        read: Callable[[bytes], _Message | Unfinished | None],
        *,
        limit_s: float,
        most_bytes: int,
        most: int = MOST_STRANGERS,
        on_stranger: Callable[[str], None] = lambda sender_ip: None,
    ) -> None:
        self._read_message = read
        self._limit_s, self._most_bytes, self._most = limit_s, most_bytes, most
        self._on_stranger = on_stranger
        self._newcomers: dict[socket.socket, _Newcomer] = {}  # oldest first
        self._selector = selectors.EpollSelector()
        for listener in listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)

    def fileno(self) -> int:
        """Returns a descriptor that is readable when `look` would find something."""
        return self._selector.fileno()

    def look(self, wait_s: float = 0.0) -> list[Admitted[_Message]]:
        """Accepts and reads what comes within `wait_s`; returns who is admitted."""
        ready = self._selector.select(wait_s)
        self._drop_late()
        admitted = []
        for key, _ in ready:
            assert isinstance(key.fileobj, socket.socket)
            if key.data is None:
                admitted += self._accept(key.fileobj)
            elif key.data.connection in self._newcomers:
                admitted += self._read(key.data)
        return admitted

    def close(self) -> None:
        """Closes the connections of all newcomers that are left."""
        for newcomer in list(self._newcomers.values()):
            self._close(newcomer)
        self._selector.close()

    def _accept(self, listener: socket.socket) -> list[Admitted[_Message]]:
        admitted: list[Admitted[_Message]] = []
        for _ in range(_AT_ONCE):
            try:
                connection, address = listener.accept()
            except OSError as error:  # None is left, or the connection is closed again.
                if error.errno in _NO_ROOM:
                    self._make_room()
                break
            if len(self._newcomers) >= self._most:
                self._drop_stranger(next(iter(self._newcomers.values())))
            connection.setblocking(False)
            newcomer = _Newcomer(
                connection=connection,
                sender_ip=str(address[0]).removeprefix("::ffff:"),
                most_bytes=self._most_bytes,
            )
            self._newcomers[connection] = newcomer
            self._selector.register(connection, selectors.EVENT_READ, newcomer)
            admitted += self._read(newcomer)
        return admitted

    def _make_room(self) -> None:
        """Frees a file descriptor where this process may open no more."""
        if self._newcomers:
            self._drop_stranger(next(iter(self._newcomers.values())))
        else:
            time.sleep(_PAUSE_S)

    def _read(self, newcomer: _Newcomer) -> list[Admitted[_Message]]:
        try:
            data = newcomer.connection.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:  # A health check, or a worker that has ended.
            self._close(newcomer)
            return []
        newcomer.received += data
        message = self._read_message(newcomer.received)
        if isinstance(message, Unfinished):
            self._await_rest(newcomer, message.ask)
            return []
        if message is None:
            self._drop_stranger(newcomer)
            return []
        self._forget(newcomer)
        return [
            Admitted(
                connection=newcomer.connection,
                sender_ip=newcomer.sender_ip,
                message=message,
                received=newcomer.received,
            )
        ]

    def _await_rest(self, newcomer: _Newcomer, ask: bytes) -> None:
        if len(newcomer.received) > newcomer.most_bytes:
            self._drop_stranger(newcomer)
        elif ask and not newcomer.is_extended:
            newcomer.is_extended, newcomer.most_bytes = True, LINE_MAX_BYTES
            try:
                newcomer.connection.send(ask)  # Some bytes, into an empty buffer.
            except OSError:
                self._close(newcomer)

    def _drop_late(self) -> None:
        latest_s = time.monotonic() - self._limit_s
        while self._newcomers:
            oldest = next(iter(self._newcomers.values()))
            if oldest.since_s > latest_s:
                return
            self._drop_stranger(oldest)

    def _drop_stranger(self, newcomer: _Newcomer) -> None:
        self._close(newcomer)
        self._on_stranger(newcomer.sender_ip)

    def _close(self, newcomer: _Newcomer) -> None:
        self._forget(newcomer)
        newcomer.connection.close()

    def _forget(self, newcomer: _Newcomer) -> None:
        del self._newcomers[newcomer.connection]
        self._selector.unregister(newcomer.connection)
