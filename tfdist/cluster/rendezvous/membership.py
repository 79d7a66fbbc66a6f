"""The membership: the connections of the rendezvous, kept for the life of the process.

Every worker looks at its state once a second, and sends it to the chief if it has changed. The
chief sends the states of all to all if one has changed, equal ones once. Without a change both send
an empty line, a beat, so that silence is noticed: every second, of many workers every 4 s. What
others wait for is sent at once. A connection that ends is a worker that has ended.

    worker 1          the chief            worker 2
      state 1  ------->   <---------------  state 2
      <--- states 0..2 ---    --- states 0..2 --->
      beat     ------->   <---------------  beat
      (killed)
      end of connection ->    --- 1 is lost ------>

A worker in steps shorter than a beat has one state, "moves": steps that go on cost no message. So
the chief's time and bytes are linear in the number of workers, and each other worker's do not
depend on it.

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

from tfdist.cluster.rendezvous.collective_calls import (
    STOP,
    CollectiveCalls,
    describe_difference,
    find_other_program,
)
from tfdist.cluster.rendezvous.peer_state import (
    CallClock,
    PeerState,
    WaitReport,
    describe_wait,
    is_silence,
    stalled_workers,
)
from tfdist.cluster.rendezvous.protocol import Member
from tfdist.cluster.rendezvous.sockets import end_with_host
from tfdist.cluster.rendezvous.state_lines import (
    BEAT,
    Group,
    encode_states,
    group_states,
    parse_states,
)
from tfdist.process.progress_file import current_phase

STALL_TIMEOUT = "TFDIST_STALL_TIMEOUT_S"

_BEAT_S = 1.0
# Each message of a worker costs the chief some 20 microseconds, and so does the answer: with many
# workers there are fewer beats, up to so many times fewer.
_WORKERS_PER_BEAT, _MOST_BEATS = 64, 4
# The chief sends what others wait for at once, but no more often than this for each worker: when a
# thousand workers leave, it hears of them one after the other.
_SPACING_S = 5e-5
_LINE_MAX_BYTES = 1 << 20
# A worker that reads nothing gets nothing more: its buffer would be full after some hours.
_MOST_SILENT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A worker that takes no part any more: it has ended or, if `is_failure`, its training has.

    If `is_difference`, it waits forever: its program and another worker's differ.
    """

    index: int
    line: str
    is_failure: bool = False
    is_difference: bool = False


Listener = Callable[[Loss], None]


class Membership:
    """This worker's connections to the chief, or the chief's to all others.

    Args:
      connections: The chief's connections by index; another worker's is at 0.

    Attributes:
      members: All workers, the chief first.
      calls: The session calls of this worker's training; None outside of one.
      collectives: The collectives that this worker's program has called, in TensorFlow 2.
      difference: The line about two workers with different programs; "" while none are known.
      stall_timeout_s: The longest wait for stalled workers; None is no limit.
      on_line: Called with each line about a wait of this worker.
    """

    def __init__(
        self, members: Sequence[Member], own: int, connections: Mapping[int, socket.socket]
    ) -> None:
        self.members = tuple(members)
        self.own = own
        self.calls: CallClock | None = None
        self.collectives = CollectiveCalls()
        self.difference = ""
        self.stall_timeout_s: float | None = None
        self.on_line: Callable[[str], None] = lambda line: None
        self._farewells, self._failure, self._stop = 0, "", 0
        # The states as they were sent, and the times at which they came; of all messages as well.
        self._states = {i: PeerState() for i in range(len(members)) if i != own}
        self._state_s = dict.fromkeys(self._states, time.monotonic())
        self._heard_s = dict(self._state_s)
        self._failed: set[int] = set()
        self._untold: list[
            Loss
        ] = []  # The chief tells the workers first: it may end because of it.
        self._sent: list[Group] | None = None
        self._sent_since_s = 0.0  # The beginning of this worker's state, as it was sent.
        self._sent_s = 0.0
        self._behind: set[int] = set()  # The links that have not got what was sent last.
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
        for index, why in lost:  # Of failures it hears within a second.
            listener(self._loss(index, why))

    def remove_listener(self, listener: Listener) -> None:
        with self._changed:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def set_failure(self, failure: str) -> None:
        """Tells the others that this worker's training has failed; "" takes that back."""
        self._failure = failure
        self._wake()

    def request_stop(self, number: int) -> None:
        """Asks all workers to stop because of a signal; 0 asks for nothing."""
        if number != self._stop:
            self._stop = number
            self._wake()

    def stop_requests(self) -> dict[int, int]:
        """Returns the workers that ask all to stop, this one as well, each with its signal."""
        requests = {index: state.stop for index, state in self._states.items() if state.stop}
        return {**requests, self.own: self._stop} if self._stop else requests

    def leave_together(self) -> None:
        """Returns when no worker needs another one any more, as far as this call is concerned.

        Every worker must call it, once it has closed each session that uses other workers. A worker
        that is lost, or silent, is not waited for: nothing is needed from it. The wait is reported
        like any other.
        """
        self._farewells += 1
        self._wake()
        with self._changed:
            while self._must_stay() and not self.difference:
                self._changed.wait(_BEAT_S)

    def all_stop(self) -> bool:
        """Returns whether all workers ask for this before their next collective.

        A worker calls it that would leave a loop of collectives, and waits until each other one is
        in its next collective, or asks as well. All that ask get the same answer.
        """
        calls = self.collectives
        with calls.running(STOP):
            answer = None
            while answer is None:
                with self._changed:
                    self._changed.wait(_BEAT_S)
                    answer = self._have_all_stopped(calls.number)
        if not answer:
            calls.take_back()
        return answer

    def _have_all_stopped(self, number: int) -> bool | None:
        """Returns whether all are in a `STOP` of this number, or past it; None: not known yet."""
        states = [state for state in self._states.values() if not state.lost]
        here = [peer_state for peer_state in states if peer_state.number == number]
        if self.difference or any(state_here.call not in (STOP, "") for state_here in here):
            return False  # Outside of a call, a worker has had its answer.
        return True if all(peer_state.number >= number for peer_state in states) else None

    def find_loss(self, limit_s: float) -> Loss | None:
        """Returns a worker that takes no part any more; waits up to `limit_s` for news of one."""
        with self._changed:
            self._changed.wait_for(lambda: self._first_loss() is not None, limit_s)
            return self._first_loss()

    def states(self) -> dict[int, PeerState]:
        """Returns the states of the other workers, by their index."""
        now = time.monotonic()
        return {index: self._state_now(index, now) for index in self._states}

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
        next_look_s = 0.0
        is_urgent = False
        report = WaitReport()
        while not self._is_closed:
            looked_s = time.monotonic()
            due_s = min(next_look_s, self._urgent_s()) if is_urgent else next_look_s
            ready = self._selector.select(max(0.0, due_s - looked_s))
            now = time.monotonic()
            if now - looked_s > 2 * _BEAT_S:  # This process itself was stopped.
                self._heard_s = dict.fromkeys(self._heard_s, now)
            for key, _ in ready:
                if key.data is None:
                    self._wake_read.recv(4096)
                    is_urgent = True
                elif key.data in self._links:
                    is_urgent |= self._read(key.data)
            is_look = now >= next_look_s
            if is_look or (is_urgent and now >= self._urgent_s()):
                self._send_states(is_urgent=is_urgent)
                is_urgent = False
                self._tell_losses()
            if is_look:
                next_look_s = now + _BEAT_S
                for index in sorted(self._failed):  # Again: a listener may be new, or was busy.
                    self._tell(self._failed_loss(index))
                self._report_wait(report)
                self._find_difference()
        for index in list(self._links):
            self._drop(index)
        self._selector.close()

    def _urgent_s(self) -> float:
        """Returns the time from which this worker may send again."""
        return self._sent_s + _SPACING_S * len(self._links)

    def _read(self, index: int) -> bool:
        """Reads from a connection; returns whether others wait for what has changed."""
        link = self._links[index]
        is_new = not link.has_spoken
        try:
            lines = link.read()
        except OSError as error:
            # Another worker has the others' states from the chief alone.
            ended = isinstance(error, ConnectionError)
            self._drop(index)
            self._lose(index, "its process has ended" if ended else "it does not answer")
            return True
        if is_new and self.own == 0:
            self._behind.add(index)  # It has got nothing yet.
        is_urgent = False
        for line in lines:
            is_urgent |= self._take(index, line)
        return is_urgent

    def _take(self, sender: int, line: bytes) -> bool:
        """Notes the states in a line; returns whether others wait for what has changed."""
        now = time.monotonic()
        if line == BEAT:
            self._heard_s[sender] = now
            return False
        # The chief speaks for all, the others for themselves.
        reported = {
            index: state
            for index, state in parse_states(line, len(self.members)).items()
            if index in self._states and (self.own != 0 or index == sender)
        }
        if reported:
            self._heard_s[sender] = now
        is_urgent = False
        for index, state in reported.items():
            before = self._states[index]
            if not before.lost:
                self._states[index] = replace(state, lost="") if state.lost else state
                self._state_s[index] = now
            if state.failure != before.failure:
                self._note_failure(index)
                is_urgent = True
            elif state.difference and not self.difference:
                self._note_difference(index, state.difference)
                is_urgent = True
            elif state.stop != before.stop:
                is_urgent = True
            elif state.farewells > before.farewells:
                # The last farewell ends the others' wait.
                is_urgent = is_urgent or not self._is_one_behind(self._reported_farewells)
        if self.own != 0:
            for index, state in reported.items():
                if state.lost:
                    self._lose(index, state.lost)
            self._tell_losses()
        with self._changed:
            self._changed.notify_all()
        return is_urgent and self.own == 0

    def _note_failure(self, index: int) -> None:
        if self._states[index].failure:
            self._failed.add(index)
            self._untold.append(self._failed_loss(index))
        else:
            self._failed.discard(index)

    def _lose(self, index: int, why: str) -> None:
        with self._changed:
            if index not in self._states or self._states[index].lost:
                return
            self._states[index] = replace(self._states[index], lost=why)
            self._changed.notify_all()
        self._untold.append(self._loss(index, why))

    def _tell_losses(self) -> None:
        untold, self._untold = self._untold, []
        for loss in untold:
            self._tell(loss)

    def _find_difference(self) -> None:
        if self.difference or not self.collectives.kind:
            return
        own, others = self._settled_state(), self.states()
        other = find_other_program(own, others, self.collectives.kind_at)
        if other is not None:
            line = describe_difference({self.own: own, other: others[other]})
            self._note_difference(other, line)
            self._wake()
            self._tell_losses()

    def _note_difference(self, index: int, line: str) -> None:
        with self._changed:
            self.difference = line
            self._changed.notify_all()
        self._untold.append(Loss(index=index, line=line, is_difference=True))

    def _first_loss(self) -> Loss | None:
        if self.difference:
            return Loss(index=self.own, line=self.difference, is_difference=True)
        for index, state in self._states.items():
            if state.failure:  # It says more, if its process has ended as well.
                return self._failed_loss(index)
            if state.lost:
                return self._loss(index, state.lost)
        return None

    def _failed_loss(self, index: int) -> Loss:
        failure = self._states[index].failure
        return self._loss(index, f"its training has failed: {failure}", is_failure=True)

    def _loss(self, index: int, why: str, *, is_failure: bool = False) -> Loss:
        line = f"Lost {self.members[index]} while training: {why}. See its output for the cause."
        return Loss(index=index, line=line, is_failure=is_failure)

    def _tell(self, loss: Loss) -> None:
        with self._changed:
            listeners = list(self._listeners)
        for listener in listeners:
            listener(loss)

    def _send_states(self, *, is_urgent: bool) -> None:
        """Sends what has changed, or a beat if that is due.

        The chief sends what others do not wait for no more often than beats.
        """
        now = time.monotonic()
        own = self._settled_state()
        states = {self.own: own}
        if self.own == 0:
            states |= {
                index: self._state_now(index, now) if self._is_silent(index, now) else state
                for index, state in self._states.items()
            }
        groups = group_states(states)
        has_changed = groups != self._sent or self._is_another_call(own, now)
        is_due = now - self._sent_s >= self._beats_s - _BEAT_S / 2
        is_beat = is_due and not has_changed
        if has_changed and (is_due or is_urgent or self.own != 0):
            self._sent, self._sent_since_s = groups, now - own.since_s
            self._behind.update(self._links)
            self._sent_s = now
        elif is_beat:
            self._sent_s = now
        # The chief answers a worker's first words: until then it still reads the rendezvous.
        audible = [
            index
            for index in (self._links if is_beat else self._behind)
            if self.own != 0
            or (self._links[index].has_spoken and self._heard_s[index] > now - _MOST_SILENT_S)
        ]
        line = b""
        if not self._behind.isdisjoint(audible):
            firsts = {indices[0] for _, indices in groups} - {self.own}
            states.update({index: self._state_now(index, now) for index in firsts})
            line = encode_states(states, groups)
        for index in audible:
            is_sent = self._links[index].send(line if index in self._behind else BEAT + b"\n")
            if is_sent and groups == self._sent:  # Else all get these later, unless they pass.
                self._behind.discard(index)
        if self._farewells > self._reported_farewells:
            with self._changed:
                if groups == self._sent and not self._is_one_behind(self._farewells - 1):
                    self._reported_farewells = self._farewells
                self._changed.notify_all()

    @property
    def _beats_s(self) -> float:
        """The interval of the beats."""
        return _BEAT_S * min(max(1, len(self.members) // _WORKERS_PER_BEAT), _MOST_BEATS)

    def _settled_state(self) -> PeerState:
        """Returns this worker's state as it is sent: before the time of a beat it "moves"."""
        own = self._own_state()
        if own.since_s >= self._beats_s:
            return own
        phase = "training" if own.phase == "waiting" else own.phase
        own = replace(own, phase=phase, waits=False, moves=True, since_s=0.0)
        return replace(own, call="", place="", number=0)

    def _is_another_call(self, own: PeerState, now: float) -> bool:
        """Returns whether this worker's state is equal to the one sent, and began later."""
        return not own.moves and abs(now - own.since_s - self._sent_since_s) > _BEAT_S / 2

    def _state_now(self, index: int, now: float) -> PeerState:
        """Returns the state of another worker, with its ages at this time."""
        state = self._states[index].aged(now - self._state_s[index])
        if self.own == 0 or index == 0:  # The chief measures the silence of the others.
            return replace(state, silent_s=now - self._heard_s[index])
        return state

    def _is_silent(self, index: int, now: float) -> bool:
        if self.own == 0 or index == 0:
            return is_silence(now - self._heard_s[index])
        return self._states[index].is_silent

    def _is_one_behind(self, farewells: int) -> bool:
        """Returns whether a worker that takes part has said at most so many farewells."""
        now = time.monotonic()
        return self._farewells <= farewells or any(
            state.farewells <= farewells and not (state.lost or self._is_silent(index, now))
            for index, state in self._states.items()
        )

    def _must_stay(self) -> bool:
        """Returns whether `leave_together` still waits."""
        if self.own != 0 and self._states[0].lost:
            return False  # The chief leaves last of all, and no other worker can be asked.
        # The chief's last words must have been sent.
        is_sent = self._reported_farewells >= self._farewells
        return not is_sent or self._is_one_behind(self._farewells - 1)

    def _own_state(self) -> PeerState:
        phase, since_s = current_phase()
        waits = phase == "waiting"
        calls = self.calls
        if phase == "training" and calls is not None:
            began_s = calls.began_s
            waits = began_s is not None
            since_s = max(since_s, calls.ended_s if began_s is None else began_s)
        passed_s = time.monotonic() - since_s
        made = self.collectives
        is_in_call = waits and bool(made.kind)
        return PeerState(
            phase=phase,
            waits=waits,
            since_s=passed_s,
            farewells=self._farewells,
            failure=self._failure,
            call=made.kind if is_in_call else "",
            place=made.place() if is_in_call and passed_s >= self._beats_s else "",
            number=made.number,
            difference=self.difference,
            stop=self._stop,
        )

    def _report_wait(self, report: WaitReport) -> None:
        own, limit_s = self._own_state(), self.stall_timeout_s
        is_over = limit_s is not None and own.waits and own.since_s >= limit_s
        if not (report.is_due(own) or is_over):
            return
        others = self.states()
        usual_s = self.calls.longest_s if self.calls is not None else 0.0
        line = report.next_line(own, others, self.members, usual_s)
        if line is not None:
            self.on_line(line)
        stalled = None if limit_s is None else stalled_workers(own, others, limit_s)
        if stalled is not None:
            line = describe_wait(others, self.members, own.since_s)
            line += f" That is longer than {STALL_TIMEOUT}={limit_s:g}."
            self._tell(Loss(index=stalled[0] if stalled else self.own, line=line))

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_write.send(b"!")

    def _drop(self, index: int) -> None:
        link = self._links.pop(index)
        self._behind.discard(index)
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

    def send(self, line: bytes) -> bool:
        """Sends a line; returns False, and drops it, if an earlier one is not sent completely."""
        is_free = not self._unsent
        pending = self._unsent or line
        try:
            sent = self.connection.send(pending)
        except BlockingIOError:
            sent = 0
        except OSError:  # The next read says why.
            return True
        self._unsent = pending[sent:] if sent or self._unsent else b""
        return is_free and sent > 0
