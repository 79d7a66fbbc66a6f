"""The launcher's stdout and stderr: scrolling lines, with one status line below them.

A thread does the writing. A reader that pauses (a pager, Ctrl-S) therefore blocks neither the
launcher nor the workers.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from typing import Literal, TextIO

from tfdist.launch.screen.ansi import strip_escapes

Stream = Literal["out", "err"]

_MOST_WAITING = 4 << 20  # characters
_WIDTH_IF_UNKNOWN = 80


class TerminalClosedError(Exception):
    """The reader of stdout or stderr is gone, as after `| head`.

    Attributes:
      stream: "out" or "err".
    """

    def __init__(self, stream: Stream) -> None:
        super().__init__(f"std{stream} was closed by the process that reads it")
        self.stream = stream


class Terminal:
    """The output of the launcher. `close` must be called before the process ends.

    Args:
      stdout: The stream for the workers' stdout; None if there is none.
      stderr: The stream for the workers' stderr and the launcher's own lines; None if there is
        none.
      environ: The environment. With TERM=dumb no line can be redrawn in place.

    Attributes:
      is_live: True if a status line can be shown.
    """

    def __init__(
        self,
        stdout: TextIO | None,
        stderr: TextIO | None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._streams: dict[Stream, TextIO | None] = {"out": stdout, "err": stderr}
        self.is_live = self.is_terminal("err") and environ.get("TERM") != "dumb"
        self._writers = {name: _writer(stream) for name, stream in self._streams.items()}
        self._changed = threading.Condition()
        self._waiting: list[tuple[Stream, str]] = []
        self._num_waiting = 0
        self._num_dropped = 0
        self._status = ""
        self._status_changed = False
        self._drawn_width = 0
        self._closed: list[Stream] = []  # closed streams that are not reported yet
        self._last_taken_s = time.monotonic()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="tfdist-terminal", daemon=True)
        self._thread.start()

    def is_terminal(self, name: Stream) -> bool:
        """Returns whether this stream is a terminal."""
        stream = self._streams[name]
        return stream is not None and stream.isatty()

    @property
    def width(self) -> int:
        """The present number of columns, which follows a resize; 80 if it is unknown."""
        for stream in (self._streams["err"], self._streams["out"]):
            with contextlib.suppress(AttributeError, OSError, ValueError):
                # Some terminals in containers report 0 columns.
                return os.get_terminal_size(stream.fileno()).columns or _WIDTH_IF_UNKNOWN  # type: ignore[union-attr]
        return _WIDTH_IF_UNKNOWN

    def encodes(self, text: str, name: Stream = "err") -> bool:
        """Returns whether the encoding of the stream has these characters."""
        try:
            text.encode(_encoding(self._streams[name]))
        except UnicodeEncodeError:
            return False
        return True

    def write(self, stream: Stream, lines: str, *, is_droppable: bool = False) -> None:
        """Queues whole lines for writing and returns at once.

        Args:
          stream: The stream to write to.
          lines: One or more lines, each with its newline.
          is_droppable: If True and more than `_MOST_WAITING` characters are queued, the lines are
            dropped. A later line gives their number.

        Raises:
          TerminalClosedError: Once for each stream that has lost its reader. Later lines for that
            stream are discarded.
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

    def show_status(self, text: str) -> None:
        """Draws the status line below all others, in place of the previous one; "" removes it.

        Has no effect unless `is_live`. A text that is too wide is cut.

        Raises:
          TerminalClosedError: As in `write`.
        """
        with self._changed:
            if text != self._status:
                self._status = text
                self._status_changed = True
                self._changed.notify()
            self._raise_if_closed()

    def close(self, limit_s: float = 60.0) -> None:
        """Removes the status line and waits until all queued lines are written.

        Args:
          limit_s: If the reader takes nothing for this many seconds, the rest is discarded.
        """
        with self._changed:
            self._add_dropped()
            self._status, self._status_changed = "", True
            self._is_closing = True
            self._last_taken_s = time.monotonic()
            self._changed.notify()
        while self._thread.is_alive() and time.monotonic() - self._last_taken_s < limit_s:
            self._thread.join(min(0.1, limit_s))

    def _add_dropped(self) -> None:
        if self._num_dropped:
            text = f"tfdist: {self._num_dropped} lines are in the logs only: too many to show\n"
            self._waiting.append(("err", text))
            self._num_dropped = 0

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise TerminalClosedError(self._closed.pop())

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

    def _draw(self, lines: list[tuple[Stream, str]], status: str) -> None:
        if self.is_live:
            width = self.width
            text = status
            if len(strip_escapes(text)) >= width:  # in the last column the cursor would wrap
                text = strip_escapes(text)[: max(0, width - 1)]
            erased = _erase(self._drawn_width, width)
            self._drawn_width = len(strip_escapes(text))
        else:
            text = erased = ""
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
        except (OSError, ValueError):  # closed by the reader, or by this process
            self._writers[name] = None
            with self._changed:
                self._closed.append(name)


def _erase(drawn_width: int, width: int) -> str:
    """Returns the sequence that erases a line of `drawn_width` on a terminal of `width` columns."""
    if not drawn_width:
        return ""
    # A terminal that was made narrower has wrapped the line into several.
    above = -(-drawn_width // max(1, width)) - 1
    return "\r" + (f"\x1b[{above}A" if above else "") + "\x1b[J"


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
