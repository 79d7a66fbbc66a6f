"""YAML files with options: --import-config and --export-config. What is wrong is a UsageError."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfdist.launch.errors import UsageError
from tfdist.launch.options.command_line import COMMAND, CommandLine
from tfdist.process.text import did_you_mean, shown

_MOST_CHARACTERS = 100_000
_KINDS = ("str", "seq", "map")  # YAML's names for words, lists and options
_ABOUT_FILES = {"--import-config", "--export-config", "--overwrite-config"}
_EXAMPLE = 'For example "num-instances: 2".'


def read_config(path: str, command_line: CommandLine) -> dict[str, Any]:
    """Reads options and an optional command from a file, as `command_line.parse` does from words.

    Keys are the options' long names without the dashes, and "command" for a list of words. "null"
    stands for the option's default.
    """
    words: list[str] = []
    command: list[str] = []
    try:
        for key, value in _load(path).items():
            if key == COMMAND:
                command = _command(value)
            else:
                words += _words(command_line, key, value)
        return command_line.parse([*words, "--", *command])
    except UsageError as error:
        raise UsageError(f"--import-config {shown(path)}: {error}") from None


def write_config(path: Path, config: Mapping[str, Any], *, may_overwrite: bool) -> None:
    """Writes options into the file that --export-config names."""
    import yaml  # takes 10 ms, so it is imported only when it is used

    text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
    try:
        with open(path, "w" if may_overwrite else "x", encoding="utf-8") as file:
            file.write(f"# Options of tfdist run: see tfdist run --help.\n{text}")
    except OSError as error:
        raise UsageError(
            f"--export-config {shown(str(path))} cannot be written: "
            f"{error.strerror}. Name a file in a folder that you may write to."
        ) from None


def check_export(path: str, may_overwrite: bool) -> None:
    """Checks that `write_config` can write the file, before any process is started."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        problem = "is a folder, and a file is needed. Name a file in it."
    elif os.path.lexists(path) and not may_overwrite:
        problem = (
            "is there already, and is not replaced. Name another file, or add "
            "--overwrite-config yes."
        )
    elif not os.path.isdir(folder):
        problem = f"is in a folder that does not exist. Make {shown(folder)} first."
    elif not os.access(folder, os.W_OK):
        problem = f"is in a folder that this user may not write to. Choose one beside {folder}."
    else:
        return
    raise UsageError(f"--export-config {shown(path)} {problem}")


def _load(path: str) -> Mapping[Any, Any]:
    import yaml  # takes 10 ms, so it is imported only when it is used

    class Loader(yaml.BaseLoader):
        """Keeps each value as text, as on the command line: no stays "no"."""

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            if not node.tag.startswith("tag:yaml.org,2002:") or node.tag[18:] not in _KINDS:
                raise UsageError(
                    f"it has the tag {shown(node.tag)}, plain words, lists and options are "
                    "allowed. Remove the tag."
                )
            return super().construct_object(node, deep=deep)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key_node, _ in node.value:
                key = self.construct_object(key_node, deep=True)
                if not isinstance(key, str):
                    raise UsageError(f"a key is no word. Keys are options' names. {_EXAMPLE}")
                if key in seen:
                    raise UsageError(
                        f"it has the key {shown(key)} twice, once is allowed. Remove one."
                    )
                seen.add(key)
            return super().construct_mapping(node, deep=deep)

    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise UsageError(  # A pipe would be read without a limit, once.
            "it is a pipe or a device, allowed is a regular file. Write the options to a file."
        )
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MOST_CHARACTERS + 1)
        if len(text) > _MOST_CHARACTERS:
            raise UsageError(
                f"it has more than {_MOST_CHARACTERS} characters, the most allowed. Name a file "
                "with options only."
            )
        config = yaml.load(text, Loader=Loader)
    except OSError as error:
        raise UsageError(
            f"it cannot be read: {error.strerror}. Name a YAML file, as --export-config writes it."
        ) from None
    except UsageError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UsageError(f"it is not YAML: {error.problem}{where}. {_EXAMPLE}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UsageError(f"it is not YAML text in UTF-8. {_EXAMPLE}") from None
    if not isinstance(config, dict):
        found = "nothing" if not config else f"a {type(config).__name__}"
        raise UsageError(f"it holds {found}, allowed are options with values. {_EXAMPLE}")
    return config


def _words(command_line: CommandLine, key: str, value: Any) -> list[str]:
    name = f"--{key}"
    if name not in command_line.names or name in _ABOUT_FILES:
        allowed = [name[2:] for name in command_line.names if name not in _ABOUT_FILES]
        raise UsageError(
            f"it has the unknown option {shown(key)}.{did_you_mean(key, [*allowed, COMMAND])} "
            f'Allowed are the long names of "{command_line.prog} --help", without dashes.'
        )
    option = command_line.names[name]
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str) for item in values):
        raise UsageError(f"{key} holds more than a word or a list of words. {_EXAMPLE}")
    if isinstance(value, list) and not option.is_list:
        raise UsageError(f"{key} holds a list of {len(values)} values, one is allowed. {_EXAMPLE}")
    if value == "null":
        return []
    if option.value is None:  # verbose
        if value not in ("0", "1", "2"):
            raise UsageError(f"{key} is {shown(value)}, allowed are 0, 1 and 2. Write 1.")
        return [name] * int(value)
    return [f"{name}={item}" for item in values]


def _command(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        found = shown(value) if isinstance(value, str) else "something else"
        raise UsageError(
            f"{COMMAND} must be a list of words, got {found}. For example [python, train.py]."
        )
    return value
