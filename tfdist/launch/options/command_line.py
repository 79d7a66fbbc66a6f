"""The command line of a command: its options, then the command of a program, and --help."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tfdist.launch.errors import UsageError
from tfdist.launch.options.declaration import Option, options_of
from tfdist.process.text import did_you_mean, shown

COMMAND = "command"

# Other launchers' names of options.
_MEANT = dict.fromkeys(
    (
        *("--np", "--nproc-per-node", "--nproc_per_node", "--num-proc", "--ntasks"),
        *("--num-workers", "--num_workers", "--num-processes", "--num_processes", "--nnodes"),
        *("--world-size", "--world_size", "--workers"),
    ),
    "--num-instances",
)


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """A command's options, and the texts of its --help.

    The options end at "--", at "-m", or at the first word that is neither an option nor an option's
    value. The rest is the program's command, unchanged. Names of options cannot be shortened. An
    option whose value may be left out takes one only as --name=VALUE.

    Attributes:
      options: The dataclass that declares the options.
      usage: The first line of --help, without `prog`.
      takes_command: True if a program's command follows the options.
    """

    prog: str
    options: type
    description: str = ""
    usage: str = "[options]"
    examples: str = ""
    takes_command: bool = True

    @cached_property
    def names(self) -> Mapping[str, Option]:
        return {name: option for option in self.declared for name in option.names}

    @property
    def declared(self) -> Sequence[Option]:
        """The options in the order of --help."""
        options = options_of(self.options).values()
        return sorted(options, key=lambda option: option.group.is_last)

    def option(self, name: str) -> Option:
        """Returns an option by its name, including the dashes; a UsageError if there is none."""
        if name in self.names:
            return self.names[name]
        if name.partition("=")[0] == "--min-instances" and "--max-restarts" in self.names:
            raise UsageError(
                f"--min-instances is an option of tfdist run and tfdist slurm: {self.prog} starts "
                "all instances again, also after a lost node. Replace it with --max-restarts N."
            )
        meant = {other: own for other, own in _MEANT.items() if own in self.names}
        hint = did_you_mean(name.partition("=")[0], [*self.names, "--help"], meant)
        raise UsageError(
            f'unknown option {shown(name)}.{hint} "{self.prog} --help" lists what is allowed.'
        )

    def parse(self, words: Sequence[str]) -> dict[str, Any]:
        """Returns the values of the given options by their fields; a UsageError for wrong words.

        The value of an option that may be repeated is a tuple. If the command takes a program's
        command, "notices" has lines for the user, and "command" that command if it is there. --help
        ends with a SystemExit.
        """
        for word in words:
            if "\0" in word:
                raise UsageError(
                    f"the word {shown(word)} has a NUL character, which no command can. Remove it."
                )
        given: dict[str, Any] = {}
        rest = list(words)
        while rest and rest[0].startswith("-") and rest[0] not in ("-", "-m", "--"):
            if rest[0] in ("-h", "--help"):
                print(self.help(), end="")
                raise SystemExit(0)
            self._take_option(rest, given)
        notices = () if rest[:1] == ["--"] else self._behind(rest, given)
        command = tuple(rest[1:] if rest[:1] == ["--"] else rest)
        if not self.takes_command:
            if command:
                raise UsageError(
                    f"{shown(command[0])} is no option, and only options are allowed here. "
                    f'Remove it; "{self.prog} --help" lists them.'
                )
            return given
        return {**given, "notices": notices, **({COMMAND: command} if command else {})}

    def _take_option(self, rest: list[str], given: dict[str, Any]) -> None:
        """Moves the first option and its value from the words to the values."""
        word = rest.pop(0)
        name, equals, text = word.partition("=")
        if not word.startswith("--") and name not in self.names:  # -Hname, -x=A, -vvv
            if f"-{name}" in self.names:  # -num-instances
                self.option(word)
            name, equals, text = word[:2], "=", word[2:].removeprefix("=")
        if name == "--help":
            raise UsageError(f"{name} takes no value, got {shown(text)}. Write {name}.")
        option = self.names.get(name) or self.option(name if word.startswith("--") else word)
        if option.value is None:
            times = 1 if name.startswith("--") else len(word) - 1
            if equals and word != name[0] + name[1] * times:
                raise UsageError(f"{name} takes no value, got {shown(text)}. Write {name}.")
            count = 2 if name == "--vv" else times
            given[option.field] = given.get(option.field, 0) + count
            return
        if option.bare is not None and not equals:
            if rest and rest[0] in ("yes", "no"):
                raise UsageError(
                    f"got {shown(rest[0])} after {name}, where a command may stand. "
                    f"Write {name}={rest[0]}."
                )
            given[option.field] = option.bare
            return
        value = _read(option, text if equals else _next_word(name, option, rest))
        if option.is_list:
            given[option.field] = (*given.get(option.field, ()), value)
        else:
            given[option.field] = value

    def _behind(self, command: Sequence[str], given: Mapping[str, Any]) -> tuple[str, ...]:
        """Returns a notice if options of this command stand behind the program."""
        words = command[: command.index("--")] if "--" in command else command
        names = [word.partition("=")[0] for word in words if word.startswith("--")]
        found = [name for name in names if name in self.names]
        found = [name for name in found if self.names[name].field not in given]
        if not found:
            return ()
        program = " ".join(command[:2]) if command[0] == "-m" else command[0]
        return (
            f"{found[0]} behind {program} goes to the program; write it before {program} for "
            f"{self.prog}, or write -- before {program} if it is the program's",
        )

    def help(self) -> str:
        import argparse  # for the layout; this function alone needs it

        parser = argparse.ArgumentParser(
            usage=f"{self.prog} {self.usage}",
            description=self.description,
            epilog=self.examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.declare(parser)
        return parser.format_help()

    def declare(self, parser: Any) -> list[Any]:
        """Adds the options to an `argparse` parser that does not parse, and returns its actions."""
        actions = []
        if self.takes_command:
            help_text = "what every worker runs; its own options follow it"
            actions.append(
                parser.add_argument(COMMAND, nargs="*", metavar="COMMAND", help=help_text)
            )
        groups: dict[str, Any] = {}
        for option in self.declared:
            title = option.group.title
            if option.help is not None:
                if title not in groups:
                    groups[title] = parser.add_argument_group(title, option.group.description)
                actions.append(_add_to_help(groups[title], option))
        return actions


def _add_to_help(group: Any, option: Option) -> Any:
    default = f" (default: {option.shown_default})" if option.shown_default else ""
    text = f"{option.help}{'; repeatable' if option.is_list else ''}{default}".replace("%", "%%")
    if option.value is None:
        return group.add_argument(*option.names, action="count", help=option.help)
    metavar, choices = option.value.metavar, option.value.choices or None
    if option.bare is None:
        return group.add_argument(*option.names, metavar=metavar, choices=choices, help=text)
    return group.add_argument(
        *option.names, nargs="?", metavar=f"={metavar}", choices=choices, help=text
    )


def _read(option: Option, text: str) -> Any:
    assert option.value is not None
    if option.value.none_word is not None and text.lower() == option.value.none_word:
        return None
    try:
        return option.value.read(text)
    except ValueError as error:
        raise UsageError(f"{option.long_name}: {error}") from None


def _next_word(name: str, option: Option, rest: list[str]) -> str:
    if rest and (not rest[0].startswith("-") or re.fullmatch(r"-[0-9.]*", rest[0])):
        return rest.pop(0)
    found = f"got the option {shown(rest[0])}" if rest else "got nothing"
    metavar = option.value.metavar if option.value else ""
    raise UsageError(f"{name} needs a value, {found}. Write {option.long_name}={metavar}.")
