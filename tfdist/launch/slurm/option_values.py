"""What the values of Slurm's options may be: text to value, or what is wrong with it."""

from __future__ import annotations

import re
import shlex
from argparse import ArgumentTypeError

from tfdist.cluster.tasks import shown

_TIME = re.compile(
    r"(?:(?P<days>[0-9]{1,4})-(?P<day_hours>[0-9]{1,2})(?::(?P<day_minutes>[0-9]{1,2}))?"
    r"(?::(?P<day_seconds>[0-9]{1,2}))?"
    r"|(?:(?:(?P<hours>[0-9]{1,5}):)?(?P<minutes>[0-9]{1,7}):)(?P<seconds>[0-9]{1,2})"
    r"|(?P<only_minutes>[0-9]{1,7}))"
)


def time_limit(text: str) -> str:
    """Checks a time as Slurm has them, and leaves it as it is."""
    if time_limit_s(text) <= 0:
        raise ArgumentTypeError(
            f"got {shown(text)}, allowed are MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, "
            "DAYS-HOURS and DAYS-HOURS:MINUTES:SECONDS above 0. Write for example 02:30:00."
        )
    return text


def time_limit_s(text: str) -> int:
    """Returns a time's seconds; 0 if it is none."""
    match = _TIME.fullmatch(text)
    if match is None:
        return 0
    part = {name: int(digits or 0) for name, digits in match.groupdict().items()}
    minutes = part["day_minutes"] + part["minutes"] + part["only_minutes"]
    hours = part["days"] * 24 + part["day_hours"] + part["hours"] + minutes / 60
    return round(hours * 3600) + part["day_seconds"] + part["seconds"]


def name(text: str) -> str:
    """Checks the name of a job, an account or a quality of service."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", text):
        raise ArgumentTypeError(
            f'got {shown(text)}, allowed are up to 64 letters, digits, "_", "-" and ".", the first '
            "a letter, a digit or _. Write for example train-1."
        )
    return text


def names(text: str) -> str:
    """Checks names with commas between them."""
    for one in text.split(","):
        name(one)
    return text


def memory(text: str) -> str:
    """Checks an amount of memory: a number with K, M, G or T, or without (megabytes)."""
    if not re.fullmatch(r"[0-9]{1,9}[KMGT]?", text):
        raise ArgumentTypeError(
            f"got {shown(text)}, allowed is a whole number with K, M, G or T after it. "
            "Write for example 16G."
        )
    return text


def folder(text: str) -> str:
    """Checks a folder that sbatch is to write into: no blanks, and no % (a pattern there)."""
    if not re.fullmatch(r"[A-Za-z0-9_./+=@,:-]+", text) or text.startswith("-"):
        raise ArgumentTypeError(
            f'got {shown(text)}, allowed are letters, digits and "_./+=@,:-", since sbatch reads '
            "other characters in its own way. Write for example logs."
        )
    return text


def sbatch_words(text: str) -> str:
    """Checks options of sbatch for lines #SBATCH, and leaves them as they are."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ArgumentTypeError(
            f"got {shown(text)}, which cannot be split into words: {str(error).lower()}. "
            "Close each quotation mark."
        ) from None
    for word in words:
        if not re.fullmatch(r"--[a-z][a-z-]*(=[A-Za-z0-9_.,:/@%+=&|*()\[\]-]+)?", word):
            raise ArgumentTypeError(
                f"got {shown(word)}, allowed are options of sbatch as --name or --name=value, "
                "without blanks and quotation marks in a value. "
                "Write for example --sbatch-args='--exclusive --mem=16G'."
            )
    return text
