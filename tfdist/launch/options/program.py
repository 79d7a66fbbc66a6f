"""The command that every worker runs, and the checks of it before any process is started."""

from __future__ import annotations

import difflib
import importlib.machinery
import os
import re
import shutil
import sys
from collections.abc import Sequence

from tfdist.launch.errors import UsageError
from tfdist.process.text import shown

# How much of its name, without the ending, a file shares with the one that is proposed for it.
_NEAR = 0.75


def program_command(
    words: Sequence[str], path: str | None, *, prog: str = "tfdist run"
) -> tuple[str, ...]:
    """Returns the command of the workers; a .py file and "-m MODULE" are run by this Python.

    Programs are searched in `path`, the value of the variable PATH. It raises a UsageError if there
    is no such program, file or module on this machine. `prog` is the command that the user called.
    """
    example = f"For example: {prog} --num-instances 2 -- python train.py"
    if not words or not words[0]:
        raise UsageError(f"got no command to run. Write one after the options. {example}")
    program = words[0]
    if program == "-m":
        _check_module(words[1:], example)
        return (sys.executable, *words)
    if program.startswith("-"):
        raise UsageError(
            f"the command begins with {shown(program)}; a program, a .py file or -m MODULE may "
            f"stand there. Put options of {prog} before the --. {example}"
        )
    if program.endswith(".py"):
        _check_script(program)
        return (sys.executable, *words)
    _check_program(program, path, example)
    if re.fullmatch(r"python[0-9.]*", os.path.basename(program)) and len(words) > 1:
        if words[1] == "-m":
            return tuple(words)  # the modules of that Python may differ from this one's
        if words[1].endswith(".py"):
            _check_script(words[1])
    return tuple(words)


def _check_script(script: str) -> None:
    if os.path.isdir(script):
        raise UsageError(
            f"the program {shown(script)} is a folder, and a .py file is needed. Name the file in "
            "it that trains."
        )
    if not os.path.isfile(script):
        raise UsageError(
            f"there is no file {shown(script)} in {os.getcwd()}.{_near_file(script)} A program is "
            "named by its path from here: correct it, or change to its folder."
        )
    if not os.access(script, os.R_OK):
        raise UsageError(
            f"the program {shown(script)} may not be read by this user. Allow it with chmod +r."
        )


def _check_module(words: Sequence[str], example: str) -> None:
    if not words:
        raise UsageError(f"-m needs the name of a module, got nothing. {example}")
    name = words[0]
    if not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(
            f"-m {shown(name)} is not a module's name: letters, digits, _ and dots are allowed. "
            "Write for example -m package.train."
        )
    # Searched as by `python -m`: in this folder first, then among the installed modules.
    top = name.partition(".")[0]
    is_built_in = top in sys.builtin_module_names or top in sys.stdlib_module_names
    if not is_built_in and not importlib.machinery.PathFinder.find_spec(top, ["", *sys.path]):
        raise UsageError(
            f"there is no module {shown(top)} in {os.getcwd()} or installed for {sys.executable}. "
            "Correct the name, install it, or change to the folder that holds it."
        )


def _check_program(program: str, path: str | None, example: str) -> None:
    if shutil.which(program, path=path):
        return
    if os.path.isdir(program):
        raise UsageError(
            f"the program {shown(program)} is a folder, and a file is needed. Name the program "
            "in it."
        )
    if os.path.isfile(program):
        place = program if os.sep in program else f".{os.sep}{program}"
        if os.access(program, os.X_OK):
            raise UsageError(
                f"the program {shown(program)} is in this folder, which is not on PATH. "
                f"Write {place}."
            )
        raise UsageError(
            f"the program {shown(program)} is not executable. Allow it with chmod +x {place}, or "
            "put its interpreter before it."
        )
    where = f"in {os.getcwd()}" if os.sep in program else "on PATH"
    raise UsageError(
        f"there is no program {shown(program)} {where}. Correct the name, or give the path of the "
        f"program. {example}"
    )


def _near_file(script: str) -> str:
    folder, name = os.path.split(script)
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return f" There is no folder {shown(folder)}." if folder else ""
    stems = [
        program_name.removesuffix(".py") for program_name in names if program_name.endswith(".py")
    ]
    near = difflib.get_close_matches(name.removesuffix(".py"), stems, n=1, cutoff=_NEAR)
    return f' Did you mean "{os.path.join(folder, near[0])}.py"?' if near else ""
