"""The state of a worker as the others see it, and the lines about a worker that they wait for."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tfdist.cluster.rendezvous.protocol import Member, name_missing

# A worker sends its state once a second. Without one for so long it counts as silent.
SILENT_AFTER_S = 15.0
# The first report about a wait, and the interval of the next ones.
REPORT_EVERY_S = 30.0
# A session call is reported if it takes so many times the longest one before.
_MUCH_LONGER = 10
_MOST_CHARACTERS = 300

_IN_WORDS = {
    "saving": "is saving a checkpoint",
    "evaluating": "is evaluating",
    "starting": "is not in the steps of a training (it builds its graph, or is in your program)",
    "stopping": "is saving before it stops",
    "leaving": "is ending",
}
# Work without a limit of time.
_WORK = frozenset(_IN_WORDS)


@dataclass(frozen=True, kw_only=True)
class PeerState:
    """The state of one worker.

    Attributes:
      phase: One of `process.progress_file.PHASES`.
      waits: Whether it is in a session call of the training, or waits for other workers.
      moves: Whether it changes from one call to the next within a second, of many workers within
        4 s; `waits` is False then.
      since_s: Seconds since `phase` or `waits` changed; 0 if it `moves`.
      farewells: How often it has said that it needs no other worker any more.
      failure: The error that has ended its training; "" without one.
      silent_s: Seconds without a message from it.
      lost: Why it does not take part any more; "" while it does.
      call: The kind of the collective that it is in; "" outside of one, or if it is not known.
      place: Where it is in its program, while it waits in `call`.
      number: The number of the last `call` that it has made; 0 if it `moves`.
      difference: The line about two workers with different programs, once it knows of such.
      stop: The number of the stop signal that it asks all to follow; 0 without one.
    """

    phase: str = "starting"
    waits: bool = False
    moves: bool = False
    since_s: float = 0.0
    farewells: int = 0
    failure: str = ""
    silent_s: float = 0.0
    lost: str = ""
    call: str = ""
    place: str = ""
    number: int = 0
    difference: str = ""
    stop: int = 0

    @property
    def is_silent(self) -> bool:
        return is_silence(self.silent_s)

    @property
    def keeps_others_waiting(self) -> bool:
        return self.is_silent or not self.waits

    @property
    def is_stalled(self) -> bool:
        """Returns whether others wait for it without work of its own that takes time."""
        return self.is_silent or (not self.waits and self.phase not in _WORK)

    def aged(self, passed_s: float) -> "PeerState":
        """Returns the state so many seconds later, if nothing else is known by then."""
        if self.moves and not self.is_silent:
            return self
        silent_s = self.silent_s + passed_s if self.is_silent else self.silent_s
        since_s = self.since_s if self.moves else self.since_s + passed_s
        return replace(self, since_s=since_s, silent_s=silent_s)

    def __str__(self) -> str:
        if self.is_silent:
            return (
                f"has not answered for {self.silent_s:.0f} s: its process is stopped (SIGSTOP, a "
                "debugger), or its host hangs"
            )
        if self.waits:
            return f"has been in {self.place or 'a session call'} for {self.since_s:.0f} s"
        if self.moves:
            return "is in steps or other calls of its own"
        words = _IN_WORDS.get(self.phase, "is in Python code outside of a session call (a hook?)")
        return f"{words}, for {self.since_s:.0f} s now"


def is_silence(silent_s: float) -> bool:
    """Returns whether a worker without a message for so long counts as silent."""
    return silent_s >= SILENT_AFTER_S


class CallClock:
    """The times of a training's session calls.

    Attributes:
      began_s: `time.monotonic()` at the beginning of the call that runs; None between calls.
      ended_s: `time.monotonic()` at the end of the last call.
      longest_s: The longest call so far.
    """

    def __init__(self) -> None:
        self.began_s: float | None = None
        self.ended_s = 0.0
        self.longest_s = 0.0

    def begin(self) -> None:
        self.began_s = time.monotonic()

    def end(self) -> None:
        if self.began_s is not None:
            self.ended_s = time.monotonic()
            self.longest_s = max(self.longest_s, self.ended_s - self.began_s)
            self.began_s = None

    def lasting_s(self, since_s: float) -> float | None:
        """Returns the seconds since the present call began, at most those since a time.

        None between calls.
        """
        began_s = self.began_s
        return None if began_s is None else time.monotonic() - max(began_s, since_s)


def one_line(text: str) -> str:
    """Returns the first line of a text from another process, shortened, without control codes."""
    line = next(iter(text.splitlines()), "")[:_MOST_CHARACTERS]
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def waits_for(states: Mapping[int, PeerState]) -> list[int]:
    """Returns the workers for which the others wait; if all of them wait, none."""
    present = {index: state for index, state in states.items() if not state.lost}
    silent = [index for index, state in present.items() if state.is_silent]
    return silent or [index for index, state in present.items() if state.keeps_others_waiting]


def describe_wait(
    states: Mapping[int, PeerState], members: Sequence[Member], waited_s: float
) -> str:
    """Returns the line about a wait of this worker: the late workers, and their activity.

    `states` are the other workers', by index; this worker has waited `waited_s` seconds.
    """
    late = waits_for(states)
    if not late:
        return (
            f"No worker has finished this session call for {waited_s:.0f} s: one of them waits for "
            "its input, or a device hangs."
        )
    named = name_missing([members[index] for index in late])
    own = f"it {states[late[0]]}" if len(late) == 1 else f"the first {states[late[0]]}"
    return f"Waiting for {named}, {waited_s:.0f} s: {own}."


class WaitReport:
    """Decides when a wait of this worker is reported."""

    def __init__(self) -> None:
        self._reported_s = 0.0

    def is_due(self, own: PeerState) -> bool:
        """Returns whether this worker has waited long enough for a line."""
        if not own.waits or own.since_s < self._reported_s:  # It waits no longer, or again.
            self._reported_s = 0.0
        return own.waits and own.since_s >= self._reported_s + REPORT_EVERY_S

    def next_line(
        self,
        own: PeerState,
        others: Mapping[int, PeerState],
        members: Sequence[Member],
        usual_s: float,
    ) -> str | None:
        """Returns the line to print now; None if nothing is due.

        `others` are the states of the other workers, by index; `usual_s` is the longest session
        call so far in seconds, 0 before the first one.
        """
        if not self.is_due(own):
            return None
        # All are in a session call, which may take its time; the first one more than the others.
        is_usual = usual_s == 0 or own.since_s < _MUCH_LONGER * usual_s
        if is_usual and own.phase == "training" and not waits_for(others):
            return None
        self._reported_s = own.since_s
        return describe_wait(others, members, own.since_s)


def stalled_workers(
    own: PeerState, others: Mapping[int, PeerState], limit_s: float
) -> list[int] | None:
    """Returns the workers because of which this one must end now; None if it goes on.

    An empty list: all workers have been in one session call for too long.
    """
    if not own.waits or own.since_s < limit_s:
        return None
    late = waits_for(others)
    return late if all(others[index].is_stalled for index in late) else None
