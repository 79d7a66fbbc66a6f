"""The Dockerfile of README's environment: its parts, since no image is built here."""

import re
import shlex
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from tfdist.launch.options.run_command_line import parse_run_options

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "examples" / "containers" / "Dockerfile").read_text()
README, PROJECT = ((ROOT / name).read_text() for name in ("README.md", "pyproject.toml"))


@pytest.mark.processes
def test_the_linter_of_dockerfiles_and_of_their_shell_commands_accepts_it() -> None:
    linted = subprocess.run(["hadolint", "-"], input=TEXT, capture_output=True, text=True)
    assert (linted.returncode, linted.stdout) == (0, "")


def test_it_installs_what_readme_does_and_copies_what_a_clone_has() -> None:
    for command in ('pip install ".[horovod,examples]"', "tfdist horovod install"):
        assert f"\n{command}\n" in README
        assert command.removeprefix("pip install ") in TEXT
    copied = re.findall(r"^COPY (?!--from)(?:--\S+ )?(.*) \S+$", TEXT, re.M)
    paths = [path for line in copied for path in line.split()]
    assert len(paths) == 7
    assert [path for path in paths if not (ROOT / path).exists()] == []
    # The build backend reads the files that pyproject.toml names, and its hook the README.
    named = re.findall(r"^(?:path|license-files) = \W*([\w./]+)", PROJECT, re.M)
    assert len(named) == 2 and {*named, "README.md"} <= {*paths}
    assert {"horovod", "examples"} <= {*metadata.metadata("tfdist").get_all("Provides-Extra", [])}


def test_its_first_lines_name_arguments_options_and_programs_that_exist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    arguments = re.findall(r"^ARG (\w+)=", TEXT, re.M)
    assert [name for name in re.findall(r"--build-arg (\w+)=", TEXT) if name not in arguments] == []
    runs = re.findall(r"^#   docker run .* tfdist tfdist run (.*)$", TEXT, re.M)
    engines = [parse_run_options(shlex.split(words)).engine for words in runs]
    assert engines == ["grpc", "horovod"]
    assert f"--file {Path('examples/containers/Dockerfile')} " in TEXT
    python = re.findall(r"^ARG PYTHON=(.*)$", TEXT, re.M)
    assert python == ["3.12"] and f"Python :: {python[0]}" in PROJECT
