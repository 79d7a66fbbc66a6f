"""What -v and --dry-run print: lines that start the workers when they are pasted into a shell."""

import subprocess
import sys
from pathlib import Path

from tfdist.launch.options.hosts import Host
from tfdist.launch.plan import Plan, WorkerPlan
from tfdist.launch.run.description import command_lines, command_text


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


def test_equal_variables_are_said_once() -> None:
    plan = make_plan({"B": "2", "A": "1", "INDEX": "0"}, {"A": "1", "B": "2", "INDEX": "1"})
    assert command_lines(plan) == [
        "# workers 0 and 1",
        "export A=1 B=2",
        "# worker 0 on localhost, log: logs/worker-0.txt",
        "INDEX=0 train",
        "# worker 1 on localhost, log: logs/worker-1.txt",
        "INDEX=1 train",
    ]


def test_the_evaluator_comes_first_and_gets_nothing_that_is_exported() -> None:
    plan = make_plan({"A": "1", "N": "0"}, {"A": "1", "N": "1"}, {"A": "1"})
    evaluator = WorkerPlan(
        **{**vars(plan.workers[2]), "name": "evaluator", "replicas": range(0), "host": "node1"}
    )
    plan = Plan(engine="grpc", hosts=plan.hosts, workers=(*plan.workers[:2], evaluator))
    assert command_lines(plan)[:4] == [
        "# evaluator on node1, log: logs/worker-2.txt",
        "A=1 train",
        "# workers 0 and 1",
        "export A=1",
    ]


def test_a_shell_runs_what_is_printed(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['COMMON'], os.environ['OWN'], sys.argv[1:])"
    common = 'it\'s "both" $HOME `x` \\ \n end'
    plan = make_plan(
        {"COMMON": common, "OWN": '{"index": 0}'},
        {"COMMON": common, "OWN": '{"index": 1}'},
        command=(sys.executable, "-c", code, "a b", "*", "", "$x"),
    )
    done = subprocess.run(
        ["sh"], input="\n".join(command_lines(plan)), text=True, capture_output=True, cwd=tmp_path
    )
    arguments = ["a b", "*", "", "$x"]
    assert done.stderr == ""
    assert done.stdout == "".join(
        f'{common} {{"index": {index}}} {arguments}\n' for index in range(2)
    )


def test_secrets_are_hidden() -> None:
    names = ("HF_TOKEN", "my_secret", "DB_PASSWORD", "WANDB_API_KEY", "GOOGLE_CREDENTIALS")
    plan = make_plan(
        dict.fromkeys(names, "hush"),
        command=("train", "--api-key", "hush", "--hf_token=hush", "--password=hush", "--x=1"),
    )
    lines = command_lines(plan)
    assert "hush" not in "\n".join(lines)
    assert lines[1].endswith(" train --api-key *** --hf_token=*** --password=*** --x=1")
    assert "WANDB_API_KEY=*** " in lines[1]
    assert lines[-1] == "# *** stands for a secret"


def test_ordinary_options_with_similar_names_are_shown() -> None:
    command = ("train", "--tokenizer", "bert", "--max-tokens=5", "--key-metric", "loss")
    assert command_text(command) == " ".join(command)
