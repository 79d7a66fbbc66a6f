"""What the values of options may be: text to value, or what is wrong with it."""

from __future__ import annotations

import ipaddress
import math
import re
import shlex
from argparse import ArgumentTypeError
from collections.abc import Callable

from tfdist.cluster.tasks import listed, shown
from tfdist.launch.option_parser import did_you_mean

_BOOLEANS = {"yes": True, "1": True, "true": True, "no": False, "0": False, "false": False}
_MOST = 100_000


def boolean(text: str) -> bool:
    """Reads yes, 1, true, no, 0 or false."""
    if text.lower() not in _BOOLEANS:
        raise ArgumentTypeError(
            f"got {shown(text)}, allowed are yes, 1, true, no, 0 and false. Write yes or no."
        )
    return _BOOLEANS[text.lower()]


def whole_number(minimum: int, maximum: int = _MOST) -> Callable[[str], int]:
    """Returns the reader of a whole number within these limits."""

    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not minimum <= int(text) <= maximum:
            raise ArgumentTypeError(
                f"got {shown(text)}, allowed are whole numbers from {minimum} to {maximum}. "
                f"Write for example {max(minimum, 1)}."
            )
        return int(text)

    return read


def one_of(*allowed: str) -> Callable[[str], str]:
    """Returns the reader of one of these words."""

    def read(text: str) -> str:
        if text not in allowed:
            raise ArgumentTypeError(
                f"got {shown(text)}, allowed are {listed(allowed)}."
                f"{did_you_mean(text, allowed) or _write_one(allowed)}"
            )
        return text

    return read


def seconds(text: str) -> float:
    """Reads a number of seconds above 0."""
    number = _number(text)
    if not 0 < number < math.inf:
        raise ArgumentTypeError(
            f"got {shown(text)}, allowed are numbers of seconds above 0. Write for example 30."
        )
    return number


def seconds_from_0(text: str) -> float:
    """Reads a number of seconds, 0 among them."""
    number = _number(text)
    if not 0 <= number < math.inf:
        raise ArgumentTypeError(
            f"got {shown(text)}, allowed are numbers of seconds from 0 on. Write for example 30."
        )
    return number


def seconds_or_none(text: str) -> float:
    """Reads a number of seconds above 0, or "none": infinity."""
    return math.inf if text.lower() == "none" else seconds(text)


def network(text: str) -> str:
    """Reads a network such as 10.0.0.0/24."""
    try:
        if "/" not in text:
            raise ValueError
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise ArgumentTypeError(
            f"got {shown(text)}, allowed is a network as ADDRESS/BITS. "
            "Write for example 10.0.0.0/24."
        ) from None


def variable(text: str) -> str:
    """Reads NAME or NAME=VALUE, and leaves it as it is."""
    name = text.partition("=")[0]
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ArgumentTypeError(
            f"got the name {shown(name)}, allowed are letters, digits and _, no digit first. "
            "Write NAME or NAME=VALUE."
        )
    return text


def shell_words(text: str) -> str:
    """Checks that the text can be split into words as a shell does, and leaves it as it is."""
    try:
        shlex.split(text)
    except ValueError as error:
        raise ArgumentTypeError(
            f"got {shown(text)}, which cannot be split into words: {str(error).lower()}. "
            "Close each quotation mark."
        ) from None
    return text


def numbered_shell_words(text: str) -> str:
    """Checks INDEX:"words", and leaves it as it is."""
    index, colon, words = text.partition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,6}", index):
        raise ArgumentTypeError(
            f"got {shown(text)}, allowed is an instance's index, a colon, and mpirun options. "
            'Write for example 1:"--report-bindings".'
        )
    shell_words(words)
    return text


def worker_indices(text: str) -> str:
    """Checks "evaluator" or a list of indices such as 0,2, and leaves it as it is."""
    for word in text.split(","):
        if word != "evaluator" and not re.fullmatch(r"[0-9]{1,6}", word):
            raise ArgumentTypeError(
                f"got {shown(text)}, allowed are indices of instances, and evaluator. "
                "Write for example 0 or 0,2."
            )
    return text


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _write_one(allowed: tuple[str, ...]) -> str:
    return f" Write {listed(allowed, 'or')}."
