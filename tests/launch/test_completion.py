"""`tfdist completion`: what a real bash proposes, and wrong calls."""

import subprocess
from pathlib import Path

import pytest

from tfdist.launch.cli import main

_ASK = """
eval "$SCRIPT"
{ while IFS= read -r line; do
    COMP_WORDS=($line); [ "${line% }" = "$line" ] || COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
    _shtab_tfdist tfdist "${COMP_WORDS[COMP_CWORD]}"
    echo ${COMPREPLY[@]}
done; } 2>&1
"""


@pytest.mark.processes
def test_bash_proposes_commands_options_and_values(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["completion", "bash"]) == 0
    proposed = {
        "tfdist ": "run slurm kubernetes horovod doctor env logs status completion",
        "tfdist st": "status",
        "tfdist run --num-inst": "--num-instances",
        "tfdist run --engine ": "grpc horovod",
        "tfdist run --engine horovod --bind n": "numa none",
        "tfdist run --progress b": "bar",
        "tfdist slurm --part": "--partition",
        "tfdist kubernetes --ki": "--kind",
        "tfdist horovod install --d": "--dry-run",
        "tfdist completion z": "zsh",
    }
    done = subprocess.run(
        ["bash", "--norc", "-c", _ASK],
        env={"SCRIPT": capsys.readouterr().out, "PATH": "/usr/bin:/bin"},
        input="\n".join(proposed) + "\n",
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert dict(zip(proposed, done.stdout.splitlines(), strict=True)) == proposed


def test_scripts_of_other_shells_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in ((["zsh"], "#compdef tfdist"), (["tcsh"], "complete"), (["-h"], "~/.zshrc")):
        assert main(["completion", *words]) == 0
        assert said in capsys.readouterr().out


def test_fish_gets_each_command_option_and_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    lines = capsys.readouterr().out.splitlines()
    inside = "complete -c tfdist -n '__fish_seen_subcommand_from {}'"
    for line in (
        "complete -c tfdist -n __fish_use_subcommand -f -a status -d 'list the runs that",
        f"{inside.format('run')} -s n -o np -l num-instances -x -d 'worker processes'",
        f"{inside.format('run')} -l engine -x -a 'grpc horovod' -d 'what connects the workers:",
        f"{inside.format('run')} -l log-dir -xa '(__fish_complete_directories)' -d 'where each",
        f"{inside.format('run')} -l dry-run -d",
        f"{inside.format('run')} -l hostfile -rF -d",
        f"{inside.format('slurm')} -l partition -x -d",
        f"{inside.format('horovod')} -f -a install",
        f"{inside.format('completion')} -f -a 'bash zsh fish tcsh'",
    ):
        assert [one for one in lines if one.startswith(line)], line
    # In fish, too, a quotation mark inside of a word in such marks has a backslash before it.
    assert all((one.count("'") - one.count("\\'")) % 2 == 0 for one in lines)


@pytest.mark.parametrize("words", [[], ["nu"], ["bash", "zsh"]])
def test_another_shell_is_refused_with_those_that_work(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", *words]) == 2
    assert (
        "allowed is one shell: bash, zsh, fish and tcsh. For bash: eval" in capsys.readouterr().err
    )
