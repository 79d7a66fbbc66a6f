"""Declarations of options: fields of a frozen dataclass that hold all that is known of an option.

    SIZE = Group("size of the run")

    @dataclass(frozen=True, kw_only=True)
    class TrainOptions:
        num_instances: int = option(whole_number(1), "worker processes", default=1, group=SIZE)
        dry_run: bool = flag("start nothing")

The command line, --help, the config file, the checks of values and the tables in docs/ are made
from these fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from tfdist.process.text import shown

_METADATA = "option"
_BOOLEANS = {"yes": True, "1": True, "true": True, "no": False, "0": False, "false": False}


@dataclass(frozen=True)
class Value:
    """The values that an option may have.

    Attributes:
      read: Returns the value that a text stands for, or raises ValueError: "got ..., allowed ...".
      metavar: The value's name in --help.
      none_word: The word that stands for None, if there is one.
      choices: The allowed words, if there are no others worth a proposal.
    """

    read: Callable[[str], Any]
    metavar: str
    none_word: str | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option.

    Attributes:
      field: The name of its field.
      help: The text of --help, without the default. None hides the option.
      value: Its allowed values; None for an option that is counted, such as -vv.
      shown_default: What --help says of the default; "" says nothing.
      bare: The value of the option's name alone, if it may stand alone: --dry-run.
      example: A value, for the message that a required option is missing.
      is_exported: True if --export-config writes it into the file.
      ignored: The reason why it has no effect, for an option of another program.
    """

    field: str
    names: tuple[str, ...]
    group: Group
    help: str | None
    value: Value | None
    default: Any = None
    shown_default: str = ""
    bare: Any = None
    is_list: bool = False
    example: str = ""
    is_exported: bool = True
    ignored: str = ""

    @property
    def long_name(self) -> str:
        """The first name that begins with two dashes."""
        return next(name for name in self.names if name.startswith("--"))

    @property
    def key(self) -> str:
        """The key in a config file."""
        return self.long_name[2:]

    @property
    def default_in_file(self) -> Any:
        """The default as --export-config writes it: None unless it is a plain value."""
        return self.default if self.shown_default == _shown(self.default) else None


@dataclass(frozen=True)
class Group:
    """A group of options in --help, with a title and perhaps a description."""

    title: str
    description: str | None = None
    is_last: bool = False


def _read_boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError(
            f"got {shown(text)}, allowed are yes, 1, true, no, 0 and false. Write yes or no."
        )
    return _BOOLEANS[text.lower()]


BOOLEAN = Value(_read_boolean, "BOOL", choices=("yes", "no"))


def option(
    value: Value | None,
    help: str | None,
    *names: str,
    default: Any = None,
    shown_default: str | None = None,
    group: Group | None = None,
    **more: Any,
) -> Any:
    """Returns a dataclass field that declares an option.

    Args:
      value: The allowed values.
      help: The text of --help.
      *names: The option's names. Without them the name follows from the field's: --stall-timeout
        of `stall_timeout_s`.
      default: The field's value without the option. With () or `dict`, the type, the option may be
        repeated. A field with an `example` has no default: the option is required.
      shown_default: What --help says of the default, if that is not `default` itself.
      group: The option's group in --help, by default the group of the field before it.
      **more: Further attributes of `Option`.
    """
    plain = None if default in (dict, ()) else default
    texts = {"help": help, "shown_default": _shown(plain)}
    if shown_default is not None:
        texts["shown_default"] = shown_default
    if default in (dict, ()):
        more["is_list"] = True
    declared = {"value": value, "names": names, "group": group, "default": plain, **texts, **more}
    metadata = {_METADATA: declared}
    if "example" in more:
        return dataclasses.field(metadata=metadata)
    if default is dict:
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def flag(help: str | None, **more: Any) -> Any:
    """Returns a dataclass field that declares an option for yes or no, which alone is a yes."""
    return option(BOOLEAN, help, bare=True, default=False, **more)


@cache
def options_of(options: type) -> Mapping[str, Option]:
    """Returns the options that the fields of a dataclass declare, by the names of the fields."""
    found = {}
    group = None
    for field in dataclasses.fields(options):
        if _METADATA in field.metadata:
            declared = dict(field.metadata[_METADATA])
            declared["names"] = declared["names"] or (_name_of(field.name),)
            group = declared["group"] = declared["group"] or group
            found[field.name] = Option(field=field.name, **declared)
    return found


def _name_of(field: str) -> str:
    return f"--{field.removesuffix('_s').replace('_', '-')}"


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    return f"{default:g}" if isinstance(default, int | float) else default or ""
