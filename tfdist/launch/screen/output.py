"""What the workers print, as it is shown on the screen: tagged, coloured, and harmless."""

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
_MOST_PENDING = 65_536  # characters of a line without an end
_BAR_INTERVAL_S = 10.0


def worker_tags(plan: Plan) -> dict[int, str]:
    """Returns what stands before each worker's lines, without brackets: "0", "evaluator"."""
    return {worker.index: worker_tag(worker.name) for worker in plan.workers}


class Screen:
    """Shows what the workers print.

    Args:
      terminal: Where it is written.
      tags: What stands in brackets before a worker's lines, by its index.
      shown: The workers that are shown; None shows all.
      is_tagged: Whether lines are tagged.
      color: When tags, and the workers' own colours, are shown.
      environ: Where variables about colours are looked up.
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
        """Shows what a worker has printed: any piece of text, at any time.

        Args:
          worker: Its index.
          stream: Where it has printed: "out" or "err".
          text: What. A line is shown once its end has come.
          now_s: Any clock's time.

        Raises:
          TerminalClosedError: If nobody reads any more. See `Terminal.write`.
        """
        if self._shown is not None and worker not in self._shown:
            return
        key: tuple[int, Stream] = (worker, "err" if stream == "err" else "out")
        pending = self._pending.get(key, PendingLine(shown_s=now_s))
        lines, self._pending[key] = split_lines(pending, text, now_s)
        self._show(*key, lines)

    def flush(self, worker: int) -> None:
        """Shows the lines of a worker that will get no end: it has ended.

        Raises:
          TerminalClosedError: If nobody reads any more.
        """
        for key in [key for key in self._pending if key[0] == worker]:
            pending = self._pending.pop(key)
            if pending.text:
                lines, _ = split_lines(pending, "\n", pending.shown_s)
                self._show(*key, lines)

    def say(self, text: str) -> None:
        """Shows what the launcher itself has to say, on stderr.

        Raises:
          TerminalClosedError: If nobody reads any more.
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
    """A line whose end has not come.

    Attributes:
      text: What there is of it.
      shown_s: When this line, or its last state, was last shown.
    """

    text: str = ""
    shown_s: float = 0.0


def split_lines(pending: PendingLine, text: str, now_s: float) -> tuple[list[str], PendingLine]:
    """Returns the lines that are whole now, and the rest.

    A progress bar, which is one line that is printed again and again after a carriage return,
    becomes a line with its last state every 10 seconds, and one at its end.
    """
    *whole, rest = (pending.text + text).split("\n")
    lines = [last_state(line) for line in whole]
    if whole:
        pending = PendingLine(shown_s=now_s)
    if "\r" in rest:
        # A carriage return as the last thing belongs to the newline that may follow.
        rest = "\r" + last_state(rest) + ("\r" if rest.endswith("\r") else "")
        if now_s - pending.shown_s >= _BAR_INTERVAL_S:
            pending = PendingLine(shown_s=now_s)
            lines.append(last_state(rest))
    return lines, PendingLine(text=rest[:_MOST_PENDING], shown_s=pending.shown_s)


def shown_line(line: str, *, keep_colors: bool) -> str | None:
    """Returns a line as it is shown, or None if it only moved the cursor."""
    shown = strip_escapes(line, keep_colors=keep_colors)
    if line.strip() and not shown.strip():
        return None
    if len(shown) <= _LONGEST_LINE:
        return shown
    plain = strip_escapes(line)
    if len(plain) <= _LONGEST_LINE:
        return shown
    return f"{plain[:_LONGEST_LINE]} … (cut here; the log has all)"
