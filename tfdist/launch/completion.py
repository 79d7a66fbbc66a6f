"""The command `tfdist completion`: a script by which a shell completes the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfdist.launch.doctor.command import DOCTOR
from tfdist.launch.errors import UsageError
from tfdist.launch.horovod.command import HOROVOD
from tfdist.launch.kubernetes.job_options import KUBERNETES
from tfdist.launch.logs import LOGS, STATUS
from tfdist.launch.options.command_line import COMMAND, CommandLine
from tfdist.launch.options.declaration import Option
from tfdist.launch.options.run_options import RUN
from tfdist.launch.slurm.slurm_options import SLURM
from tfdist.process.text import listed, shown

SHELLS = ("bash", "zsh", "fish", "tcsh")
_HELP = """\
usage: tfdist completion {bash,zsh,fish,tcsh}

Prints a script by which the shell completes commands, options and their values. Put into
the shell's start file:

  bash, in ~/.bashrc:   eval "$(tfdist completion bash)"
  zsh, in ~/.zshrc:     eval "$(tfdist completion zsh)"
  fish, in config.fish: tfdist completion fish | source
  tcsh, in ~/.tcshrc:   tfdist completion tcsh > ~/.tfdist.tcsh; source ~/.tfdist.tcsh"""
_LINES = {
    "run": RUN,
    "slurm": SLURM,
    "kubernetes": KUBERNETES,
    "doctor": DOCTOR,
    "env": DOCTOR,
    "logs": LOGS,
    "status": STATUS,
}


def completion(words: Sequence[str], summaries: Mapping[str, str]) -> str:
    """Returns what `tfdist completion` prints; a UsageError if the words are not one shell."""
    if list(words) in (["-h"], ["--help"]):
        return _HELP
    if len(words) != 1 or words[0] not in SHELLS:
        found = shown(" ".join(words)) if words else "nothing"
        raise UsageError(
            f"got {found}, allowed is one shell: {listed(SHELLS)}. "
            'For bash: eval "$(tfdist completion bash)"'
        )
    if words[0] == "fish":
        return "\n".join(_fish_lines(summaries))
    import shtab

    return shtab.complete(_parser(summaries), words[0])


def _parser(summaries: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tfdist")
    parser.add_argument("--version", action="store_true", help="show the version")
    commands = parser.add_subparsers()
    for name, summary in summaries.items():
        command = commands.add_parser(name, help=summary)
        if name == "horovod":
            install = command.add_subparsers().add_parser("install", help="build and install it")
            _declare(HOROVOD, install)
        elif name == "completion":
            command.add_argument("shell", choices=SHELLS)
        else:
            _declare(_LINES[name], command)
    return parser


def _declare(line: CommandLine, parser: argparse.ArgumentParser) -> None:
    import shtab

    kinds: dict[str, Any] = {"FILE": shtab.FILE, "FOLDER": shtab.DIRECTORY}
    for action in line.declare(parser):
        kind = shtab.FILE if action.dest == COMMAND else kinds.get(str(action.metavar).lstrip("="))
        if kind is not None:
            action.complete = kind


def _fish_lines(summaries: Mapping[str, str]) -> Iterator[str]:
    """Yields the lines of the script for fish, which shtab does not know."""
    for name, summary in summaries.items():
        yield f"complete -c tfdist -n __fish_use_subcommand -f -a {name} -d {_in_fish(summary)}"
        inside = f"complete -c tfdist -n '__fish_seen_subcommand_from {name}'"
        if name == "completion":
            yield f"{inside} -f -a {_in_fish(' '.join(SHELLS))}"
        elif name == "horovod":
            yield f"{inside} -f -a install"
        line = {**_LINES, "horovod": HOROVOD}.get(name)
        for option in line.declared if line is not None else ():
            if option.help is not None:
                yield f"{inside} {_fish_option(option)}"


def _fish_option(option: Option) -> str:
    words = []
    for name in option.names:
        kind = "-l" if name.startswith("--") else "-o" if len(name) > 2 else "-s"
        words.append(f"{kind} {name.lstrip('-')}")
    if option.value is not None and option.bare is None:
        files = {"FILE": "-rF", "FOLDER": "-xa '(__fish_complete_directories)'"}
        words.append(files.get(option.value.metavar, "-x"))
        if option.value.choices:
            words.append(f"-a {_in_fish(' '.join(option.value.choices))}")
    return " ".join([*words, f"-d {_in_fish(option.help or '')}"])


def _in_fish(text: str) -> str:
    """Returns a text as one word of fish."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", " ")
    return f"'{escaped}'"
