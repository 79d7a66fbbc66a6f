"""The launcher's stdout and stderr: a status line below the lines, slow and vanished readers."""

import fcntl
import io
import os
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest
from rich.text import Text

from tfdist.launch.options.values import ColorMode
from tfdist.launch.screen.terminal import Terminal, TerminalClosedError
from tfdist.testing.run import wait_until

LIMIT_S = 10.0


class Tty:
    """A terminal with a reader."""

    def __init__(self, columns: int = 80) -> None:
        self.master, slave = os.openpty()
        self.file: TextIO = os.fdopen(slave, "w", encoding="utf-8")
        self.resize(columns)
        self.raw = ""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def resize(self, columns: int) -> None:
        size = struct.pack("HHHH", 24, columns, 0, 0)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)

    def lines(self) -> list[str]:
        """Returns the visible lines; knows line feeds, carriage returns and erasing."""
        lines, column = [""], 0
        for part in re.findall(r"\x1b\[J|\x1b\[\d+A|\r|\n|[^\x1b\r\n]+", self.raw):
            if part == "\n":
                lines.append("")
            elif part == "\r":
                column = 0
            elif part == "\x1b[J":
                lines[-1] = lines[-1][:column]
            elif part.startswith("\x1b["):
                del lines[-int(part[2:-1]) :]
                lines[-1] = ""
            else:
                lines[-1] = lines[-1][:column] + part
                column = len(lines[-1])
        return lines

    def close(self) -> None:
        self.file.close()
        self._thread.join()
        os.close(self.master)

    def _read(self) -> None:
        while True:
            try:
                self.raw += os.read(self.master, 65_536).decode()
            except OSError:  # the other end was closed
                return


class TtyText(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def tty() -> Iterator[Tty]:
    tty = Tty()
    yield tty
    tty.close()


@pytest.fixture
def make_terminal() -> Iterator[Callable[..., Terminal]]:
    terminals = []

    def make(out: TextIO | None, err: TextIO | None, **environ: str) -> Terminal:
        terminals.append(Terminal(out, err, environ={"TERM": "xterm", **environ}))
        return terminals[-1]

    yield make
    for terminal in terminals:
        terminal.close(LIMIT_S)


def test_the_status_stays_below_the_lines(tty: Tty, make_terminal: Callable[..., Terminal]) -> None:
    terminal = make_terminal(tty.file, tty.file)
    for number in range(50):
        terminal.show_status(Text(f"step {number}"))
        terminal.write("out" if number % 2 else "err", f"line {number}\n")
    lines = [f"line {number}" for number in range(50)]
    assert wait_until(lambda: tty.lines() == [*lines, "step 49"], LIMIT_S)
    terminal.close(LIMIT_S)
    assert wait_until(lambda: tty.lines() == [*lines, ""], LIMIT_S)


def test_a_status_as_wide_as_the_terminal_is_cut(
    tty: Tty, make_terminal: Callable[..., Terminal]
) -> None:
    tty.resize(10)
    terminal = make_terminal(tty.file, tty.file)
    terminal.show_status(Text("0123456789abc", "bold"))
    assert wait_until(lambda: "012345678" in tty.raw and "9" not in tty.raw, LIMIT_S)


def test_a_status_that_a_resize_has_broken_in_two_is_removed_whole(
    tty: Tty, make_terminal: Callable[..., Terminal]
) -> None:
    terminal = make_terminal(tty.file, tty.file)
    terminal.show_status(Text("x" * 70))
    assert wait_until(lambda: "x" * 70 in tty.raw, LIMIT_S)
    tty.resize(30)
    terminal.write("out", "line\n")
    assert wait_until(lambda: "\r\x1b[2A\x1b[Jline\r\n" in tty.raw, LIMIT_S)
    assert terminal.width == 30


def test_a_terminal_without_cursor_movement_gets_no_status(
    tty: Tty, make_terminal: Callable[..., Terminal]
) -> None:
    terminal = make_terminal(tty.file, tty.file, TERM="dumb")
    assert not terminal.is_live
    terminal.show_status(Text("step 1"))
    terminal.write("out", "line\n")
    terminal.close(LIMIT_S)
    assert wait_until(lambda: tty.lines() == ["line", ""], LIMIT_S)


def test_a_file_gets_no_status(make_terminal: Callable[..., Terminal]) -> None:
    out, err = io.StringIO(), io.StringIO()
    terminal = make_terminal(out, err)
    terminal.show_status(Text("step 1"))
    terminal.write("out", "line\n")
    terminal.close(LIMIT_S)
    assert (out.getvalue(), err.getvalue()) == ("line\n", "")


def test_writes_to_a_missing_stream_are_dropped(make_terminal: Callable[..., Terminal]) -> None:
    terminal = make_terminal(None, None)
    terminal.write("out", "line\n")
    terminal.close(LIMIT_S)
    assert terminal.width == 80


def test_characters_that_the_stream_cannot_encode_are_replaced(
    make_terminal: Callable[..., Terminal],
) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    terminal = make_terminal(out, out)
    assert not terminal.has_unicode
    terminal.write("out", "50 € \udcff\n")
    terminal.close(LIMIT_S)
    out.flush()
    assert out.buffer.getvalue() == b"50 ? ?\n"  # type: ignore[attr-defined]


COLORED: tuple[tuple[ColorMode, type[io.StringIO], dict[str, str], bool], ...] = (
    ("auto", TtyText, {"TERM": "xterm"}, True),
    ("auto", io.StringIO, {"TERM": "xterm"}, False),
    ("auto", TtyText, {"NO_COLOR": "1"}, False),
    ("auto", TtyText, {"NO_COLOR": ""}, True),
    ("auto", io.StringIO, {"FORCE_COLOR": "1"}, True),
    ("auto", TtyText, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ("auto", TtyText, {"TERM": "dumb"}, False),
    ("always", io.StringIO, {"NO_COLOR": "1", "TERM": "dumb"}, True),
    ("never", TtyText, {"FORCE_COLOR": "1"}, False),
)


def test_the_option_overrides_the_variables_and_these_override_the_terminal() -> None:
    for mode, stream, environ, expected in COLORED:
        err = stream()
        terminal = Terminal(None, err, color=mode, environ=environ)
        terminal.print(Text("text", "bold red"))
        terminal.close()
        assert ("\x1b" in err.getvalue()) is expected, (mode, stream, environ)
        assert (terminal.num_colors("err") > 0) is expected, (mode, stream, environ)


def test_a_closed_stdout_is_reported_once_and_stderr_goes_on(
    make_terminal: Callable[..., Terminal],
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    err = io.StringIO()
    with os.fdopen(writer, "w") as out:
        terminal = make_terminal(out, err)

        def is_reported() -> bool:
            try:
                terminal.write("out", "line\n")
            except TerminalClosedError as error:
                assert error.stream == "out"
                return True
            return False

        assert wait_until(is_reported, LIMIT_S)
        terminal.write("out", "this is dropped\n")
        terminal.write("err", "the end\n")
        terminal.close(LIMIT_S)
    assert err.getvalue() == "the end\n"


@contextmanager
def piped(*, is_blocking: bool = True) -> Iterator[tuple[TextIO, Callable[[Terminal], list[str]]]]:
    """Yields a pipe's file, and a function that reads the lines until the terminal is closed."""
    reader, writer = os.pipe()
    os.set_blocking(writer, is_blocking)
    with os.fdopen(writer, "w") as file, os.fdopen(reader) as source:

        def close_and_read(terminal: Terminal) -> list[str]:
            taken: list[str] = []
            thread = threading.Thread(target=lambda: taken.extend(source))
            thread.start()
            terminal.close(LIMIT_S)
            file.close()
            thread.join()
            return taken

        yield file, close_and_read


def test_a_blocked_reader_delays_no_worker_and_misses_only_droppable_lines(
    make_terminal: Callable[..., Terminal],
) -> None:
    with piped() as (file, close_and_read):
        terminal = make_terminal(file, file)
        line = "x" * 999 + "\n"
        for _ in range(10_000):  # would block if it waited for the reader
            terminal.write("out", line, is_droppable=True)
        terminal.write("err", "the failure box\n")
        taken = close_and_read(terminal)
    notes = [re.match(r"tfdist: (\d+) lines are in the logs only", text) for text in taken]
    missing = sum(int(note[1]) for note in notes if note)
    assert missing > 1_000
    assert taken.count(line) == 10_000 - missing
    assert taken[-1] == "the failure box\n"


@pytest.mark.processes
def test_a_reader_that_never_reads_is_given_up(make_terminal: Callable[..., Terminal]) -> None:
    code = (
        "import sys\n"
        "from tfdist.launch.screen.terminal import Terminal\n"
        "terminal = Terminal(sys.stdout, sys.stderr)\n"
        "terminal.write('out', 'x' * 1_000_000 + '\\n')\n"
        "terminal.close(0.2)\n"
        "terminal.write('err', 'lost')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.wait(LIMIT_S) == 0  # before anything was read
        assert process.stderr is not None and process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()


def test_a_non_blocking_pipe_loses_nothing(make_terminal: Callable[..., Terminal]) -> None:
    with piped(is_blocking=False) as (file, close_and_read):
        terminal = make_terminal(file, None)
        terminal.write("out", "0123456789\n" * 100_000)
        assert close_and_read(terminal) == ["0123456789\n"] * 100_000
