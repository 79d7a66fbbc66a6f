"""Standbys: a worker that one has forked is like a new process, and none is left behind."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfdist.launch.machine.mpi import horovod_problem
from tfdist.launch.standby.standby import Standby, WorkerProgram, can_stand_by
from tfdist.testing.run import wait_until

pytestmark = pytest.mark.processes

Launch = Callable[..., Any]

# Says what a program can know of its process. Then waits for its standby, and fails.
PROGRAM = """
import atexit, json, logging, os, signal, sys, time, wave
import psutil
import beside
from tfdist.process.progress_file import set_phase

STARTS = ("TFDIST_RESTART_", "TF_CONFIG", "TFDIST_IMPORTS_FILE")
atexit.register(print, "exit of start", os.environ["TFDIST_RESTART_COUNT"])
own = psutil.Process()
facts = {
    "argv": sys.argv, "orig_argv": sys.orig_argv, "name": __name__, "file": __file__,
    "main": sys.modules["__main__"].__dict__ is globals(), "spec": __spec__, "path": sys.path,
    "cwd": os.getcwd(),
    "environment": {k: v for k, v in os.environ.items() if not k.startswith(STARTS)},
    "TERM": str(signal.getsignal(signal.SIGTERM)), "PIPE": str(signal.getsignal(signal.SIGPIPE)),
    "stdin": os.readlink("/proc/self/fd/0"), "isatty": sys.stdout.isatty(),
    "stdout": sys.stdout.line_buffering, "comm": own.name(), "command": own.cmdline(),
    "leads": os.getpgid(0) == os.getpid() == os.getsid(0), "cores": sorted(own.cpu_affinity()),
    "files": len(os.listdir("/proc/self/fd")), "beside": beside.NAME, "threads": own.num_threads(),
}
parent = own.parent().name()
print(json.dumps({"parent": parent, "facts": facts}), flush=True)
os.environ["TEST_SET_LATER"] = "1"
set_phase("training")
print("from the program", file=sys.stderr, flush=True)
agent = own.parent() if parent != "tfdist-standby" else own.parent().parent()
limit = time.monotonic() + 60
while not any(p.name() == "tfdist-standby" for p in agent.children()):
    assert time.monotonic() < limit
    time.sleep(0.01)
"""


def start(launch: Launch, folder: Path, end: str, *options: str, **more: Any) -> Any:
    (folder / "run-0").mkdir()
    (folder / "run-0" / "train.py").write_text(PROGRAM + end)
    (folder / "run-0" / "beside.py").write_text("NAME = __name__")
    command = (sys.executable, "train.py", "--steps", "3")
    options = ("--max-restarts", "5", "--env", "A_VARIABLE=1", *options)
    return launch(command, *options, **{"num_instances": 1, **more})


def said(run: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.log("worker-0").splitlines() if line.startswith("{")]


def test_a_forked_worker_is_like_a_new_process(launch: Launch, tmp_path: Path) -> None:
    run = start(launch, tmp_path, "sys.exit([3, 4, 0][int(os.environ['TFDIST_RESTART_COUNT'])])")
    assert run.wait() == 0
    first, second, third = said(run)
    assert first["parent"] != "tfdist-standby"
    assert second["parent"] == third["parent"] == "tfdist-standby"
    assert second["facts"] == first["facts"]
    assert third["facts"] == first["facts"]
    assert "failed (exit code 3)" in run.err and "failed (exit code 4)" in run.err
    log = run.log("worker-0")
    assert [log.count(f"exit of start {count}") for count in range(3)] == [1, 1, 1]
    assert log.count("from the program") == 3
    assert run.is_nothing_left()


def test_a_worker_starts_afresh_where_its_standby_is_gone(launch: Launch, tmp_path: Path) -> None:
    kill = "os.kill([p for p in agent.children() if p.name() == 'tfdist-standby'][0].pid, 9)"
    end = f"if os.environ['TFDIST_RESTART_COUNT'] < '2':\n    {kill}\n    sys.exit(3)"
    run = start(launch, tmp_path, end)
    assert run.wait() == 0
    assert [one["parent"] == "tfdist-standby" for one in said(run)] == [False, False, False]
    assert "worker 0 starts without its standby: it has ended" in run.err
    assert run.is_nothing_left()


@pytest.mark.parametrize(
    ("number", "end_line"),
    [
        (signal.SIGTERM, "stopped by SIGTERM; all workers have left"),
        (signal.SIGUSR1, "the workers were asked to stop, and exited"),
    ],
)
def test_a_worker_that_starts_after_a_request_to_stop_hears_of_it(
    launch: Launch,
    tmp_path: Path,
    break_agents: Callable[[str], dict[str, str]],
    number: signal.Signals,
    end_line: str,
) -> None:
    end = """
if os.environ["TFDIST_RESTART_COUNT"] == "0":
    [standby] = [p for p in agent.children() if p.name() == "tfdist-standby"]
    standby.suspend()  # The agent waits for its answer, and then starts a new process.
    sys.exit(3)
time.sleep(600)
"""
    limits = (
        "from tfdist.launch.standby import standby as s; s._READY_LIMIT_S = s._FORK_LIMIT_S = 2"
    )
    said = tmp_path / "said"
    with said.open("w") as file:
        run = start(launch, tmp_path, end, environ=break_agents(limits), stderr=file)
    assert wait_until(lambda: "restart 1 of 5" in said.read_text(), 60)
    run.signal(number)
    assert run.wait() == 128 + number
    assert end_line in said.read_text()


def test_a_standby_that_still_imports_is_not_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfdist.launch.standby.standby._READY_LIMIT_S", 0.001)
    standby = Standby(tmp_path)
    command = [sys.executable, "train.py"]
    program = WorkerProgram(command=command, cwd=str(tmp_path), environment=os.environ, cores=None)
    standby.imports_path.write_text('{"environment": {}, "modules": ["json"], "own": []}')
    standby.begin(program)
    assert asyncio.run(standby.fork(program)) is None
    assert standby.problem == "it was not ready after 0.001 s"
    assert standby.pid is None


# Each imports the other; only `first` can be imported first. The program says what it has of them.
PAIR = {
    "first": "NAME = 'first'\nimport second\n",
    "second": "from first import NAME\n",
    "train": """
import sys
before = [one for one in ("first", "second") if one in sys.modules]
import first
from tfdist.process.imports import imported_modules, write_imports
write_imports()
print(before, imported_modules()[1])
""",
}


@pytest.fixture
def program(tmp_path: Path) -> WorkerProgram:
    """A program with a pair of modules that import each other."""
    for name, text in PAIR.items():
        (tmp_path / f"{name}.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    environment["TFDIST_IMPORTS_FILE"] = str(tmp_path / "imports")
    command = [sys.executable, "train.py"]
    return WorkerProgram(command=command, cwd=str(tmp_path), environment=environment, cores=None)


def fork(standby: Standby, program: WorkerProgram) -> str:
    """Starts the standby and a worker of it; returns what the worker has printed."""
    standby.begin(program)
    worker = asyncio.run(standby.fork(program))
    assert worker is not None, standby.problem
    with worker.stdout, worker.stderr:
        assert worker.wait() == 0, worker.stderr.read()
        return worker.stdout.read().decode()


def test_a_standby_imports_a_circular_pair_in_the_order_of_the_first_worker(
    tmp_path: Path, program: WorkerProgram
) -> None:
    standby = Standby(tmp_path)
    process = standby.observed(program).start(subprocess.PIPE, subprocess.PIPE)
    out, err = process.communicate(timeout=60)
    assert out.decode() == "[] ['first', 'second']\n", err.decode()
    imports = json.loads(standby.imports_path.read_text())
    assert imports["own"] == ["first", "second"]
    imports["modules"] += imports["own"]  # as if they were installed
    standby.imports_path.write_text(json.dumps({**imports, "own": []}))
    try:
        assert fork(standby, program).startswith("['first', 'second'] ")
        assert standby.output("err") == ""
    finally:
        standby.end()


def test_a_module_that_cannot_be_imported_in_advance_is_left_to_the_program(
    tmp_path: Path, program: WorkerProgram
) -> None:
    (tmp_path / "leaving.py").write_text("raise SystemExit('leaving')")
    standby = Standby(tmp_path)
    imports = {"modules": ["second", "leaving", "gone", "first"], "own": [], "environment": {}}
    standby.imports_path.write_text(json.dumps(imports))
    try:
        assert fork(standby, program).startswith("['first', 'second'] ")
        assert standby.output("err").splitlines() == [
            "tfdist: leaving is left to the program: SystemExit: leaving",
            "tfdist: gone is left to the program: ModuleNotFoundError: No module named 'gone'",
        ]
    finally:
        standby.end()


# Worker 0 imports grpc, whose modules import each other.
ESTIMATOR = """
import os, psutil, sys
import tensorflow as tf
import tensorflow.compat.v1 as v1
import tfdist.estimator as tfe
from tfdist.strategies import strategy_for_run
from tfdist.testing.run import wait_until


class End(v1.train.SessionRunHook):
    def after_run(self, run_context, run_values):
        agent = psutil.Process().parent()
        if os.environ["TFDIST_RESTART_COUNT"] == "0":
            assert wait_until(lambda: "tfdist-standby" in [p.name() for p in agent.children()], 60)
            os._exit(3)


def model_fn(features, labels, mode):
    weight = v1.get_variable("weight", [2, 1])
    loss = tf.reduce_mean(tf.square(tf.matmul(features, weight) - 1.0))
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    pairs = optimizer.compute_gradients(loss)

    def apply(*gradients):
        return optimizer.apply_gradients(zip(gradients, [v for _, v in pairs]))

    return tfe.EstimatorSpec(mode, loss=loss, host_call=(apply, [g for g, _ in pairs]))


strategy = strategy_for_run()
is_chief = strategy.extended.collectives.worker_index == 0
config = tfe.RunConfig(train_distribute=strategy)
estimator = tfe.Estimator(model_fn, "model" if is_chief else "model-1", config)
data = lambda: tf.data.Dataset.from_tensors(tf.ones([1, 2])).repeat()
estimator.train(data, hooks=[End()] if is_chief else [], max_steps=4)
print("parent:", psutil.Process().parent().name(), "grpc" in sys.modules)
"""


def test_worker_0_of_an_estimator_over_grpc_uses_its_standby(
    launch: Launch, tmp_path: Path, break_agents: Callable[[str], dict[str, str]]
) -> None:
    patience = "from tfdist.launch.standby import standby as s; s._READY_LIMIT_S = 120"
    (tmp_path / "run-0").mkdir()
    (tmp_path / "run-0" / "train.py").write_text(ESTIMATOR)
    command = (sys.executable, "train.py")
    run = launch(command, "--max-restarts", "1", environ=break_agents(patience))
    assert run.wait(200) == 0, run.err
    assert "restart 1 of 1: worker 0 failed (exit code 3)" in run.err
    assert "without its standby" not in run.err and "left to the program" not in run.err
    assert "parent: tfdist-standby True" in run.log("worker-0")
    assert "parent: tfdist-standby" in run.log("worker-1")


@pytest.mark.parametrize("victim", ["agent", "standby"])
def test_no_standby_is_left_when_what_it_serves_is_killed(
    launch: Launch, tmp_path: Path, victim: str
) -> None:
    end = "if os.environ['TFDIST_RESTART_COUNT'] == '0':\n    sys.exit(3)\n"
    end += "open('ready-0', 'w').close()\ntime.sleep(600)"
    run = start(launch, tmp_path, end, "--max-restarts", "1")
    run.wait_until_ready(0)
    (standby,) = [one for one in run.living() if one.name() == "tfdist-standby"]
    (standby.parent() if victim == "agent" else standby).kill()
    assert run.wait() == {"agent": 124, "standby": 137}[victim]
    assert run.is_nothing_left()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("/venv/bin/python", "train.py"), True),
        (("/venv/bin/python3.11", "-m", "package.train", "-S"), True),
        (("/venv/bin/python", "-S", "train.py"), False),
        (("/venv/bin/python", "-c", "print()"), False),
        (("/venv/bin/python",), False),
        (("/other/bin/python", "train.py"), False),
        (("/venv/bin/train.sh", "train.py"), False),
        (("./train",), False),
    ],
)
def test_only_programs_of_this_python_have_a_standby(
    command: tuple[str, ...], expected: bool
) -> None:
    assert can_stand_by(command, "/venv/bin/python") == expected


@pytest.mark.skipif(horovod_problem() is not None, reason=str(horovod_problem()))
def test_horovods_ranks_are_forked_with_the_variables_of_a_new_mpirun(
    launch: Launch, tmp_path: Path
) -> None:
    end = "print('URI', os.environ['OMPI_MCA_orte_hnp_uri'], os.environ['OMPI_COMM_WORLD_RANK'])\n"
    end += "sys.exit(3 if os.environ['TFDIST_RESTART_COUNT'] == '0' else 0)"
    run = start(launch, tmp_path, end, "--engine", "horovod", num_instances=2)
    assert run.wait() == 0, run.err
    uris = []
    for rank in ("0", "1"):
        text = run.log(f"worker-{rank}")
        uris += [line.split()[1:] for line in text.splitlines() if line.startswith("URI")]
        assert uris[-1][1] == uris[-2][1] == rank
        assert '"parent": "tfdist-standby"' in text
    assert uris[0][0] != uris[1][0]
    assert run.is_nothing_left()
