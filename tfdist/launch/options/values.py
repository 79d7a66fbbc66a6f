"""The kinds of values that options have: numbers, words, seconds, networks, variables."""

from __future__ import annotations

import ipaddress
import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from tfdist.cluster.environment import parse_steps
from tfdist.launch.options.declaration import Value
from tfdist.process.text import did_you_mean, listed, shown

ColorMode = Literal["auto", "always", "never"]

ProgressMode = Literal["auto", "bar", "plain", "none"]

MOST = 100_000  # The largest number of instances, restarts and the like.


def wrong(text: str, allowed: str, example: str) -> ValueError:
    """Returns the error for a value that is not allowed."""
    return ValueError(f"got {shown(text)}, allowed {allowed}. Write for example {example}.")


def any_text(metavar: str) -> Value:
    """Returns a value that may be any text."""
    return Value(str, metavar)


def any_path(metavar: str) -> Value:
    """Returns a value that is a file or a folder."""

    def read(text: str) -> Path:
        if not text:
            raise wrong(text, "is the name of a file or folder", "logs")
        return Path(text)

    return Value(read, metavar)


def matching(pattern: str, metavar: str, allowed: str, example: str) -> Value:
    """Returns a value that is a text which matches the whole pattern."""

    def read(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise wrong(text, allowed, example)
        return text

    return Value(read, metavar)


def whole_number(minimum: int, maximum: int = MOST, metavar: str = "N") -> Value:
    """Returns a value that is a whole number within these limits."""

    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,10}", text) or not minimum <= int(text) <= maximum:
            raise wrong(
                text, f"are whole numbers from {minimum} to {maximum}", str(max(minimum, 1))
            )
        return int(text)

    return Value(read, metavar)


def one_of(*allowed: str) -> Value:
    """Returns a value that is one of these words."""

    def read(text: str) -> str:
        if text not in allowed:
            fix = did_you_mean(text, allowed) or f" Write {listed(allowed, 'or')}."
            raise ValueError(f"got {shown(text)}, allowed are {listed(allowed)}.{fix}")
        return text

    return Value(read, f"{{{','.join(allowed)}}}", choices=allowed)


def seconds(*, is_zero_allowed: bool = False, none_word: str | None = None) -> Value:
    """Returns a value that is a number of seconds above 0, or from 0 on."""
    limit = "from 0 on" if is_zero_allowed else "above 0"

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not (0 < number < math.inf or (is_zero_allowed and number == 0)):
            raise wrong(text, f"are numbers of seconds {limit}", "30")
        return number

    return Value(read, "SECONDS", none_word)


def _read_network(text: str) -> str:
    try:
        if "/" not in text:
            raise ValueError
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise wrong(text, "is a network as ADDRESS/BITS", "10.0.0.0/24") from None


def check_variable(text: str) -> str:
    """Checks that the text is NAME or NAME=VALUE, and returns it unchanged."""
    name = text.partition("=")[0]
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(
            f"got the name {shown(name)}, allowed are letters, digits and _, no digit first. "
            "Write NAME or NAME=VALUE."
        )
    return text


def split_words(text: str) -> list[str]:
    """Splits a text by the rules of a shell; raises ValueError if that is impossible."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(
            f"got {shown(text)}, which cannot be split into words: {str(error).lower()}. "
            "Close each quotation mark."
        ) from None


def checked(check: Callable[[str], object], metavar: str) -> Value:
    """Returns a value that is a text which `check` accepts, unchanged."""

    def read(text: str) -> str:
        check(text)
        return text

    return Value(read, metavar)


def _check_numbered_words(text: str) -> None:
    index, colon, words = text.partition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,6}", index):
        raise wrong(
            text,
            "is an instance's index, a colon, and mpirun options",
            '1:"--report-bindings"',
        )
    split_words(words)


NETWORK = Value(_read_network, "CIDR")
VARIABLE = Value(check_variable, "NAME[=VALUE]")
STEPS = checked(parse_steps, "FIRST:LAST")
SHELL_WORDS = checked(split_words, '"ARGS"')
NUMBERED_SHELL_WORDS = checked(_check_numbered_words, 'INDEX:"ARGS"')
WORKER_INDICES = matching(
    r"(evaluator|[0-9]{1,6})(,(evaluator|[0-9]{1,6}))*",
    "LIST",
    "are indices of instances, and evaluator",
    "0 or 0,2",
)
