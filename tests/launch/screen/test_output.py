"""The workers' output on the screen: tags, colours, progress bars, and harmful characters."""

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tfdist.launch.options.values import ColorMode
from tfdist.launch.screen.ansi import last_state, strip_escapes
from tfdist.launch.screen.output import PendingLine, Screen, shown_line, split_lines, worker_style
from tfdist.launch.screen.terminal import Terminal

TAGS = {0: "0", 1: "1", 2: "evaluator"}


@contextmanager
def screen(
    *, color: ColorMode = "auto", environ: Mapping[str, str] | None = None, **options: Any
) -> Iterator[tuple[Screen, Callable[[], tuple[str, str]]]]:
    """Yields a screen, and a function that closes it and returns its stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    terminal = Terminal(out, err, color=color, environ=environ or {})

    def close() -> tuple[str, str]:
        terminal.close()
        return out.getvalue(), err.getvalue()

    try:
        yield Screen(terminal, **{"tags": TAGS, **options}), close
    finally:
        terminal.close()


def test_lines_are_tagged_and_go_to_the_stream_they_were_printed_to() -> None:
    with screen() as (shown, close):
        shown.write(0, "out", "one\ntwo\n", 0.0)
        shown.write(1, "err", "three\n", 0.0)
        shown.write(2, "out", "four\n", 0.0)
        assert close() == (
            "        [0] one\n        [0] two\n[evaluator] four\n",
            "        [1] three\n",
        )


def test_lines_that_all_workers_print_are_shown_once_and_others_after_a_second() -> None:
    with screen(joined={0, 1}) as (shown, close):
        shown.write(0, "out", "same\nonly 0\nlast\n", 0.0)
        shown.write(1, "out", "same\n", 0.5)
        shown.write(1, "err", "only 0\n", 0.5)
        shown.write(2, "out", "of the evaluator\n", 0.5)
        shown.update(1.1)
        shown.write(1, "out", "last\n", 1.2)
        for worker in TAGS:
            shown.flush(worker)
        assert close() == (
            "      [0-1] same\n[evaluator] of the evaluator\n        [0] only 0\n        [0] last\n"
            "        [1] last\n",
            "        [1] only 0\n",
        )


def test_the_equal_lines_of_the_workers_that_are_shown_are_joined() -> None:
    with screen(joined={0, 1}, shown={1, 2}) as (shown, close):
        shown.write(1, "out", "at once\n", 0.0)
        assert close() == ("        [1] at once\n", "")


def test_startup_lines_of_tensorflow_are_counted_instead_of_shown() -> None:
    lines = "I0000 00:00:1795387128.079123    7492 grpc_server_lib.cc:467] Started\nstep 0\n"
    for is_hidden in (True, False):
        with screen(hides_startup_lines=is_hidden) as (shown, close):
            shown.write(0, "err", lines, 0.0)
            assert shown.num_startup_lines == is_hidden
            assert close()[1].count("\n") == 2 - is_hidden


def test_without_tags_the_lines_of_the_workers_that_are_asked_for_are_unchanged() -> None:
    with screen(is_tagged=False, shown={1}) as (shown, close):
        for worker in TAGS:
            shown.write(worker, "out", f"  of {worker} \n", 0.0)
        assert close() == ("  of 1\n", "")


def test_a_line_that_comes_in_pieces_is_shown_once_it_is_whole() -> None:
    with screen(tags={0: "0", 1: "1"}) as (shown, close):
        shown.write(0, "out", "be", 0.0)
        shown.write(1, "out", "other\n", 0.0)
        shown.write(0, "err", "error\n", 0.0)
        shown.write(0, "out", "fore\nrest", 0.0)
        assert close() == ("[1] other\n[0] before\n", "[0] error\n")


def test_an_unfinished_line_is_shown_when_its_worker_has_ended() -> None:
    with screen(tags={0: "0"}) as (shown, close):
        shown.write(0, "out", "last words", 0.0)
        shown.flush(0)
        shown.flush(0)
        assert close() == ("[0] last words\n", "")


def test_each_worker_has_its_colour_and_text_keeps_its_own() -> None:
    with screen(color="always", environ={"TERM": "xterm-256color"}) as (shown, close):
        shown.write(0, "out", "\x1b[31mred\x1b[2J\n", 0.0)
        shown.write(1, "out", "plain\n", 0.0)
        assert close()[0] == (
            "\x1b[38;5;33m        [0]\x1b[0m \x1b[31mred\x1b[0m\n"
            "\x1b[38;5;208m        [1]\x1b[0m plain\n"
        )
    with screen(tags={0: "0"}, color="never") as (shown, close):
        shown.write(0, "out", "\x1b[31mred\x1b[0m\n", 0.0)
        assert close()[0] == "[0] red\n"


def test_more_than_8_workers_have_different_colours() -> None:
    for num_colors in (16, 256):
        styles = [worker_style(position, num_colors) for position in range(8)]
        assert len(set(styles)) == 8
        # Neither the red of errors, nor a colour that is invisible on black or white.
        assert not {f"color({number})" for number in (0, 1, 7, 8, 9, 15)} & set(styles)


def test_a_progress_bar_becomes_one_line_and_windows_line_ends_are_none() -> None:
    bar = "".join(f"\r{percent:3}%|{'#' * percent}" for percent in range(0, 101, 10))
    lines, pending = split_lines(PendingLine(), f"{bar}\none\r", 0.0)
    assert lines == [f"100%|{'#' * 100}"]
    assert split_lines(pending, "\ntwo\r\n", 0.0)[0] == ["one", "two"]


def test_a_long_lasting_progress_bar_is_shown_every_10_seconds() -> None:
    pending, shown = PendingLine(shown_s=100.0), []
    for second in range(100, 126):
        lines, pending = split_lines(pending, f"\r{second - 100} of 25", float(second))
        shown += lines
    lines, pending = split_lines(pending, "\n", 126.0)
    assert shown + lines == ["10 of 25", "20 of 25", "25 of 25"]


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    pending = PendingLine()
    for _ in range(100):
        _, pending = split_lines(pending, "x" * 10_000, 0.0)
    assert len(pending.text) < 100_000


def test_long_lines_are_cut_and_those_that_only_move_the_cursor_are_left_out() -> None:
    line = shown_line("x" * 5_000, keep_colors=True)
    assert line == "x" * 1_000 + " … (cut here; the log has all)"
    colored = "\x1b[31m" + "x" * 1_000 + "\x1b[0m"
    assert shown_line(colored, keep_colors=True) == colored
    assert shown_line("\x1b[A", keep_colors=True) is None
    assert shown_line("", keep_colors=True) == ""


HARMFUL = (
    "\x1b[2J",  # clears the screen
    "\x1b[10;20H",  # moves the cursor
    "\x1b[?1049h",  # switches to the other screen
    "\x1b]0;title\x07",
    "\x1b]8;;http://example.com\x1b\\",
    "\x1bP+q544e\x1b\\",
    "\x1bc",  # resets the terminal
    "\x1b(0",  # switches to line-drawing characters
    "\x1b7",
    "\x9b2J",
    "\x0e\x07\x08\x0b\x0c\x00\x7f\x85",
    "\u202e\u2066",  # turns the direction of writing around
    "\x1b\x1b[K",
)


def test_nothing_but_text_and_colours_reaches_the_terminal() -> None:
    for harmful in HARMFUL:
        for keep_colors in (True, False):
            shown = strip_escapes(f"a{harmful}b\tc", keep_colors=keep_colors)
            assert shown == "ab\tc", repr(harmful)
    line = "\x1b[1;38;5;208mbold\x1b[K"
    assert strip_escapes(line, keep_colors=True) == "\x1b[1;38;5;208mbold\x1b[0m"
    assert strip_escapes(line) == "bold"


def test_random_bytes_are_harmless() -> None:
    every = bytes(range(256)) * 3
    for shift in range(256):
        text = (every[shift:] + every[: shift * 7 % 251]).decode(errors="replace")
        for line in text.split("\n"):
            assert all(c.isprintable() or c == "\t" for c in strip_escapes(last_state(line)))
