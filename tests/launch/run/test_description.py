"""The topology, and the commands of -v and --dry-run, which start the workers in any shell."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tfdist.launch.cli import main
from tfdist.launch.machine.cores_and_gpus import Share
from tfdist.launch.options.hosts import Host
from tfdist.launch.options.run_command_line import parse_run_options
from tfdist.launch.run.description import (
    command_lines,
    command_text,
    description,
    topology_table,
    topology_text,
)
from tfdist.launch.workers.plan import Plan, WorkerPlan
from tfdist.launch.workers.plan import make_plan as make_plan_of_run

ROOT = Path(__file__).parents[3]


def make_plan(
    *,
    hosts: tuple[str, ...] = ("localhost",),
    instances: int = 1,
    replicas: int = 1,
    num_ilds: int | None = None,
    evaluator: bool = False,
    cores: int = 0,
    unused_hosts: tuple[str, ...] = (),
    **facts: Any,
) -> Plan:
    """Returns a plan with this many instances per host, and replicas per instance."""

    def plan_of(index: int) -> WorkerPlan:
        first_core, is_training = index % instances * cores, index < instances * len(hosts)
        known: dict[str, Any] = {
            "name": f"worker {index}" if is_training else "evaluator",
            "host": hosts[index // instances if is_training else 0],
            "replicas": range(index * replicas, (index + 1) * replicas if is_training else 0),
            "devices_per_replica": 2,
            "cores": tuple(range(first_core, first_core + cores)) or None,
            "command": ("python", "train.py"),
            "environment": {},
            "log_path": Path(f"logs/worker-{index}.txt"),
        }
        return WorkerPlan(index=index, **{**known, **facts})

    return Plan(
        engine="grpc",
        hosts=tuple(Host(name=name) for name in hosts + unused_hosts),
        workers=tuple(plan_of(index) for index in range(instances * len(hosts) + evaluator)),
        num_ilds=num_ilds,
    )


# The topology.

SIXTEEN_REPLICAS = """\
 ===========================================================================================
|                                      tfdist topology                                      |
|===========================================================================================|
| hosts     |                                   localhost                                   |
|-----------|-------------------------------------------------------------------------------|
| ILDs      |                                       0                                       |
|-----------|-------------------------------------------------------------------------------|
| instances |                                       0                                       |
|-----------|-------------------------------------------------------------------------------|
| replicas  | 0  | 1  | 2  | 3  | 4  | 5  | 6  | 7  | 8  | 9  | 10 | 11 | 12 | 13 | 14 | 15 |
 -------------------------------------------------------------------------------------------"""


def test_16_replicas_in_one_instance_have_the_original_shape() -> None:
    assert topology_table(make_plan(replicas=16, num_ilds=1), 100) == SIXTEEN_REPLICAS


def rows(width: int, **facts: Any) -> list[str]:
    """Returns the lines of a plan's table with names and numbers."""
    return topology_table(make_plan(**facts), width).splitlines()[3:-1:2]


def test_an_instance_spans_its_replicas_and_a_host_its_instances() -> None:
    assert rows(80, hosts=("node1", "node2"), instances=2, replicas=2) == [
        "| hosts     |     node1     |     node2     |",
        "| instances |   0   |   1   |   2   |   3   |",
        "| replicas  | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |",
    ]


def test_one_worker_has_a_table_as_wide_as_its_title() -> None:
    assert topology_table(make_plan(hosts=("a",)), 80).splitlines()[:4] == [
        " =================",
        "| tfdist topology |",
        "|=================|",
        "| hosts     |  a  |",
    ]


def test_64_workers_on_8_hosts_are_ranges_at_80_columns() -> None:
    assert rows(80, hosts=tuple(f"node{number}" for number in range(8)), instances=8) == [
        "| hosts     | node0 | node1 | node2 | node3 | node4 | node5 | node6 | node7 |",
        "| instances |  0-7  |  8-15 | 16-23 | 24-31 | 32-39 | 40-47 | 48-55 | 56-63 |",
        "| replicas  |  0-7  |  8-15 | 16-23 | 24-31 | 32-39 | 40-47 | 48-55 | 56-63 |",
    ]


def test_hosts_that_do_not_fit_are_counted() -> None:
    hosts = tuple(f"node-{number:03}.cluster.example.com" for number in range(100))
    assert rows(60, hosts=hosts, instances=2) == [
        "| hosts     | node-000 | node-001 | 97 more  | node-099 |",
        "| instances |   0-1    |   2-3    |   ...    | 198-199  |",
        "| replicas  |   0-1    |   2-3    |   ...    | 198-199  |",
    ]


def test_a_very_narrow_terminal_gets_one_column() -> None:
    hosts = tuple(f"10.0.0.{number}" for number in range(3))
    assert rows(40, hosts=hosts, instances=5, num_ilds=1) == [
        "| hosts     | 3 hosts |",
        "| ILDs      |    0    |",
        "| instances |   0-14  |",
        "| replicas  |   0-14  |",
    ]


def test_many_replicas_of_an_instance_are_a_range() -> None:
    assert rows(80, instances=2, replicas=64, num_ilds=2)[1:] == [
        "| ILDs      |   0    |   1    |",
        "| instances |   0    |   1    |",
        "| replicas  |  0-63  | 64-127 |",
    ]


def test_no_line_is_wider_than_the_terminal_and_all_end_together() -> None:
    for num_hosts, instances, replicas in ((1, 1, 1), (1, 64, 1), (8, 8, 2), (64, 1, 4), (3, 5, 7)):
        hosts = tuple(f"10.0.0.{number}" for number in range(num_hosts))
        plan = make_plan(hosts=hosts, instances=instances, replicas=replicas)
        for width in range(40, 200, 7):
            lines = topology_table(plan, width).splitlines()
            assert max(map(len, lines)) <= width
            assert {len(line) for line in lines[1:-1]} == {len(lines[1])}


def test_instances_dealt_out_to_the_hosts_in_turn_stand_below_their_host() -> None:
    plan = make_plan(hosts=("node1", "node2"), instances=2)
    workers = [plan.workers[number] for number in (0, 2, 1, 3)]
    dealt = tuple(
        replace(worker, index=index, replicas=range(index, index + 1))
        for index, worker in enumerate(workers)
    )
    table = topology_table(replace(plan, workers=dealt), 80)
    assert "| node1 | node2 |" in table
    assert "| 0 | 2 | 1 | 3 |" in table


def test_evaluator_devices_cores_and_threads_are_listed_below_the_table() -> None:
    plan = make_plan(
        hosts=("node1", "node2"),
        instances=2,
        evaluator=True,
        cores=2,
        environment={"OMP_NUM_THREADS": "2"},
        unused_hosts=("node3",),
    )
    assert topology_text(plan, 80).splitlines()[9:] == [
        "no worker on: node3",
        "evaluator on: node1",
        "devices per replica: 2",
        "cores: 0-1 for workers 0 and 2 and the evaluator, 2-3 for workers 1 and 3",
        "threads: 2 for each worker",
    ]


SHARE = Share(num_workers=2, index=0, bind="cores", threads=None, num_devices=1)


@pytest.mark.parametrize(
    ("facts", "lines"),
    [
        ({"instances": 16, "cores": 2}, ["cores: 2 for each worker"]),
        ({"instances": 2}, ["cores: not bound"]),
        # On other hosts the agents choose the cores.
        (
            {"hosts": ("node1", "node2"), "instances": 2, "share": SHARE},
            ["cores: 1/2 of its host's for each worker", "threads: as many as cores"],
        ),
    ],
)
def test_cores_are_counted_or_reported_as_unbound_or_as_a_share(
    facts: dict[str, Any], lines: list[str]
) -> None:
    expected = ["devices per replica: 2", *lines]
    assert topology_text(make_plan(**facts), 80).splitlines()[9:] == expected


def test_gpus_are_listed_if_they_are_divided() -> None:
    plan = with_environments(*({"CUDA_VISIBLE_DEVICES": str(index)} for index in range(2)))
    text = topology_text(plan, 80)
    assert text.endswith("\nGPUs: 0 for worker 0, 1 for worker 1")


# The commands.


def with_environments(*environments: dict[str, str], command: tuple[str, ...] = ("train",)) -> Plan:
    """Returns a plan with a worker of one replica for each environment."""
    plan = make_plan(instances=len(environments), command=command)
    workers = zip(plan.workers, environments, strict=True)
    return replace(plan, workers=tuple(replace(worker, environment=own) for worker, own in workers))


def test_equal_variables_are_printed_once() -> None:
    plan = with_environments({"B": "2", "A": "1", "INDEX": "0"}, {"A": "1", "B": "2", "INDEX": "1"})
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
    *_, last = description(parse_run_options([*size, "cat"]), with_environments({}), verbosity=0)
    assert last.startswith("smaller sizes: 3 to 2 instances")
    *_, last = description(parse_run_options(["cat"]), with_environments({}), verbosity=0)
    assert "smaller sizes" not in last


def test_the_evaluator_comes_first_and_gets_nothing_that_is_exported() -> None:
    plan = with_environments({"A": "1", "N": "0"}, {"A": "1", "N": "1"}, {"A": "1"})
    evaluator = replace(plan.workers[2], name="evaluator", replicas=range(0), host="node1")
    plan = replace(plan, workers=(*plan.workers[:2], evaluator))
    assert command_lines(plan)[:4] == [
        "# evaluator on node1, log: logs/worker-2.txt",
        "A=1 train",
        "# workers 0 and 1",
        "export A=1",
    ]


def test_of_many_workers_a_page_is_printed_that_says_once_what_is_equal() -> None:
    words = ["--host", ",".join(f"gpu{host}:8" for host in range(128)), "cat"]
    options = parse_run_options(words, {"PATH": "/bin:/usr/bin"})
    plan = make_plan_of_run(options, ports=(), log_dir=Path("logs"))
    lines = "\n".join(description(options, plan, verbosity=1)).splitlines()
    assert len(lines) < 30
    assert max(map(len, lines)) < 1_000
    assert sum("TF_CONFIG=" in line for line in lines) == 3
    (others,) = [line for line in lines if "the same" in line]
    assert others == "# workers 2-1022: the same, each with its own numbers"
    assert lines[-1] == "# ... stands for what is left out; -vv prints all of it"
    for line in lines:  # A shell would run nothing that is left out in part.
        assert " ... " not in line or line.startswith(("# ", "|")), line
    complete = list(description(options, plan, verbosity=2))
    assert sum("TF_CONFIG=" in line for line in complete) == 1024


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
        plan = with_environments(
            {"X": word, "A_TOKEN": word}, command=(sys.executable, "-c", SHOW, *words)
        )
        worker = replace(plan.workers[0], log_path=Path(f"logs{word}/worker-0.log"))
        lines = command_lines(replace(plan, workers=(worker,)))
        done = subprocess.run(
            [shell], input="\n".join(lines), text=True, capture_output=True, cwd=tmp_path
        )
        last = word.replace("-token=x", "-token=***")
        assert (done.stdout, done.stderr) == (f"{['--password', '***', last, last]}\n", "")
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
    plan = with_environments(
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
