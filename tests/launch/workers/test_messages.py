"""Messages between launcher and agents read back, and no other line ends their reader."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tfdist.launch.run.worker_processes import WorkerProcesses, start_message
from tfdist.launch.standby.standby import parse_answer
from tfdist.launch.workers.messages import parse_message
from tfdist.launch.workers.observed_time import ObservedClock
from tfdist.launch.workers.plan import WorkerPlan
from tfdist.launch.workers.worker_state import WorkerState
from tfdist.process.progress_file import Progress
from tfdist.testing.fork_server import parse_request
from tfdist.testing.job import Job

PLAN = WorkerPlan(
    index=0,
    name="worker 0",
    host="localhost",
    replicas=range(1),
    devices_per_replica=1,
    cores=(0, 1),
    command=("python", "train.py"),
    environment={"A": "b"},
    log_path=Path("log"),
)
PROGRESS = vars(Progress(phase="training", step=3, loss=0.5, examples=12.0, time_s=5.25))
CONTACT = {"alone_s": 0.0, "has_horovod": False, "is_importing": False}
OF_AGENTS: list[dict[str, Any]] = [
    {"kind": "hello", "index": 0, "host": "gpu1", "pid": 7},
    {"kind": "rank", "index": 0, "environment": {"OMPI_COMM_WORLD_RANK": "0"}},
    {"kind": "standby", "problem": "it has ended"},
    {"kind": "started", "pid": 12},
    {"kind": "output", "stream": "err", "text": "a line\n"},
    {"kind": "state", "is_stopped": False, "progress": PROGRESS, "quiet_s": 0.5, **CONTACT},
    {"kind": "state", "is_stopped": True, "progress": None, "quiet_s": None, **CONTACT},
    {"kind": "ended", "code": -9, "ago_s": 0.25},
    {"kind": "gone", "was_killed": True},
    {"kind": "alive"},
]
OF_LAUNCHER: list[dict[str, Any]] = [
    {"kind": "signal", "number": 15},
    {"kind": "stop", "grace_s": 30.0, "in_step_grace_s": float("inf")},
    {"kind": "stop", "grace_s": 30.0},
    {"kind": "bye"},
]
Lines = Callable[..., Iterator[bytes]]


def encoded(messages: list[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(message).encode() for message in messages]


@pytest.mark.parametrize("message", OF_AGENTS + OF_LAUNCHER, ids=lambda one: one["kind"])
def test_a_message_reads_back(message: dict[str, Any]) -> None:
    assert parse_message(json.dumps(message).encode() + b"\n") == message
    assert parse_message(json.dumps({**message, "new": 1}).encode()) == message


@pytest.mark.parametrize("message", OF_AGENTS[:-1], ids=lambda one: one["kind"])
def test_a_message_without_a_fact_is_none(message: dict[str, Any]) -> None:
    for name in message:
        lacking = {key: value for key, value in message.items() if key != name}
        assert parse_message(json.dumps(lacking).encode()) is None, name


@pytest.fixture
def processes(tmp_path: Path) -> WorkerProcesses:
    async def made() -> WorkerProcesses:  # Its event belongs to a loop.
        return WorkerProcesses(
            listen_on="127.0.0.1",
            own_hosts=[],
            grace_s=1.0,
            start_timeout_s=1.0,
            folder=tmp_path,
            cwd="",
            clock=ObservedClock(),
            keeps_standby=False,
            on_notice=lambda line: None,
            on_stranger=lambda sender: None,
        )

    return asyncio.run(made())


def test_the_launcher_can_use_each_message_that_reads_as_an_agents(
    processes: WorkerProcesses, mutated_lines: Lines
) -> None:
    worker, sound = WorkerState(plan=PLAN), 0
    for line in mutated_lines(encoded(OF_AGENTS)):
        message = parse_message(line)
        if message is not None:
            sound += 1
            processes._greeted(message)
            processes._note(worker, message)
    assert sound > 500


def test_any_line_to_an_agent_or_a_standby(mutated_lines: Lines) -> None:
    class Plan:
        engine = "grpc"

    start = start_message(PLAN, Plan(), cwd="/", grace_s=30.0)  # type: ignore[arg-type]
    messages = [*OF_LAUNCHER, {"kind": "start", **start}]
    assert parse_message(encoded(messages)[-1]) is not None
    for line in mutated_lines(encoded(messages)):
        message = parse_message(line)
        assert message is None or isinstance(message["kind"], str)
    for line in mutated_lines([b'{"ready": true}', b'{"pid": 12}', b'{"code": -9}'], 5_000):
        assert all(isinstance(one, int) for one in parse_answer(line.decode("latin-1")).values())


def test_any_request_to_the_fork_server(mutated_lines: Lines) -> None:
    job = Job(folder="f", name="worker-0", environ={"A": "b"}, cwd="/", command=("a",))
    for line in mutated_lines([job.to_json().encode(), b'{"preload": ["json"]}'], 5_000):
        parse_request(line.decode("latin-1"))
