"""The launcher's stdout and stderr: scrolling lines, with one status line below them.

A thread does the writing. A reader that pauses (a pager, Ctrl-S) therefore blocks neither the
launcher nor the workers. That, a resize that wraps the status line, and two streams in one order
are why rich draws here, but does not write: `rich.live` would wait for the reader.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from typing import Literal, TextIO

from rich.console import Console, OverflowMethod, RenderableType
from rich.text import Text

from tfdist.launch.options.values import ColorMode

Stream = Literal["out", "err"]
ClosedBy = Literal["reader", "terminal", "disk"]

_MOST_WAITING = 4 << 20  # characters
_WIDTH_IF_UNKNOWN = 80


class TerminalClosedError(Exception):
    """Nothing more can be written to stdout or stderr.

    Attributes:
      cause: "reader": the process that reads it is gone, as after `| head`. "terminal": the
        terminal was closed. "disk": it is a file that cannot grow, or its disk is broken.
    """

    def __init__(self, stream: Stream, cause: ClosedBy, reason: str) -> None:
        super().__init__(f"std{stream} {reason}")
        self.stream = stream
        self.cause: ClosedBy = cause


class Terminal:
    """The output of the launcher. `close` must be called before the process ends.

    Args:
      environ: The environment with TERM and the variables about colours. With TERM=dumb no line
        can be redrawn in place.

    Attributes:
      is_live: True if a status line can be shown.
    """

    def __init__(
        self,
        stdout: TextIO | None,
        stderr: TextIO | None,
        *,
        color: ColorMode = "auto",
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._streams: dict[Stream, TextIO | None] = {"out": stdout, "err": stderr}
        self._consoles = {
            name: _console(stream, color, environ) for name, stream in self._streams.items()
        }
        self.is_live = stderr is not None and stderr.isatty() and environ.get("TERM") != "dumb"
        self._writers = {name: _writer(stream) for name, stream in self._streams.items()}
        self._changed = threading.Condition()
        self._waiting: list[tuple[Stream, str]] = []
        self._num_waiting = 0
        self._num_dropped = 0
        self._status = Text()
        self._status_changed = False
        self._drawn_width = 0
        self._closed: list[TerminalClosedError] = []  # not reported yet
        self._terminals = [name for name in self._streams if self.is_terminal(name)]
        self._last_taken_s = time.monotonic()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="tfdist-terminal", daemon=True)
        self._thread.start()

    def is_terminal(self, name: Stream) -> bool:
        stream = self._streams[name]
        return stream is not None and stream.isatty()

    def num_colors(self, stream: Stream) -> int:
        """Returns the number of colours that may be used: 0, 16 or 256."""
        system = self._consoles[stream].color_system
        return 0 if system is None else 16 if system == "standard" else 256

    @property
    def width(self) -> int:
        """The present number of columns, which follows a resize; 80 if it is unknown."""
        for stream in (self._streams["err"], self._streams["out"]):
            with contextlib.suppress(AttributeError, OSError, ValueError):
                # Some terminals in containers report 0 columns.
                return os.get_terminal_size(stream.fileno()).columns or _WIDTH_IF_UNKNOWN  # type: ignore[union-attr]
        return _WIDTH_IF_UNKNOWN

    @property
    def has_unicode(self) -> bool:
        """True if the encoding of stderr has the characters that draw boxes and bars."""
        return not self._consoles["err"].options.ascii_only

    def drawn(self, what: RenderableType, stream: Stream = "err", *, end: str = "\n") -> str:
        """Returns what rich draws, in the colours of the stream, and not wider than the terminal.

        A `Text` stays one line, however long it is.
        """
        console, is_line = self._consoles[stream], isinstance(what, Text)
        overflow: OverflowMethod = "ignore" if is_line else "fold"
        with console.capture() as capture:
            console.print(
                what, width=self.width, end=end, no_wrap=is_line, overflow=overflow, crop=False
            )
        return capture.get()

    def write(self, stream: Stream, lines: str, *, is_droppable: bool = False) -> None:
        """Queues whole lines for writing and returns at once.

        If more than `_MOST_WAITING` characters are queued, lines that are droppable are dropped. A
        later line gives their number. A stream that has lost its reader raises TerminalClosedError
        once; its later lines are discarded.
        """
        with self._changed:
            if is_droppable and self._num_waiting > _MOST_WAITING:
                self._num_dropped += lines.count("\n")
            else:
                self._add_dropped()
                self._waiting.append((stream, lines))
                self._num_waiting += len(lines)
            self._changed.notify()
            self._raise_if_closed()

    def print(self, what: RenderableType) -> None:
        """Draws lines on stderr with rich and queues them, as `write` does."""
        self.write("err", self.drawn(what))

    def show_status(self, text: Text) -> None:
        """Draws the status line below all others, in place of the previous one.

        An empty text removes it. Has no effect unless `is_live`. A text that is too wide is cut.
        Raises errors as `write` does.
        """
        with self._changed:
            if text != self._status:
                self._status = text
                self._status_changed = True
                self._changed.notify()
            self._raise_if_closed()

    def close(self, limit_s: float = 60.0) -> list[TerminalClosedError]:
        """Removes the status line, and returns when all queued lines are written.

        If the reader takes nothing for `limit_s` seconds, the rest is discarded. Returns the errors
        that no call has raised.
        """
        with self._changed:
            self._add_dropped()
            self._status, self._status_changed = Text(), True
            self._is_closing = True
            self._last_taken_s = time.monotonic()
            self._changed.notify()
        while self._thread.is_alive() and time.monotonic() - self._last_taken_s < limit_s:
            self._thread.join(min(0.1, limit_s))
        return self._closed

    def _add_dropped(self) -> None:
        if self._num_dropped:
            text = f"tfdist: {self._num_dropped} lines are in the logs only: too many to show\n"
            self._waiting.append(("err", text))
            self._num_dropped = 0

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise self._closed.pop()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._waiting or self._status_changed or self._is_closing
                )
                lines, self._waiting = self._waiting, []
                self._num_waiting = 0
                status = self._status
                if self._is_closing and not lines and not self._status_changed:
                    return
                self._status_changed = False
            self._draw(lines, status)

    def _draw(self, lines: list[tuple[Stream, str]], status: Text) -> None:
        text = erased = ""
        if self.is_live:
            width = self.width
            line = status.copy()
            line.truncate(max(0, width - 1))  # in the last column the cursor would wrap
            text = self.drawn(line, end="")
            erased = _erase(self._drawn_width, width)
            self._drawn_width = line.cell_len
        parts: list[tuple[Stream, str]] = [("err", erased), *lines, ("err", text)]
        joined: list[tuple[Stream, list[str]]] = []
        for stream, part in parts:
            if part and joined and joined[-1][0] == stream:
                joined[-1][1].append(part)
            elif part:
                joined.append((stream, [part]))
        for stream, texts in joined:
            self._put(stream, "".join(texts))

    def _put(self, name: Stream, text: str) -> None:
        write = self._writers[name]
        if write is None:
            return
        rest = memoryview(text.encode(_encoding(self._streams[name]), "replace"))
        try:
            while rest:
                rest = rest[write(rest) :]
                self._last_taken_s = time.monotonic()
        except (OSError, ValueError) as error:
            self._writers[name] = None
            with self._changed:
                self._closed.append(self._closed_by(name, error))

    def _closed_by(self, name: Stream, error: OSError | ValueError) -> TerminalClosedError:
        if not isinstance(error, OSError) or error.errno == errno.EPIPE:
            # ValueError: this process itself has closed it
            return TerminalClosedError(name, "reader", "was closed by the process that read it")
        # A terminal that is gone is no longer seen to be one.
        if error.errno == errno.EIO and name in self._terminals:
            return TerminalClosedError(name, "terminal", "is a terminal that was closed")
        return TerminalClosedError(name, "disk", f"cannot be written: {error.strerror}")


def _erase(drawn_width: int, width: int) -> str:
    """Returns the sequence that erases a line of `drawn_width` on a terminal of `width` columns."""
    if not drawn_width:
        return ""
    # A terminal that was made narrower has wrapped the line into several.
    above = -(-drawn_width // max(1, width)) - 1
    return "\r" + (f"\x1b[{above}A" if above else "") + "\x1b[J"


def _console(stream: TextIO | None, color: ColorMode, environ: Mapping[str, str]) -> Console:
    """Returns what draws for a stream: with its encoding, and in colours if it may have them.

    "auto" leaves the choice to rich, which looks at the stream, TERM, NO_COLOR and FORCE_COLOR.
    """
    file = io.StringIO() if stream is None else stream
    found = Console(file=file, force_terminal=color == "always" or None, _environ=environ)
    system = None if color == "never" else found.color_system
    if color == "always":
        system = system or "standard"
    elif found.no_color:
        system = None
    has_colors = system is not None
    # Not `found`: without colours it would still write bold text, and drawing would flush a stream
    # whose disk may be full.
    return Console(
        file=_Drawn(_encoding(stream)),
        force_terminal=has_colors,
        color_system=system,  # type: ignore[arg-type]
        no_color=not has_colors,
        highlight=False,
        markup=False,
        emoji=False,
    )


class _Drawn(io.StringIO):
    """The file of a console that only draws: `encoding` decides on the characters of boxes."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding


def _encoding(stream: TextIO | None) -> str:
    return getattr(stream, "encoding", None) or "utf-8"


def _writer(stream: TextIO | None) -> Callable[[memoryview], int] | None:
    """Returns a function that writes bytes and returns their number; None without a stream."""
    if stream is None:
        return None
    stream.flush()
    try:
        file = stream.fileno()
    except OSError:  # a stream without a file, as in tests
        return lambda data: stream.write(str(data, _encoding(stream))) and len(data)

    def write(data: memoryview) -> int:
        while True:
            try:
                # Not through the stream: at the end of the process, flushing it would wait for a
                # lock that this thread holds while the reader takes nothing.
                return os.write(file, data)
            except BlockingIOError:  # set by a process that shares the terminal
                waiter = select.poll()
                waiter.register(file, select.POLLOUT)
                waiter.poll()

    return write
