"""The output of -v and --dry-run: lines that start the workers when pasted into a shell."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tfdist.launch.cli import main
from tfdist.launch.options.hosts import Host
from tfdist.launch.options.run_command_line import parse_run_options
from tfdist.launch.run.description import command_lines, command_text, description
from tfdist.launch.workers.plan import Plan, WorkerPlan

ROOT = Path(__file__).parents[3]


def make_plan(*environments: dict[str, str], command: tuple[str, ...] = ("train",)) -> Plan:
    workers = tuple(
        WorkerPlan(
            index=index,
            name=f"worker {index}",
            host="localhost",
            replicas=range(index, index + 1),
            devices_per_replica=1,
            cores=None,
            command=command,
            environment=environment,
            log_path=Path(f"logs/worker-{index}.txt"),
        )
        for index, environment in enumerate(environments)
    )
    return Plan(engine="grpc", hosts=(Host(name="localhost"),), workers=workers)


def test_equal_variables_are_printed_once() -> None:
    plan = make_plan({"B": "2", "A": "1", "INDEX": "0"}, {"A": "1", "B": "2", "INDEX": "1"})
    assert command_lines(plan) == [
        "# workers 0 and 1",
        "export A=1 B=2",
        "# worker 0 on localhost, log: logs/worker-0.txt",
        "INDEX=0 train",
        "# worker 1 on localhost, log: logs/worker-1.txt",
        "INDEX=1 train",
    ]


def test_the_sizes_with_which_a_run_may_go_on_are_shown() -> None:
    size = ["--num-instances", "4", "--min-instances", "2", "--max-restarts", "1"]
    *_, last = description(parse_run_options([*size, "cat"]), make_plan({}), verbosity=0)
    assert last.startswith("smaller sizes: 3 to 2 instances")
    *_, last = description(parse_run_options(["cat"]), make_plan({}), verbosity=0)
    assert "smaller sizes" not in last


def test_the_evaluator_comes_first_and_gets_nothing_that_is_exported() -> None:
    plan = make_plan({"A": "1", "N": "0"}, {"A": "1", "N": "1"}, {"A": "1"})
    evaluator = replace(plan.workers[2], name="evaluator", replicas=range(0), host="node1")
    plan = replace(plan, workers=(*plan.workers[:2], evaluator))
    assert command_lines(plan)[:4] == [
        "# evaluator on node1, log: logs/worker-2.txt",
        "A=1 train",
        "# workers 0 and 1",
        "export A=1",
    ]


SHOW = "import os, sys; print([*sys.argv[1:], os.environ['X']])"
BREAK_INS = (
    "",
    'it\'s "both" $HOME `x` \\ \n * end',
    "--$(touch broken-in)-token=x",
    "$(touch broken-in)***",
    "`touch broken-in`",
    "***",
    "; touch broken-in",
    "a\ntouch broken-in",
    "'; touch broken-in; '",
)


@pytest.mark.processes
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_nothing_in_a_word_or_value_is_run_when_the_lines_are_pasted(
    shell: str, tmp_path: Path
) -> None:
    for word in BREAK_INS:
        words = ("--password", word, word)
        plan = make_plan({"X": word, "A_TOKEN": word}, command=(sys.executable, "-c", SHOW, *words))
        worker = replace(plan.workers[0], log_path=Path(f"logs{word}/worker-0.log"))
        lines = command_lines(replace(plan, workers=(worker,)))
        done = subprocess.run(
            [shell], input="\n".join(lines), text=True, capture_output=True, cwd=tmp_path
        )
        last = word.replace("-token=x", "-token=***")
        assert (done.stdout, done.stderr) == (f"{['--password', '***', last, word]}\n", "")
        assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_a_whole_dry_run_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    evil = "$(touch broken-in)\ntouch broken-in"
    options = [f"--env={name}={evil}" for name in ("X", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")]
    options += [f"--log-dir={evil}", "--num-instances=2", "--dry-run"]
    assert main(["run", *options, "--", sys.executable, "-c", SHOW, evil]) == 0
    # An interactive shell goes on after a line that it cannot read, such as a row of the table.
    done = subprocess.run(
        ["bash", "--norc", "-i"],
        input=capsys.readouterr().out,
        text=True,
        capture_output=True,
        env={**os.environ, "HISTFILE": ""},
        start_new_session=True,
    )
    assert done.stdout.count(f"{[evil, evil]}\n") == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_words_that_are_not_utf_8_are_printed_as_they_are(tmp_path: Path) -> None:
    word = b"caf\xe9"
    for command in (["run", "--print-topology", "no"], ["slurm"]):
        done = subprocess.run(
            [sys.executable, "-m", "tfdist", *command, "--dry-run", "--", "echo", word],
            env={**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith(b"echo '" + word + b"'\n")


def test_secrets_are_hidden_and_ordinary_options_with_similar_names_are_not() -> None:
    names = ("HF_TOKEN", "my_secret", "DB_PASSWORD", "WANDB_API_KEY", "GOOGLE_CREDENTIALS")
    plan = make_plan(
        dict.fromkeys(names, "hush"),
        command=("train", "--api-key", "hush", "--hf_token=hush", "--password=hush", "--x=1"),
    )
    lines = command_lines(plan)
    assert "hush" not in "\n".join(lines)
    assert lines[1].endswith(" train --api-key '***' '--hf_token=***' '--password=***' --x=1")
    assert "WANDB_API_KEY='***' " in lines[1]
    assert lines[-1] == "# *** stands for a secret"
    ordinary = ("train", "--tokenizer", "bert", "--max-tokens=5", "--key-metric", "loss")
    assert command_text(ordinary) == " ".join(ordinary)
