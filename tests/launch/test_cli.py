"""The command `tfdist`: its start, its sub-commands and its exit codes."""

import errno
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import requires, version
from pathlib import Path
from types import SimpleNamespace

import pytest

from tfdist.cluster import ClusterError
from tfdist.launch.cli import main
from tfdist.launch.errors import REQUIREMENTS, UsageError, missing_requirement
from tfdist.launch.options.run_options import RunOptions

Replace = Callable[[str, Callable[..., int]], None]


@pytest.fixture
def replace_command(monkeypatch: pytest.MonkeyPatch) -> Replace:
    """Puts another `main` in the place of a sub-command's."""

    def replace(name: str, main: Callable[..., int]) -> None:
        module = SimpleNamespace(main=main)
        home = "run.command" if name == "run" else name
        monkeypatch.setitem(sys.modules, f"tfdist.launch.{home}", module)

    return replace


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_names_the_commands(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    text = capsys.readouterr().out
    names = "run slurm kubernetes horovod doctor env logs status completion --version"
    assert all(f"  {name} " in text for name in names.split())


@pytest.mark.processes
def test_the_command_starts_without_heavy_packages() -> None:
    code = (
        "import sys; from tfdist.launch.cli import main; main(['--help'])\n"
        "heavy = {'tensorflow', 'numpy', 'rich', 'yaml', 'psutil', 'asyncio', 'kubernetes'}\n"
        "sys.exit(f'imported: {heavy & set(sys.modules)}' if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.processes
def test_python_m_tfdist_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tfdist", "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"tfdist {version('tfdist')}\n")


@pytest.mark.parametrize(
    "words", [["--version-format", "json"], ["--version", "--version-format=json"]]
)
def test_versions_as_json(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    versions = json.loads(capsys.readouterr().out)
    assert versions["tfdist"] == version("tfdist")
    assert versions["tensorflow"] == version("tensorflow")
    assert versions.keys() == {"tfdist", "python", "tensorflow", "horovod", "openmpi"}


def test_run_gets_its_options_and_its_code_is_passed_on(replace_command: Replace) -> None:
    seen: list[RunOptions] = []

    def run(options: RunOptions) -> int:
        seen.append(options)
        return 7

    replace_command("run", run)
    assert main(["run", "--num-instances", "2", "sleep", "1"]) == 7
    assert seen[0].num_instances == 2
    assert seen[0].command == ("sleep", "1")


def test_run_writes_the_config_before_it_starts(replace_command: Replace, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    replace_command("run", lambda options: int(not file.exists()))
    assert main(["run", "--export-config", str(file), "sleep", "1"]) == 0


@pytest.mark.parametrize("name", ["slurm", "kubernetes", "horovod", "doctor"])
def test_other_commands_get_their_arguments(name: str, replace_command: Replace) -> None:
    def command(words: Sequence[str]) -> int:
        return int(words[1])

    replace_command(name, command)
    assert main([name, "--deep", "5"]) == 5


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UsageError("the ports are taken"), 2, "tfdist run: error: the ports are taken\n"),
        (ClusterError("the ports are taken"), 2, "tfdist run: error: the ports are taken\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_a_refusal_is_one_line_and_ctrl_c_none(
    error: BaseException,
    code: int,
    said: str,
    replace_command: Replace,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(options: RunOptions) -> int:
        raise error

    replace_command("run", run)
    assert main(["run", "sleep", "1"]) == code
    assert capsys.readouterr() == ("", said)


@pytest.mark.processes
@pytest.mark.parametrize(
    "words", [["run", "--dry-run", "--", "cat"], ["run", "--help"], ["completion", "bash"]]
)
def test_a_stdout_that_cannot_be_written_gives_no_stack(words: list[str]) -> None:
    reader, closed = os.pipe()
    os.close(reader)
    full = os.open("/dev/full", os.O_WRONLY)
    ends = []
    for stdout in (closed, full):
        command = [sys.executable, "-m", "tfdist", *words]
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True)
        ends.append((done.returncode, done.stderr))
        os.close(stdout)
    why = "tfdist: stdout cannot be written: No space left on device\n"
    assert ends == [(141, ""), (1, why)]


@pytest.mark.usefixtures("capfd")  # With it stdout is a file.
def test_a_broken_pipe_that_is_not_stdout_is_an_error_like_any_other(
    replace_command: Replace,
) -> None:
    def run(options: RunOptions) -> int:
        raise BrokenPipeError(errno.EPIPE, "of another program")

    replace_command("run", run)
    with pytest.raises(BrokenPipeError):
        main(["run", "sleep", "1"])


@pytest.mark.parametrize("name", ["run", "slurm", "kubernetes", "horovod", "doctor"])
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: tfdist {name} ")


# A package that is not installed, by its name, is one whose import finds nothing.
_WITHOUT = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @staticmethod
    def find_spec(name, path=None, target=None):
        is_there = name.partition(".")[0] not in {names}
        return PathFinder.find_spec(name, path, target) if is_there else None

sys.meta_path[:] = [Without if one is PathFinder else one for one in sys.meta_path]
from tfdist.launch.cli import main
sys.exit(main({words}))
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "names", "requirements"),
    [
        (["doctor"], ["rich"], ["rich>=13.7"]),
        (["env"], ["rich", "psutil", "packaging"], ["packaging>=23", "psutil>=5.9", "rich>=13.7"]),
        (["run", "sleep", "1"], ["rich"], ["rich>=13.7"]),
        (["run", "sleep", "1"], ["psutil"], ["psutil>=5.9"]),
        (["run", "--import-config", "run.yaml"], ["yaml"], ["pyyaml>=6"]),
        (["kubernetes", *["--name", "a", "--image", "b", "sleep"]], ["yaml"], ["pyyaml>=6"]),
        (["completion", "bash"], ["shtab"], ["shtab>=1.7"]),
        (["logs"], ["rich"], ["rich>=13.7"]),
    ],
)
def test_a_command_without_a_package_that_it_needs_says_so_in_one_line(
    words: list[str], names: list[str], requirements: list[str], tmp_path: Path
) -> None:
    (tmp_path / "run.yaml").write_text("engine: grpc")
    code = _WITHOUT.format(names=set(names), words=words)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith(f"tfdist {words[0]}: error: No module named '")
    install = shlex.join([sys.executable, "-m", "pip", "install", *requirements])
    assert done.stderr.endswith(f", which tfdist needs. Run: {install}\n")


def test_what_the_launching_side_needs_is_what_the_package_asks_for() -> None:
    requested = requires("tfdist") or []
    assert set(REQUIREMENTS.values()) <= {one.replace(" ", "") for one in requested}
    other = ModuleNotFoundError("No module named 'tfdist.launch.gone'", name="tfdist.launch.gone")
    assert missing_requirement(other) is None
