"""The collectives that a program has called so far, and the finding that two programs differ.

In TensorFlow 2 each program decides which collectives it calls. Workers number theirs, so two that
make the same calls are at the same number in the same kind of call, or one is a little ahead: its
part of a broadcast may be over first.

    number       7                8                9
    worker 0     step of fit      end of an epoch  step of fit    waits forever
    worker 1     step of fit      end of an epoch  evaluate       waits forever

A worker compares what the others are in with what it was in itself at that number. So one that is
behind is never taken for another program.
"""

import sys
import sysconfig
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import tfdist
from tfdist.cluster.rendezvous.peer_state import PeerState

# The last call of a program: its end, at which it waits for the others.
END = "the end of its program"
# The call in which a worker asks whether the others stop as well; it depends on theirs.
STOP = "a request to stop"

# Two workers have waited in different calls for so long; neither moves.
_SETTLED_S = 3.0
_MOST_KINDS = 64
_FOREIGN = (
    str(Path(tfdist.__file__).parent),
    *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")},
    "<",
)
_GENERATED = "__autograph_generated"


class CollectiveCalls:
    """The collectives that this worker has called, of which the last may be running.

    Attributes:
      number: How many it has called.
      kind: The kind of the one that is running; "" outside of one.
    """

    def __init__(self) -> None:
        self.number = 0
        self.kind = ""
        self._kinds: deque[str] = deque(maxlen=_MOST_KINDS)
        self._place: Callable[[], str] = str
        self._described = (0, "")  # The number, and the text.

    @contextmanager
    def running(self, kind: str, place: Callable[[], str] | None = None) -> Iterator[None]:
        """Notes a call in the `with` block; one inside of another is part of that.

        `place` returns more than the kind, for lines: "step 3 of epoch 2 of fit".
        """
        if self.kind:
            yield
            return
        self._place = place or (lambda: kind)
        self.number += 1
        self._kinds.append(kind)
        self.kind = kind
        try:
            yield
        finally:
            self.kind = ""

    def take_back(self) -> None:
        """Forgets the last call, which is over and was no collective."""
        self.number -= 1
        self._described = (0, "")
        self._kinds.pop()

    def place(self) -> str:
        """Returns where the program is, for a line; called from any thread while it waits."""
        if self._described[0] != self.number:
            line = "" if self.kind == END else _line_of_user()
            self._described = (self.number, f"{self._place()}{line and f' ({line})'}")
        return self._described[1]

    def kind_at(self, number: int) -> str:
        """Returns the kind of an earlier call, or of this one; "" if it is not known any more."""
        place = number - self.number - 1
        return self._kinds[place] if -len(self._kinds) <= place < 0 else ""


def find_other_program(
    own: PeerState, others: Mapping[int, PeerState], kind_at: Callable[[int], str]
) -> int | None:
    """Returns a worker that waits in a call that this one did not make; None if there is none.

    `others` are the states of the other workers, by index; `kind_at` is that of `CollectiveCalls`.
    """
    if not _is_settled(own):
        return None
    for index, other in others.items():
        if other.lost or other.is_silent or not _is_settled(other) or other.call == own.call:
            continue
        # One that is ahead of this worker compares them itself.
        if other.number <= own.number and kind_at(other.number) != other.call:
            return index
    return None


def describe_difference(states: Mapping[int, PeerState]) -> str:
    """Returns the line about two workers with different programs, given their states by index."""
    places = ", ".join(f"worker {index} {_place_of(states[index])}" for index in sorted(states))
    return (
        f"{places}, and neither comes any further: every worker must make the same calls, with the "
        "same epochs and steps, and datasets of equal lengths."
    )


def _is_settled(state: PeerState) -> bool:
    has_call = state.call not in ("", STOP)
    return has_call and state.waits and state.since_s >= _SETTLED_S


def _place_of(state: PeerState) -> str:
    return "has ended its program" if state.call == END else f"is in {state.place or state.call}"


def _line_of_user() -> str:
    """Returns the line of the user's program that the main thread is in; "" if there is none."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(_FOREIGN) and _GENERATED not in path:
            return f"{Path(path).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
