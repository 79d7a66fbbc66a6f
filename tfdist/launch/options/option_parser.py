"""The parser for `tfdist run [options] [--] command...`, and readers of option values."""

from __future__ import annotations

import argparse
import difflib
import ipaddress
import math
import re
import shlex
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NoReturn

from tfdist.cluster.tasks import listed, shown
from tfdist.launch.errors import UsageError

ColorMode = Literal["auto", "always", "never"]

ProgressMode = Literal["auto", "bar", "plain", "none"]

COMMAND = "command"

_BOOLEANS = {"yes": True, "1": True, "true": True, "no": False, "0": False, "false": False}
_MOST = 100_000


class OptionParser(argparse.ArgumentParser):
    """An argparse parser for options that are followed by another program's command.

    The options end at "--", at "-m", or at the first word that is neither an option nor an
    option's value. The rest is the command, unchanged. That requires a positional argument called
    "command" (`add_command_argument`); without one, such words are an error.

    Errors are raised as `UsageError`. Names of options cannot be shortened. An option with an
    optional value takes it only as --name=VALUE.
    """

    def __init__(
        self,
        prog: str,
        usage: str | None = None,
        description: str | None = None,
        epilog: str | None = None,
    ) -> None:
        super().__init__(
            prog=prog,
            usage=usage,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Returns all options; those that are not among the words have their defaults.

        Raises:
          UsageError: If the words are wrong.
          SystemExit: After --help.
        """
        return self._parse(words, argparse.Namespace())

    def parse_given(self, words: Sequence[str]) -> argparse.Namespace:
        """Like `parse`, but options that are not among the words are None."""
        nothing = {action.dest: None for action in self._actions}
        return self._parse(words, argparse.Namespace(**nothing))

    @property
    def long_names(self) -> tuple[str, ...]:
        """All names of options that begin with two dashes."""
        return tuple(name for name in self._option_string_actions if name.startswith("--"))

    def option(self, name: str) -> argparse.Action:
        """Returns an option by its name, including the dashes.

        Raises:
          UsageError: If there is no such option.
        """
        if name not in self._option_string_actions:
            raise UsageError(
                f"unknown option {shown(name)}.{did_you_mean(name, self._option_string_actions)} "
                f'"{self.prog} --help" lists what is allowed.'
            )
        return self._option_string_actions[name]

    def error(self, message: str) -> NoReturn:
        """Raises argparse's error messages as `UsageError`."""
        raise UsageError(message.removeprefix("argument "))

    def _parse(self, words: Sequence[str], namespace: argparse.Namespace) -> argparse.Namespace:
        takes_command = any(action.dest == COMMAND for action in self._actions)
        for word in words:
            if "\0" in word:
                raise UsageError(
                    f"the word {shown(word)} has a NUL character, which no command can. Remove it."
                )
        options, command = self._split(words)
        if command and not takes_command:
            raise UsageError(
                f"{shown(command[0])} is no option, and only options are allowed here. "
                f'Remove it; "{self.prog} --help" lists them.'
            )
        parsed = self.parse_args(options, namespace)
        if takes_command:
            setattr(parsed, COMMAND, command)
        return parsed

    def _split(self, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """Returns the options, each in one word with its value, and the command."""
        options: list[str] = []
        rest = list(words)
        while rest:
            word = rest[0]
            if word == "--":
                return options, rest[1:]
            if not word.startswith("-") or word in ("-", "-m"):
                return options, rest
            rest.pop(0)
            if word.startswith("--") or word in self._option_string_actions:
                name, equals, value = word.partition("=")
            else:  # -Hname, -vvv
                name, value = word[:2], word[2:].removeprefix("=")
                if name not in self._option_string_actions:
                    self.option(word)
                equals = "="
                if set(word[1:]) == {word[1]} and self.option(name).nargs == 0:
                    options += [name] * (len(word) - 1)
                    continue
            action = self.option(name)
            if equals:
                if action.nargs == 0:
                    raise UsageError(f"{name} takes no value, got {shown(value)}. Write {name}.")
                options.append(f"{long_name(action)}={value}")
            elif action.nargs in (0, "?"):
                if action.nargs == "?" and rest and rest[0] in ("yes", "no"):
                    raise UsageError(
                        f"got {shown(rest[0])} after {name}, where a command may stand. "
                        f"Write {name}={rest[0]}."
                    )
                options.append(name)
            else:
                options.append(f"{long_name(action)}={_next_value(name, action, rest)}")
        return options, []


def long_name(action: argparse.Action) -> str:
    """Returns the option's first name that begins with two dashes."""
    return next(name for name in action.option_strings if name.startswith("--"))


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Returns ' Did you mean "x"?' for a similar name, else ""."""
    near = difflib.get_close_matches(name.lower(), list(allowed), n=1)
    return f' Did you mean "{near[0]}"?' if near else ""


def _next_value(name: str, action: argparse.Action, rest: list[str]) -> str:
    if rest and (not rest[0].startswith("-") or re.fullmatch(r"-[0-9.]*", rest[0])):
        return rest.pop(0)
    found = f"got the option {shown(rest[0])}" if rest else "got nothing"
    raise UsageError(f"{name} needs a value, {found}. Write {long_name(action)}={action.metavar}.")


def boolean(text: str) -> bool:
    """Reads yes, 1, true, no, 0 or false."""
    if text.lower() not in _BOOLEANS:
        raise ArgumentTypeError(
            f"got {shown(text)}, allowed are yes, 1, true, no, 0 and false. Write yes or no."
        )
    return _BOOLEANS[text.lower()]


def whole_number(minimum: int, maximum: int = _MOST) -> Callable[[str], int]:
    """Returns a function that reads a whole number within these limits."""

    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not minimum <= int(text) <= maximum:
            raise ArgumentTypeError(
                f"got {shown(text)}, allowed are whole numbers from {minimum} to {maximum}. "
                f"Write for example {max(minimum, 1)}."
            )
        return int(text)

    return read


def one_of(*allowed: str) -> Callable[[str], str]:
    """Returns a function that reads one of these words."""

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
    """Reads a number of seconds from 0 on."""
    number = _number(text)
    if not 0 <= number < math.inf:
        raise ArgumentTypeError(
            f"got {shown(text)}, allowed are numbers of seconds from 0 on. Write for example 30."
        )
    return number


def seconds_or_none(text: str) -> float:
    """Reads a number of seconds above 0, or "none" for infinity."""
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
    """Checks that the text is NAME or NAME=VALUE, and returns it unchanged."""
    name = text.partition("=")[0]
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ArgumentTypeError(
            f"got the name {shown(name)}, allowed are letters, digits and _, no digit first. "
            "Write NAME or NAME=VALUE."
        )
    return text


def shell_words(text: str) -> str:
    """Checks that a shell can split the text into words, and returns it unchanged."""
    try:
        shlex.split(text)
    except ValueError as error:
        raise ArgumentTypeError(
            f"got {shown(text)}, which cannot be split into words: {str(error).lower()}. "
            "Close each quotation mark."
        ) from None
    return text


def numbered_shell_words(text: str) -> str:
    """Checks that the text has the form INDEX:"words", and returns it unchanged."""
    index, colon, words = text.partition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,6}", index):
        raise ArgumentTypeError(
            f"got {shown(text)}, allowed is an instance's index, a colon, and mpirun options. "
            'Write for example 1:"--report-bindings".'
        )
    shell_words(words)
    return text


def worker_indices(text: str) -> str:
    """Checks a list of indices and "evaluator", such as 0,2, and returns it unchanged."""
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
