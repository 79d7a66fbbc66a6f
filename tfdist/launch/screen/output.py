"""The workers' output on the screen: tagged, coloured, and without control sequences."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from tfdist.launch.failures.failure import numbers_text
from tfdist.launch.failures.startup_lines import is_startup_line
from tfdist.launch.screen.ansi import last_state, strip_escapes
from tfdist.launch.screen.equal_lines import EqualLines, Line
from tfdist.launch.screen.held_errors import HeldErrors
from tfdist.launch.screen.terminal import Stream, Terminal

_STREAMS: tuple[Stream, ...] = ("out", "err")
_LONGEST_LINE = 1_000
_MOST_PENDING = 65_536  # characters kept of an unfinished line
_BAR_INTERVAL_S = 10.0

# Numbers of the 256-colour palette: easy to tell apart, and readable on black and on white.
_MANY = (33, 208, 35, 170, 37, 167, 99, 106, 204, 67, 178, 137)
# For terminals with 16 colours. Without red, which is used for errors.
_FEW = (6, 3, 2, 5, 4, 14, 13, 12, 11, 10)


def worker_style(position: int, num_colors: int) -> str:
    """Returns the style of a worker's tag. More workers than colours repeat them."""
    palette = _MANY if num_colors > 16 else _FEW
    return f"color({palette[position % len(palette)]})"


class Screen:
    """Shows the output of the workers.

    Args:
      tags: The tag of each worker's lines by index, without brackets: "0", "evaluator".
      shown: The indices of the workers that are shown; None shows all.
      joined: The indices of the workers with equal lines shown once; see `EqualLines`.
      hides_startup_lines: If True, TensorFlow's start-up lines are counted and not shown.
      holds_errors: Whether tracebacks wait for the end of their worker; see `HeldErrors`.
    """

    def __init__(
        self,
        terminal: Terminal,
        tags: Mapping[int, str],
        *,
        shown: Collection[int] | None = None,
        is_tagged: bool = True,
        joined: Collection[int] = (),
        hides_startup_lines: bool = False,
        holds_errors: bool = False,
    ) -> None:
        self.num_startup_lines = 0
        self._terminal = terminal
        self._shown = shown
        self._is_tagged = is_tagged
        self._hides_startup_lines = hides_startup_lines
        self._errors = HeldErrors() if holds_errors else None
        self._equal_lines = EqualLines(joined if shown is None else {*joined} & {*shown})
        self._width = max((len(tag) for tag in tags.values()), default=0) + 2
        self._tags: dict[tuple[int, Stream], str] = {}
        for position, (worker, name) in enumerate(tags.items()):
            text = f"[{name}]".rjust(self._width)
            for stream in _STREAMS:
                style = worker_style(position, terminal.num_colors(stream))
                tag = terminal.drawn(Text(text, style), stream, end=" ")
                self._tags[worker, stream] = tag if is_tagged else ""
        self._pending: dict[tuple[int, Stream], PendingLine] = {}

    def write(self, worker: int, stream: str, text: str, now_s: float) -> None:
        """Shows a piece of a worker's output, of any length; errors are as in `Terminal.write`.

        The time may be on any clock. A line is shown once its end has arrived.
        """
        if self._shown is not None and worker not in self._shown:
            return
        key: tuple[int, Stream] = (worker, "err" if stream == "err" else "out")
        pending = self._pending.get(key, PendingLine(shown_s=now_s))
        lines, self._pending[key] = split_lines(pending, text, now_s)
        self._show(*key, lines, now_s)

    def update(self, now_s: float) -> None:
        """Shows the lines that have waited too long for the other workers to print them as well.

        The time is on the clock of `write`; infinity shows all that wait, except for the tracebacks
        of workers that may end. Raises errors as it does.
        """
        if self._errors is not None and now_s < math.inf:
            for worker, lines in self._errors.overdue(now_s).items():
                self._add(worker, "err", lines, now_s)
        self._write(self._equal_lines.overdue(now_s))

    def flush(self, worker: int) -> None:
        """Shows the unfinished lines of a worker that has ended, and waits for it no longer."""
        for key in [key for key in self._pending if key[0] == worker]:
            pending = self._pending.pop(key)
            if pending.text:
                lines, _ = split_lines(pending, "\n", pending.shown_s)
                self._show(*key, lines, pending.shown_s)
        if self._errors is not None:
            self._add(worker, "err", self._errors.take(worker), 0.0)
        self._write(self._equal_lines.leave(worker))

    def end_with(self, error: str) -> None:
        """Notes that the run fails, with this error in its box; "" if the box has none."""
        if self._errors is not None:
            self._errors.end(error)

    def _show(self, worker: int, stream: Stream, lines: list[str], now_s: float) -> None:
        shown: list[str] = []
        for line in lines:
            if self._hides_startup_lines and is_startup_line(line):
                self.num_startup_lines += 1
            elif self._errors is not None and stream == "err":
                shown += self._errors.add(worker, line, now_s)
            else:
                shown.append(line)
        self._add(worker, stream, shown, now_s)

    def _add(self, worker: int, stream: Stream, lines: Sequence[str], now_s: float) -> None:
        to_show: list[Line] = []
        for line in lines:
            text = shown_line(line, keep_colors=self._terminal.num_colors(stream) > 0)
            if text is not None:
                one = Line(workers={worker}, stream=stream, text=text, since_s=now_s)
                to_show += self._equal_lines.add(one)
        self._write(to_show)

    def _write(self, lines: Sequence[Line]) -> None:
        for stream, group in itertools.groupby(lines, key=lambda line: line.stream):
            text = "".join(f"{self._tag(line)}{line.text}".rstrip(" ") + "\n" for line in group)
            self._terminal.write(stream, text, is_droppable=True)

    def _tag(self, line: Line) -> str:
        if len(line.workers) == 1 or not self._is_tagged:
            return self._tags[min(line.workers), line.stream]
        return f"[{numbers_text(line.workers)}]".rjust(self._width) + " "


@dataclass(frozen=True, kw_only=True)
class PendingLine:
    """An unfinished line, and the time at which it, or its last state, was last shown."""

    text: str = ""
    shown_s: float = 0.0


def split_lines(pending: PendingLine, text: str, now_s: float) -> tuple[list[str], PendingLine]:
    """Returns the lines that are complete now, and the unfinished rest.

    A progress bar is one line that is printed repeatedly after carriage returns. It becomes a line
    with its last state every 10 seconds, and another one at its end.
    """
    *whole, rest = (pending.text + text).split("\n")
    lines = [last_state(line) for line in whole]
    if whole:
        pending = PendingLine(shown_s=now_s)
    if "\r" in rest:
        # A carriage return at the end may belong to a newline that follows.
        rest = "\r" + last_state(rest) + ("\r" if rest.endswith("\r") else "")
        if now_s - pending.shown_s >= _BAR_INTERVAL_S:
            pending = PendingLine(shown_s=now_s)
            lines.append(last_state(rest))
    return lines, PendingLine(text=rest[:_MOST_PENDING], shown_s=pending.shown_s)


def shown_line(line: str, *, keep_colors: bool) -> str | None:
    """Returns a line as it is shown, or None if it contains only control sequences.

    A line of more than 1,000 visible characters is cut.
    """
    shown = strip_escapes(line, keep_colors=keep_colors)
    if line.strip() and not shown.strip():
        return None
    if len(shown) <= _LONGEST_LINE:
        return shown
    plain = strip_escapes(line)
    if len(plain) <= _LONGEST_LINE:
        return shown
    return f"{plain[:_LONGEST_LINE]} … (cut here; the log has all)"
