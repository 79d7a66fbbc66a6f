"""The membership: the connections of the rendezvous, kept for the life of the process.

Every worker sends its state to the chief once a second, and at once after a change that others wait
for; the chief sends the states of all to all. A connection that ends is a worker that has ended.

    worker 1          the chief            worker 2
      state 1  ------->   <---------------  state 2
      <--- states 0, 2 ---    --- states 0, 1 --->
      (killed)
      end of connection ->    --- 1 is lost ------>

TCP itself notices a host that cannot be reached (within 20 s). The kernel of a stopped process
still answers, so that process is silent and not lost: only it is named.

At the end of a training no worker may leave while another still needs its server:

    worker 1          the chief            worker 2
      closes its session                    (saves)
      farewell 1 ----->                     closes its session
      waits               <---------------- farewell 1
      <--- all have 1 ----    --- all have 1 --->
      leaves              leaves            leaves
"""

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tfdist.cluster.rendezvous.peer_state import (
    CallClock,
    PeerState,
    WaitReport,
    describe_wait,
    encode_states,
    parse_states,
    stalled_workers,
)
from tfdist.cluster.rendezvous.protocol import Member
from tfdist.cluster.rendezvous.sockets import end_with_host
from tfdist.process.progress_file import current_phase

STALL_TIMEOUT = "TFDIST_STALL_TIMEOUT_S"

_BEAT_S = 1.0
_LINE_MAX_BYTES = 1 << 20
# A worker that reads nothing gets nothing more: its buffer would be full after some hours.
_MOST_SILENT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A worker that takes no part any more: it has ended or, if `is_failure`, its training has."""

    index: int
    line: str
    is_failure: bool = False


Listener = Callable[[Loss], None]


class Membership:
    """This worker's connections to the chief, or the chief's to all others.

    Args:
      connections: The chief's connections by index; another worker's is at 0.

    Attributes:
      members: All workers, the chief first.
      calls: The session calls of this worker's training; None outside of one.
      stall_timeout_s: The longest wait for stalled workers; None is no limit.
      on_line: Called with each line about a wait of this worker.
    """

    def __init__(
        self, members: Sequence[Member], own: int, connections: Mapping[int, socket.socket]
    ) -> None:
        self.members = tuple(members)
        self.own = own
        self.calls: CallClock | None = None
        self.stall_timeout_s: float | None = None
        self.on_line: Callable[[str], None] = lambda line: None
        self._farewells, self._failure = 0, ""
        self._states = {i: PeerState() for i in range(len(members)) if i != own}
        self._heard_s = dict.fromkeys(self._states, time.monotonic())
        self._links: dict[int, _Link] = {}
        self._listeners: list[Listener] = []
        self._changed = threading.Condition()
        self._reported_farewells = 0
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._is_closed = False
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        for index, connection in connections.items():
            end_with_host(connection)
            self._links[index] = _Link(connection)
            self._selector.register(connection, selectors.EVENT_READ, index)
        os.register_at_fork(after_in_child=self._close_copies)
        self._thread = threading.Thread(target=self._run, name="tfdist-membership", daemon=True)
        self._thread.start()

    # For the thread that trains.

    def add_listener(self, listener: Listener) -> None:
        """Calls `listener` for each worker that is lost, also for those lost already.

        It is called in the membership's thread, or here.
        """
        with self._changed:
            self._listeners.append(listener)
            lost = [(index, one.lost) for index, one in self._states.items() if one.lost]
        for index, why in lost:
            listener(self._loss(index, why))

    def remove_listener(self, listener: Listener) -> None:
        with self._changed:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def set_failure(self, failure: str) -> None:
        """Tells the others that this worker's training has failed; "" takes that back."""
        self._failure = failure
        self._wake()

    def leave_together(self) -> None:
        """Returns when no worker needs another one any more, as far as this call is concerned.

        Every worker must call it, once it has closed each session that uses other workers. A worker
        that is lost, or silent, is not waited for: nothing is needed from it. The wait is reported
        like any other.
        """
        self._farewells += 1
        self._wake()
        with self._changed:
            while self._late():
                self._changed.wait(_BEAT_S)

    def find_loss(self, limit_s: float) -> Loss | None:
        """Returns a worker that takes no part any more; waits up to `limit_s` for news of one."""
        with self._changed:
            self._changed.wait_for(lambda: self._first_loss() is not None, limit_s)
            return self._first_loss()

    def states(self) -> dict[int, PeerState]:
        """Returns the states of the other workers, by their index."""
        now = time.monotonic()
        heard_s = {
            index: now - heard_s
            for index, heard_s in self._heard_s.items()
            if self.own == 0 or index == 0  # The chief measures the silence of the others.
        }
        return {
            index: replace(state, silent_s=heard_s.get(index, state.silent_s))
            for index, state in self._states.items()
        }

    def close(self) -> None:
        """Closes the connections; for the others this worker has ended."""
        if not self._is_closed:
            self._is_closed = True
            self._wake()
            self._thread.join()
            self._wake_read.close()
            self._wake_write.close()

    # In the membership's thread.

    def _run(self) -> None:
        next_beat_s = 0.0
        report = WaitReport()
        while not self._is_closed:
            looked_s = time.monotonic()
            ready = self._selector.select(max(0.0, next_beat_s - looked_s))
            now = time.monotonic()
            if now - looked_s > 2 * _BEAT_S:  # This process itself was stopped.
                self._heard_s = dict.fromkeys(self._heard_s, now)
            is_urgent = False
            for key, _ in ready:
                if key.data is None:
                    self._wake_read.recv(4096)
                    is_urgent = True
                else:
                    is_urgent |= self._read(key.data)
            if is_urgent or now >= next_beat_s:
                self._send_states()
                next_beat_s = now + _BEAT_S
                self._report_wait(report)
        for index in list(self._links):
            self._drop(index)
        self._selector.close()

    def _read(self, index: int) -> bool:
        """Reads from a connection; returns whether others wait for what has changed."""
        link = self._links[index]
        try:
            lines = link.read()
        except OSError as error:
            # Another worker has the others' states from the chief alone.
            ended = isinstance(error, ConnectionError)
            self._drop(index)
            self._lose(index, "its process has ended" if ended else "it does not answer")
            return True
        before = self._news()
        for line in lines:
            self._take(index, parse_states(line))
        return before != self._news()

    def _news(self) -> dict[int, tuple[int, str, str]]:
        return {i: (s.farewells, s.failure, s.lost) for i, s in self._states.items()}

    def _take(self, sender: int, states: Mapping[int, PeerState]) -> None:
        # The chief speaks for all, the others for themselves.
        reported = {
            index: state
            for index, state in states.items()
            if index in self._states and (self.own != 0 or index == sender)
        }
        now = time.monotonic()
        with self._changed:
            for index, state in reported.items():
                self._heard_s[index] = now
                if not self._states[index].lost:
                    self._states[index] = replace(state, lost="")
            self._changed.notify_all()
        for index, state in reported.items():
            if state.lost and self.own != 0:
                self._lose(index, state.lost)
            elif state.failure:
                self._tell(self._failed(index, state.failure))

    def _lose(self, index: int, why: str) -> None:
        with self._changed:
            if index not in self._states or self._states[index].lost:
                return
            self._states[index] = replace(self._states[index], lost=why)
            self._changed.notify_all()
        if self.own == 0:
            self._send_states()  # First: this process may end because of it.
        self._tell(self._loss(index, why))

    def _first_loss(self) -> Loss | None:
        for index, state in self._states.items():
            if state.failure:  # It says more, if its process has ended as well.
                return self._failed(index, state.failure)
            if state.lost:
                return self._loss(index, state.lost)
        return None

    def _failed(self, index: int, failure: str) -> Loss:
        return self._loss(index, f"its training has failed: {failure}", is_failure=True)

    def _loss(self, index: int, why: str, *, is_failure: bool = False) -> Loss:
        line = f"Lost {self.members[index]} while training: {why}. See its output for the cause."
        return Loss(index=index, line=line, is_failure=is_failure)

    def _tell(self, loss: Loss) -> None:
        with self._changed:
            listeners = list(self._listeners)
        for listener in listeners:
            listener(loss)

    def _send_states(self) -> None:
        if self.own == 0:
            states = {0: self._own_state(), **self.states()}
        else:
            states = {self.own: self._own_state()}
        line = encode_states(states)
        audible_s = time.monotonic() - _MOST_SILENT_S
        for index, link in list(self._links.items()):
            # The chief answers a worker's first words: until then it still reads the rendezvous.
            if self.own != 0 or (link.has_spoken and self._heard_s[index] > audible_s):
                link.send(line)
        present = (one.farewells for one in states.values() if not (one.lost or one.is_silent))
        with self._changed:
            self._reported_farewells = min([self._farewells, *present])
            self._changed.notify_all()

    def _own_state(self) -> PeerState:
        phase, since_s = current_phase()
        waits = phase == "waiting"
        calls = self.calls
        if phase == "training" and calls is not None:
            began_s = calls.began_s
            waits = began_s is not None
            since_s = max(since_s, calls.ended_s if began_s is None else began_s)
        return PeerState(
            phase=phase,
            waits=waits,
            since_s=time.monotonic() - since_s,
            farewells=self._farewells,
            failure=self._failure,
        )

    def _report_wait(self, report: WaitReport) -> None:
        own, others = self._own_state(), self.states()
        usual_s = self.calls.longest_s if self.calls is not None else 0.0
        line = report.next_line(own, others, self.members, usual_s)
        if line is not None:
            self.on_line(line)
        limit_s = self.stall_timeout_s
        stalled = None if limit_s is None else stalled_workers(own, others, limit_s)
        if stalled is not None:
            line = describe_wait(others, self.members, own.since_s)
            line += f" That is longer than {STALL_TIMEOUT}={limit_s:g}."
            self._tell(Loss(index=stalled[0] if stalled else self.own, line=line))

    def _late(self) -> list[int]:
        """Returns the workers for which `leave_together` still waits."""
        states = self.states()
        if self.own != 0 and states[0].lost:
            return []  # The chief leaves last of all, and no other worker can be asked.
        late = [
            index
            for index, state in states.items()
            if state.farewells < self._farewells and not (state.lost or state.is_silent)
        ]
        # The chief's last words must have been sent.
        return late or ([self.own] if self._reported_farewells < self._farewells else [])

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_write.send(b"!")

    def _drop(self, index: int) -> None:
        link = self._links.pop(index)
        self._selector.unregister(link.connection)
        link.connection.close()

    def _close_copies(self) -> None:
        """In a forked child: otherwise the connections would outlive this process."""
        for link in self._links.values():
            link.connection.close()


class _Link:
    """One connection: what was received in part, and what could not be sent yet."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.has_spoken = False
        self._received = b""
        self._unsent = b""

    def read(self) -> list[bytes]:
        """Returns the complete lines that have come; an OSError once the other side is gone."""
        try:
            data = self.connection.recv(1 << 16)
        except BlockingIOError:
            return []
        if not data or len(self._received) > _LINE_MAX_BYTES:
            raise ConnectionAbortedError
        self.has_spoken = True
        *lines, self._received = (self._received + data).split(b"\n")
        return lines

    def send(self, line: bytes) -> None:
        """Sends a line, or drops it while an earlier one is not sent completely."""
        pending = self._unsent or line
        try:
            sent = self.connection.send(pending)
        except BlockingIOError:
            sent = 0
        except OSError:  # The next read says why.
            return
        self._unsent = pending[sent:] if sent or self._unsent else b""
