"""Options of a program: declared once, as fields of a frozen dataclass, and given in three places.

    default of the field  <  preset of a YAML file  <  command line

    @dataclass(frozen=True, kw_only=True)
    class Settings:
        config: str | None = option(None, str, "preset")
        batch_size: int = option(32, COUNT, "images in a micro-batch")
        dry_run: bool = option(False, boolean, "print the plan, and start nothing")

    settings, notes = parse(Settings, sys.argv[1:], presets=Path("configs.yml"))

Nothing here imports TensorFlow, whose import takes seconds: what is wrong is said at once.
"""

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import Field, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import yaml

S = TypeVar("S")

# Bits of computation and of weights -> the name in tfdist.estimator.DeviceConfig.
PRECISIONS = {
    "32.32": "float32",
    "16.32": "mixed_float16",
    "16.16": "float16",
    "bf16.32": "mixed_bfloat16",
    "bf16.16": "bfloat16",
}


class UsageError(ValueError):
    """Settings that cannot be used: one or two lines with the value, what is allowed, the fix."""


class DataError(UsageError):
    """Data that are missing or cannot be used; the message is one line with the fix."""


@contextmanager
def refusals(*kinds: type[Exception]) -> Iterator[None]:
    """Ends the program with exit code 2 and one or two lines where it cannot go on.

    So it does after a `UsageError`, and after the `kinds` of errors whose text says all.
    """
    try:
        yield
    except (UsageError, *kinds) as error:
        refuse(error)
    except Exception as error:
        # TensorFlow makes an error of its own of one that an input function has raised.
        found = re.search(rf"\b{DataError.__name__}: (.+)", str(error))
        if found is None or not type(error).__module__.startswith("tensorflow."):
            raise
        refuse(found[1])


def refuse(error: Exception | str) -> NoReturn:
    """Ends the program with exit code 2 and the error's lines."""
    print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
    raise SystemExit(2)


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns a sentence with the known name that looks like an unknown one, or nothing."""
    by_lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return f" Did you mean {by_lower[found[0]]}?" if found else ""


def option(
    default: Any, kind: Callable[[str], Any], text: str, *aliases: str, nargs: str | None = None
) -> Any:
    """Returns the field of an option.

    `kind` converts the text of the command line; an ArgumentTypeError says what is allowed. The
    text is that of --help, and `nargs` as in argparse: "+" for a default that is a tuple.
    """
    several = {"nargs": nargs or ("+" if isinstance(default, tuple) else None)}
    return field(default=default, metadata={"kind": kind, "text": text, "names": aliases} | several)


def number(
    kind: type, allowed: str, *, least: float = float("-inf"), most: float = float("inf"),
    above: float = float("-inf"), below: float = float("inf"),
) -> Callable[[str], Any]:  # fmt: skip
    """Makes the kind of an option: a number within limits, which `allowed` describes."""

    def read(text: str) -> Any:
        try:
            value = kind(text)
            if least <= value <= most and above < value < below:
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"{text!r} is not {allowed}")

    return read


COUNT = number(int, "an integer of at least 1", least=1)
COUNT_OR_0 = number(int, "an integer of at least 0", least=0)
NOT_NEGATIVE = number(float, "a number of at least 0", least=0)
POSITIVE = number(float, "a number above 0", above=0)
SHARE = number(float, "a number from 0 to 1", least=0, most=1)
DROPOUT = number(float, "a number from 0 to below 1", least=0, below=1)


def boolean(text: str) -> bool:
    word = text.lower()
    if word not in ("true", "t", "yes", "y", "1", "false", "f", "no", "n", "0"):
        raise argparse.ArgumentTypeError(f"{text!r} is not true or false")
    return word in ("true", "t", "yes", "y", "1")


def one_of(*allowed: Any) -> Callable[[str], Any]:
    """Makes the kind of an option: one of some words or numbers, in any case."""
    by_text = {str(value).lower(): value for value in allowed}

    def read(text: str) -> Any:
        if text.lower() not in by_text:
            known = [str(value) for value in allowed]
            raise argparse.ArgumentTypeError(
                f"{text!r} is not one of {', '.join(known)}.{nearest(text, known)}"
            )
        return by_text[text.lower()]

    read.__name__ = "|".join(map(str, allowed))  # For --help.
    return read


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message.removeprefix("argument "))


def _flags(one: Field[Any]) -> list[str]:
    """Returns the names of an option with their dashes, its own first."""
    return [f"--{name.replace('_', '-')}" for name in (one.name, *one.metadata["names"])]


def _make_parser(settings: type, without_effect: Mapping[str, str]) -> _Parser:
    parser = _Parser(
        usage="%(prog)s [options]", argument_default=argparse.SUPPRESS, allow_abbrev=False
    )
    for one in fields(settings):
        kind, text, default = one.metadata["kind"], one.metadata["text"], one.default
        if default not in (None, (), "", False):
            shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
            text += f" (default: {shown})".replace("%", "%%")
        how: dict[str, Any] = {"nargs": one.metadata["nargs"], "metavar": "X", "type": kind}
        if kind is boolean:
            how |= {"nargs": "?", "const": True, "metavar": "true|false"}
        elif "|" in getattr(kind, "__name__", ""):
            how["metavar"] = kind.__name__
        parser.add_argument(*_flags(one), dest=one.name, help=text, **how)
    for name in without_effect:
        parser.add_argument(f"--{name}", nargs="*", help=argparse.SUPPRESS)
    return parser


def _read(parser: _Parser, settings: type, argv: Sequence[str]) -> dict[str, Any]:
    """Returns the options that a command line gives."""
    known, unknown = parser.parse_known_args(list(argv))
    if unknown:
        name = unknown[0].partition("=")[0]
        flags = [_flags(one)[0] for one in fields(settings)]
        raise UsageError(f"unknown option {name}.{nearest(name, flags)} --help lists all.")
    return {k: tuple(v) if isinstance(v, list) else v for k, v in vars(known).items()}


def parse(
    settings: type[S],
    argv: Sequence[str],
    *,
    presets: Path | None = None,
    without_effect: Mapping[str, str] | None = None,
    alternatives: Sequence[tuple[str, str]] = (),
) -> tuple[S, dict[str, Any], list[str]]:
    """Reads a command line.

    Args:
      settings: The dataclass of the options. With presets it has an option `config`, whose default
        is the preset that is taken without it.
      argv: The command line.
      presets: The YAML file of the presets: option names, with dashes or underscores, to values.
      without_effect: Names of options that are accepted, with the reason why they do nothing.
      alternatives: Pairs of options of which one may be given. The command line's takes the place
        of the preset's other one.

    Returns:
      The settings, the options of the command line, and a line for each one without effect.

    Raises:
      UsageError: If an option or a preset is unknown, or a value is not allowed.
    """
    without_effect = without_effect or {}
    parser = _make_parser(settings, without_effect)
    given = _read(parser, settings, argv)
    of_preset: dict[str, Any] = {}
    if presets is not None and (name := given.get("config", settings.config)) is not None:
        of_preset = _read(
            parser, settings, _as_command_line(name, presets, settings, without_effect)
        )
    for pair in alternatives:
        for chosen in (given, of_preset):
            if set(pair) <= set(chosen):
                first, second = (f"--{one.replace('_', '-')}" for one in pair)
                raise UsageError(f"{first} and {second} contradict each other: give one of them")
        if given.keys() & set(pair):
            of_preset = {key: value for key, value in of_preset.items() if key not in pair}
    values = {**of_preset, **given}
    notes = [
        f"--{one} has no effect here: {reason}."
        for one, reason in without_effect.items()
        if values.pop(one.replace("-", "_"), None) is not None
    ]
    return settings(**values), given, notes


def load_presets(file: Path) -> dict[str, dict[str, Any]]:
    """Returns all presets, by name; `defaults` is what others begin with."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # C code, where PyYAML has it.
    found = yaml.load(file.read_text(encoding="utf-8"), loader)
    return {name: values for name, values in found.items() if name != "defaults"}


def _as_command_line(
    name: str, file: Path, settings: type, without_effect: Iterable[str]
) -> list[str]:
    """Returns a preset as a command line, so that its values are checked in the same way."""
    presets = load_presets(file)
    if name not in presets:
        hint = nearest(name, presets)
        raise UsageError(f"{file.name} has no preset {name!r}.{hint} It has: {', '.join(presets)}.")
    argv: list[str] = []
    known = [*without_effect, *(flag[2:] for one in fields(settings) for flag in _flags(one))]
    for key, value in presets[name].items():
        flag = key.replace("_", "-")
        if flag not in known:
            raise UsageError(f"preset {name} has an unknown key {key!r}.{nearest(flag, known)}")
        argv += [f"--{flag}", *map(str, value if isinstance(value, list) else [value])]
    return argv


def check_folder(name: str, folder: str | os.PathLike[str] | None) -> None:
    """Refuses a folder that can be neither written nor made; `name` is its option."""
    if not folder or "://" in str(folder):
        return
    path = Path(folder).absolute()
    existing = next(one for one in (path, *path.parents) if one.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(
            f"--{name} {folder} cannot be written: {existing} is not a writable folder. Choose "
            f"another --{name}."
        )


def check_package(module: str, extra: str) -> None:
    """Refuses to go on without a package, and names the command that installs it."""
    if find_spec(module) is None:
        raise UsageError(f"{module} is not installed. Run: pip install 'tfdist[{extra}]'")
