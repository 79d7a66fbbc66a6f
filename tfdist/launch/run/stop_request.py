"""StopRequest: the request of a user to stop a run, and the time that it leaves."""

from __future__ import annotations

from dataclasses import dataclass

# A parent process often forwards a signal that the whole process group has received already. A
# second signal within this time counts as the same one.
_SAME_SIGNAL_S = 0.3
_NEVER_S = float("inf")


@dataclass(kw_only=True)
class StopRequest:
    """The user's request to stop a run. All times are on the launcher's clock.

    Attributes:
      number: The signal, or the one by which a process without a handler would have ended; None
        without a request to stop.
      why: The cause of the request in parentheses, if that is known.
      saves: Whether the user has asked to save and stop, which has no time limit.
    """

    number: int | None = None
    why: str = ""
    saves: bool = False
    kill_at_s: float = _NEVER_S
    _at_s: float = 0.0
    _has_signal: bool = False

    @property
    def is_made(self) -> bool:
        return self.number is not None or self.saves

    @property
    def exit_code(self) -> int:
        """The launcher's exit code after the signal, as a shell reports it."""
        assert self.number is not None
        return 128 + self.number

    def ask(
        self, number: int, now_s: float, grace_s: float, why: str = "", *, is_signal: bool = True
    ) -> bool:
        """Notes a signal, and returns whether it changes something: not if it was forwarded before.

        The first signal begins the grace period, a second one ends it. A request that is none (not
        `is_signal`) begins the grace period, but does not count as the first of two signals.
        """
        if self.number is None:
            self.number, self.why, self._at_s = number, why, now_s
            self.kill_at_s = min(self.kill_at_s, now_s + grace_s)
            self._has_signal = is_signal
            return True
        if now_s - self._at_s < _SAME_SIGNAL_S:
            return False
        if not self._has_signal:
            self._has_signal = True
            return False
        self.kill_at_s = min(self.kill_at_s, now_s)
        return True

    def lasts_s(self, now_s: float) -> float:
        return now_s - self._at_s

    def begin_grace(self, now_s: float, grace_s: float) -> float:
        """Begins the grace period after a failure, unless one runs; returns the seconds left."""
        if self.kill_at_s == _NEVER_S:
            self.kill_at_s = now_s + grace_s
        return max(0.0, self.kill_at_s - now_s)

    def end_grace(self) -> None:
        """Ends the grace period of a failure; a signal's grace period goes on."""
        if self.number is None:
            self.kill_at_s = _NEVER_S
