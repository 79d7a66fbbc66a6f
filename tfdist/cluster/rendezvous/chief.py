"""The chief's side of the rendezvous: admits the other workers and sends them the state.

Its time is linear in the number of workers: each gets one answer when it joins, then news of the
missing ones at most once a second, and the end at once.
"""

import itertools
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.cluster.rendezvous.newcomers import (
    MOST_STRANGERS,
    Admitted,
    Newcomers,
    Unfinished,
)
from tfdist.cluster.rendezvous.protocol import (
    HELLO_MAX_BYTES,
    MOST_NAMED,
    Hello,
    Member,
    Reply,
    encode,
    ending_error,
    hello_of,
    lacks_list,
    missing_error,
    name_missing,
    parse_hello,
    refusal,
)
from tfdist.cluster.rendezvous.sockets import HELLO_LIMIT_S, POLL_S, Patience, has_ended

# After a failure the chief still reports it to workers that connect, for so long.
_FAREWELL_S = 1.0
# The shortest time between two lists of the missing workers.
_NEWS_EVERY_S = 1.0


@dataclass(eq=False, kw_only=True)
class _Joined:
    """The connection of a worker that has joined, or of one that is told why it cannot."""

    connection: socket.socket
    index: int
    process: str


class Gathering:
    """Waits until every other worker has connected, then sends "go" to all at once.

    Connections of other programs are dropped. A worker that leaves before the start is missing
    again. The caller closes the listening sockets.
    """

    def __init__(
        self, members: Sequence[Member], listeners: Sequence[socket.socket], patience: Patience
    ) -> None:
        self._hello = hello_of(members, 0, process="")
        self._members = self._hello.members
        self._patience = patience
        self._joined: dict[int, _Joined] = {}
        self._refused: list[socket.socket] = []
        self._missing = dict.fromkeys(range(1, len(members)))  # an ordered set
        self._error = ""
        self._is_absence = False
        self._error_at = 0.0
        self._reported_missing = ""
        self._next_news_s = 0.0
        self._has_reported_strangers = False
        self._newcomers = Newcomers(
            listeners,
            self._read_hello,
            limit_s=HELLO_LIMIT_S,
            most_bytes=HELLO_MAX_BYTES,
            most=len(members) + MOST_STRANGERS,
            on_stranger=self._report_stranger,
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._newcomers, selectors.EVENT_READ)

    def run(self) -> dict[int, socket.socket]:
        """Returns the connections to all other workers, once they have joined and got "go".

        If the run cannot start, it closes all connections and raises a RendezvousError.
        """
        started: dict[int, socket.socket] = {}
        try:
            is_complete = False
            while not is_complete:
                # Once all are here: a last look at what has come already, a worker's end perhaps.
                is_last_look = self._is_complete()
                self._read_what_came(0.0 if is_last_look else POLL_S)
                self._fail_or_report()
                is_complete = is_last_look and self._is_complete()
            self._tell_all(Reply(event="go"))
            started = {index: one.connection for index, one in self._joined.items()}
        finally:
            for connection in self._refused:
                connection.close()
            for one in [] if started else list(self._joined.values()):
                self._drop(one)
            self._newcomers.close()
            self._selector.close()
        return started

    def _is_complete(self) -> bool:
        return not (self._missing or self._error)

    def _read_what_came(self, wait_s: float) -> None:
        ready = self._selector.select(wait_s)
        for key, _ in ready:
            if key.data is not None:
                self._read(key.data)
        for admitted in self._newcomers.look():  # Also without news: it drops those that are late.
            self._welcome(admitted)

    def _read_hello(self, received: bytes) -> Hello | Unfinished | None:
        """Returns the hello in what a newcomer has sent, with the list if that is another one."""
        *lines, _ = received.split(b"\n")
        if not lines:
            return Unfinished()
        hello = parse_hello(lines[-1])
        if hello is None:
            return None
        if lacks_list(hello, self._hello):
            return Unfinished(ask=encode(Reply(event="list"))) if len(lines) == 1 else None
        is_known = hello.digest != self._hello.digest or hello.index < len(self._members)
        return hello if is_known else None

    def _read(self, one: _Joined) -> None:
        """Notes the end of a connection; what a worker says before the start is not for us."""
        try:
            data = one.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(one)
            if not self._error:
                self._patience.say(f"{self._members[one.index]} left before the start.")

    def _welcome(self, admitted: Admitted[Hello]) -> None:
        hello = admitted.message
        earlier = self._joined.get(hello.index)
        # The same worker, started or connected again.
        if earlier and (earlier.process == hello.process or has_ended(earlier.connection)):
            self._drop(earlier)
        is_present = hello.index == 0 or hello.index in self._joined
        error = self._error or refusal(hello, self._hello, is_present=is_present)
        if error:
            self._fail(error)
            self._refused.append(admitted.connection)
            _is_sent(admitted.connection, encode(self._last_reply()))
            return
        one = _Joined(connection=admitted.connection, index=hello.index, process=hello.process)
        self._joined[one.index] = one
        del self._missing[one.index]
        self._selector.register(one.connection, selectors.EVENT_READ, one)
        if self._missing and not _is_sent(
            one.connection, encode(self._waiting_reply(self._named_missing()))
        ):
            self._drop(one)

    def _fail_or_report(self) -> None:
        if self._error:
            if time.monotonic() - self._error_at > _FAREWELL_S:
                raise ending_error(self._last_reply())
            return
        if not self._missing:
            return
        named, now = self._named_missing(), time.monotonic()
        if self._patience.is_over():
            self._is_absence = True
            self._fail(missing_error(named, self._patience.limit_s))
            return
        if named != self._reported_missing and now >= self._next_news_s:
            self._reported_missing, self._next_news_s = named, now + _NEWS_EVERY_S
            self._tell_all(self._waiting_reply(named))
        self._patience.report(named)

    def _fail(self, error: str) -> None:
        if not self._error:
            self._error, self._error_at = error, time.monotonic()
            self._tell_all(self._last_reply())

    def _named_missing(self) -> str:
        first = [self._members[index] for index in itertools.islice(self._missing, MOST_NAMED)]
        return name_missing(first, len(self._missing))

    def _last_reply(self) -> Reply:
        return Reply(event="end", error=self._error, is_absence=self._is_absence)

    def _waiting_reply(self, missing: str) -> Reply:
        return Reply(
            event="wait",
            missing=missing,
            waited_s=self._patience.waited_s,
            limit_s=self._patience.limit_s,
        )

    def _tell_all(self, reply: Reply) -> None:
        line = encode(reply)
        for joined in list(self._joined.values()):
            if not _is_sent(joined.connection, line):
                self._drop(joined)

    def _report_stranger(self, sender_ip: str) -> None:
        if not self._has_reported_strangers:
            self._has_reported_strangers = True
            self._patience.say(
                f"Ignored a connection from {sender_ip} that is not a worker of this run."
            )

    def _drop(self, one: _Joined) -> None:
        if self._joined.get(one.index) is not one:  # The worker has connected again.
            return
        del self._joined[one.index]
        self._missing = dict.fromkeys(sorted([*self._missing, one.index]))
        self._selector.unregister(one.connection)
        one.connection.close()


def _is_sent(connection: socket.socket, line: bytes) -> bool:
    """Sends a line to a connection that does not block; returns False if it has ended."""
    try:
        connection.sendall(line)
    except OSError:
        return False
    return True
