"""The workers' output on the screen: tagged, coloured, and without control sequences."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tfdist.launch.failures import worker_tag
from tfdist.launch.options.option_parser import ColorMode
from tfdist.launch.plan import Plan
from tfdist.launch.screen.ansi import is_colored, last_state, paint, strip_escapes, worker_colors
from tfdist.launch.screen.terminal import Stream, Terminal

_LONGEST_LINE = 1_000
_MOST_PENDING = 65_536  # characters kept of an unfinished line
_BAR_INTERVAL_S = 10.0


def worker_tags(plan: Plan) -> dict[int, str]:
    """Returns the tag of each worker's lines by index, without brackets: "0", "evaluator"."""
    return {worker.index: worker_tag(worker.name) for worker in plan.workers}


class Screen:
    """Shows the output of the workers.

    Args:
      terminal: The terminal for the output.
      tags: The tag of each worker's lines by index, without brackets.
      shown: The indices of the workers that are shown; None shows all.
      is_tagged: If True, each line begins with its worker's tag in brackets.
      color: "auto", "always" or "never", for the tags' colours and the workers' own ones.
      environ: The environment with the variables about colours.
    """

    def __init__(
        self,
        terminal: Terminal,
        tags: Mapping[int, str],
        *,
        shown: Collection[int] | None = None,
        is_tagged: bool = True,
        color: ColorMode = "auto",
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._terminal = terminal
        self._shown = shown
        streams: tuple[Stream, Stream] = ("out", "err")
        self._is_colored = {
            stream: is_colored(color, is_terminal=terminal.is_terminal(stream), environ=environ)
            for stream in streams
        }
        width = max((len(tag) for tag in tags.values()), default=0) + 2
        colors = worker_colors(environ)
        self._tags: dict[tuple[int, Stream], str] = {}
        for position, (worker, tag) in enumerate(tags.items()):
            for stream in streams:
                text = f"[{tag}]".rjust(width)
                painted = colors[position % len(colors)] if self._is_colored[stream] else None
                self._tags[worker, stream] = f"{paint(text, painted)} " if is_tagged else ""
        self._pending: dict[tuple[int, Stream], PendingLine] = {}

    def write(self, worker: int, stream: str, text: str, now_s: float) -> None:
        """Shows a piece of a worker's output, of any length.

        Args:
          worker: The worker's index.
          stream: The stream to which it was printed: "out" or "err".
          text: The piece of output. A line is shown once its end has arrived.
          now_s: The time in seconds, on any clock.

        Raises:
          TerminalClosedError: If the reader of the output is gone. See `Terminal.write`.
        """
        if self._shown is not None and worker not in self._shown:
            return
        key: tuple[int, Stream] = (worker, "err" if stream == "err" else "out")
        pending = self._pending.get(key, PendingLine(shown_s=now_s))
        lines, self._pending[key] = split_lines(pending, text, now_s)
        self._show(*key, lines)

    def flush(self, worker: int) -> None:
        """Shows the unfinished lines of a worker that has ended.

        Raises:
          TerminalClosedError: If the reader of the output is gone.
        """
        for key in [key for key in self._pending if key[0] == worker]:
            pending = self._pending.pop(key)
            if pending.text:
                lines, _ = split_lines(pending, "\n", pending.shown_s)
                self._show(*key, lines)

    def say(self, text: str) -> None:
        """Shows a line from the launcher itself, on stderr.

        Raises:
          TerminalClosedError: If the reader of stderr is gone.
        """
        self._terminal.write("err", f"{text}\n")

    def _show(self, worker: int, stream: Stream, lines: list[str]) -> None:
        tag = self._tags[worker, stream]
        shown = [shown_line(line, keep_colors=self._is_colored[stream]) for line in lines]
        text = "".join(f"{tag}{line}".rstrip(" ") + "\n" for line in shown if line is not None)
        if text:
            self._terminal.write(stream, text, is_droppable=True)


@dataclass(frozen=True, kw_only=True)
class PendingLine:
    """An unfinished line.

    Attributes:
      text: The part of the line that has arrived.
      shown_s: The time at which this line, or its last state, was last shown.
    """

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
