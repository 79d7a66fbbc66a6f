"""The part of a worker's last output that says why it failed: its error, or its last lines.

Traceback (most recent call last):              the frames of the user's files are kept,
File "train.py", line 30, in main
estimator.train(input_fn)
... 5 frames of packages                      frames of packages are counted,
File "train.py", line 12, in model_fn
raise ValueError("no such layer")
ValueError: no such layer                       errors have their short names
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from tfdist.launch.failures.startup_lines import is_startup_line

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'  File "(.*)", line \d+')
_EXCEPTION = re.compile(r"(?P<path>[A-Za-z_](?:[\w.]|<locals>)*)(?::|$)")
_CARETS = re.compile(r"\s*[~^][~^ ]*")
_PACKAGE_FOLDERS = ("/site-packages/", "/dist-packages/", "<frozen ")
_OWN_FOLDERS = (f"{Path(__file__).parents[2]}/", f"{sysconfig.get_path('stdlib')}/")
# Lines of every error of a session, without a word about this one.
_OF_SESSIONS = re.compile(
    r"From /job:\S+:$|\d+ root error\(s\) found\.$|\d+ successful operations\.$"
    r"|\d+ derived errors ignored\.$|\s*\[\[.*\]\]$"
)
_RECENT_LOGS = "Recent warning and error logs:"  # begins the end of such an error
_MOST_DETAILS = 4
_NUMBERED = re.compile(r"  \(\d+\) (?=[A-Z_]+: )")  # "  (0) INVALID_ARGUMENT: ..."


def exception_line(lines: Sequence[str]) -> str | None:
    """Returns the line of the last Python traceback that names the exception; None without one."""
    found = _find_exception(lines)
    return None if found is None else lines[found]


def error_text(lines: Sequence[str]) -> str:
    """Returns the exception of the last traceback in one line, by its short name; "" without one.

    "Graph execution error:" alone says nothing, so the first line of the details follows it.
    """
    found = _find_exception(lines)
    if found is None:
        return ""
    text = _short(lines[found])
    details = _details(lines[found + 1 :]) if text.endswith(":") else []
    return f"{text} {details[0].strip()}" if details else text


def error_excerpt(lines: Sequence[str]) -> tuple[str, ...]:
    """Returns the last traceback without what does not concern the user; empty without one."""
    found = _find_exception(lines)
    if found is None:
        return ()
    begin = found
    while begin > 0 and not lines[begin].endswith(_TRACEBACK):
        begin -= 1
    frames = list(_frames(lines[begin:found]))
    return (_TRACEBACK, *frames, _short(lines[found]), *_details(lines[found + 1 :]))


def _find_exception(lines: Sequence[str]) -> int | None:
    found = None
    is_inside = False
    for number, line in enumerate(lines):
        if line.endswith(_TRACEBACK):
            is_inside = True
        elif line.startswith("  "):
            is_inside = is_inside or bool(_FRAME.match(line))
        elif is_inside and line:
            is_inside = False
            found = number if _EXCEPTION.match(line) else found
    return found


def _frames(lines: Sequence[str]) -> Iterator[str]:
    """Yields the frames of the user's files, and a line for each run of others."""
    frames: list[list[str]] = []
    for line in lines:
        if _FRAME.match(line):
            frames.append([line])
        elif frames and not _CARETS.fullmatch(line):
            frames[-1].append(line)
    numbers = range(len(frames))
    own = [number for number in numbers if not _is_of_package(frames[number][0])] or numbers[-2:]
    num_left_out = 0
    for number, frame in enumerate(frames):
        if number not in own:
            num_left_out += 1
            continue
        yield from _left_out(num_left_out)
        num_left_out = 0
        yield from frame
    yield from _left_out(num_left_out)


def _left_out(number: int) -> Iterator[str]:
    if number:
        yield f"  ... {number} {'frames' if number > 1 else 'frame'} of packages"


def _is_of_package(frame: str) -> bool:
    found = _FRAME.match(frame)
    path = found[1] if found else ""
    is_installed = any(folder in path for folder in _PACKAGE_FOLDERS)
    return is_installed or path.startswith(_OWN_FOLDERS)


def _details(lines: Sequence[str]) -> list[str]:
    """Returns the first further lines of an error's message, each once."""
    lines = lines[: lines.index(_RECENT_LOGS)] if _RECENT_LOGS in lines else lines
    left = [line for line in lines if line and not is_startup_line(line.lstrip())]
    left = [_NUMBERED.sub("  ", line) for line in left if not _OF_SESSIONS.match(line)]
    return list(dict.fromkeys(left))[:_MOST_DETAILS]


def _short(line: str) -> str:
    """Returns the line of an exception without the modules before its name."""
    found = _EXCEPTION.match(line)
    if found is None:
        return line
    return found["path"].rpartition(".")[2] + line[found.end("path") :]
