"""The chief's side of the rendezvous: accepts the other workers and sends them the state."""

import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tfdist.cluster.rendezvous.protocol import (
    LINE_MAX_BYTES,
    Member,
    Reply,
    encode,
    ending_error,
    missing_error,
    name_missing,
    parse_hello,
    refusal,
)
from tfdist.cluster.rendezvous.sockets import HELLO_LIMIT_S, POLL_S, Patience, has_ended

# After a failure the chief still reports it to workers that connect, for so long.
_FAREWELL_S = 1.0


@dataclass(eq=False, kw_only=True)
class _Guest:
    """A connection: of an unknown program until its hello is read, then of the worker `index`."""

    connection: socket.socket
    sender_ip: str
    since: float = field(default_factory=time.monotonic)
    received: bytes = b""
    index: int | None = None
    process: str = ""


@dataclass(eq=False)
class Gathering:
    """Waits until every other worker has connected, then sends "go" to all at once.

    Connections of other programs are ignored. A worker that leaves before the start is missing
    again. The caller closes the listening sockets.
    """

    members: Sequence[Member]
    listeners: Sequence[socket.socket]
    patience: Patience

    def __post_init__(self) -> None:
        self._guests: list[_Guest] = []
        self._selector = selectors.DefaultSelector()
        self._error = ""
        self._is_absence = False
        self._error_at = 0.0
        self._reported_missing = ""
        self._has_reported_strangers = False

    def run(self) -> dict[int, socket.socket]:
        """Returns the connections to all other workers, once they have joined and got "go".

        If the run cannot start, it closes all connections and raises a RendezvousError.
        """
        joined: dict[int, socket.socket] = {}
        try:
            for listener in self.listeners:
                self._selector.register(listener, selectors.EVENT_READ)
            while self._read_what_came() or self._missing() or self._error:
                self._drop_silent_strangers()
                self._fail_or_report()
            self._tell_all(Reply(event="go"))
            joined = {g.index: g.connection for g in self._guests if g.index is not None}
        finally:
            for guest in list(self._guests):
                if guest.index not in joined:
                    self._drop(guest)
            self._selector.close()
        return joined

    def _read_what_came(self) -> bool:
        """Reads for at most POLL_S; returns whether anything came (there may be more)."""
        ready = self._selector.select(POLL_S if self._missing() or self._error else 0)
        for key, _ in ready:
            if key.data is None:
                self._accept(key.fileobj)
            else:
                self._read(key.data)
        return bool(ready)

    def _accept(self, listener: object) -> None:
        assert isinstance(listener, socket.socket)
        try:
            connection, address = listener.accept()
        except OSError:  # The connection is closed again.
            return
        connection.setblocking(False)
        guest = _Guest(connection=connection, sender_ip=str(address[0]).removeprefix("::ffff:"))
        self._guests.append(guest)
        self._selector.register(connection, selectors.EVENT_READ, guest)

    def _read(self, guest: _Guest) -> None:
        if guest not in self._guests:  # Dropped a moment ago: the worker has connected again.
            return
        try:
            data = guest.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            if guest.index is not None and not self._error:
                self.patience.say(f"{self.members[guest.index]} left before the start.")
            self._drop(guest)
        elif guest.index is None:
            guest.received += data
            line, newline, _ = guest.received.partition(b"\n")
            if newline:
                self._welcome(guest, line)
            elif len(guest.received) > LINE_MAX_BYTES:
                self._ignore(guest)

    def _welcome(self, guest: _Guest, line: bytes) -> None:
        hello = parse_hello(line)
        if hello is None:
            self._ignore(guest)
            return
        for other in list(self._guests):  # The same worker, started or connected again.
            is_gone = other.process == hello.process or has_ended(other.connection)
            if other.index == hello.index and is_gone:
                self._drop(other)
        present = {0} | {other.index for other in self._guests if other.index is not None}
        error = self._error or refusal(hello, self.members, present)
        if error:
            self._fail(error)
            self._tell(guest, self._last_reply())
        else:
            guest.index, guest.process = hello.index, hello.process
            self._tell(guest, self._waiting_reply())

    def _drop_silent_strangers(self) -> None:
        for guest in list(self._guests):
            if guest.index is None and time.monotonic() - guest.since > HELLO_LIMIT_S:
                self._ignore(guest)

    def _fail_or_report(self) -> None:
        missing = name_missing(self._missing())
        if self._error:
            if time.monotonic() - self._error_at > _FAREWELL_S:
                raise ending_error(self._last_reply())
        elif missing and self.patience.is_over():
            self._is_absence = True
            self._fail(missing_error(missing, self.patience.limit_s))
        elif missing != self._reported_missing:
            self._reported_missing = missing
            self._tell_all(self._waiting_reply())
        elif missing:
            self.patience.report(missing)

    def _fail(self, error: str) -> None:
        if not self._error:
            self._error, self._error_at = error, time.monotonic()
            self._tell_all(self._last_reply())

    def _missing(self) -> list[Member]:
        present = {guest.index for guest in self._guests}
        return [m for index, m in enumerate(self.members) if index and index not in present]

    def _last_reply(self) -> Reply:
        return Reply(event="end", error=self._error, is_absence=self._is_absence)

    def _waiting_reply(self) -> Reply:
        return Reply(
            event="wait",
            missing=name_missing(self._missing()),
            waited_s=self.patience.waited_s,
            limit_s=self.patience.limit_s,
        )

    def _tell_all(self, reply: Reply) -> None:
        for guest in list(self._guests):
            if guest.index is not None:
                self._tell(guest, reply)

    def _tell(self, guest: _Guest, reply: Reply) -> None:
        try:
            guest.connection.sendall(encode(reply))
        except OSError:
            self._drop(guest)

    def _ignore(self, guest: _Guest) -> None:
        if not self._has_reported_strangers:
            self._has_reported_strangers = True
            self.patience.say(
                f"Ignored a connection from {guest.sender_ip} that is not a worker of this run."
            )
        self._drop(guest)

    def _drop(self, guest: _Guest) -> None:
        self._guests.remove(guest)
        self._selector.unregister(guest.connection)
        guest.connection.close()
