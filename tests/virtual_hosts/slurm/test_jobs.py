"""Jobs of `tfdist slurm` on a real cluster: training, failures, preemption, a lost node."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tfdist.launch.machine.mpi import horovod_problem
from tfdist.testing.fake_cluster import FakeCluster
from tfdist.testing.run import wait_until

_LIMIT_S = 120.0
# The others notice after 5 s of silence; Slurm's own 60 s (300 by default) are not waited for.
_CUT_LIMIT_S = 30.0
_NO_HOROVOD = horovod_problem()
needs_horovod = pytest.mark.skipif(_NO_HOROVOD is not None, reason=str(_NO_HOROVOD))
ENGINES = ["grpc", pytest.param("horovod", marks=needs_horovod)]

_ACT = """
import os, signal, sys, time
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ["SLURM_PROCID"]))
print("worker", rank, "on", os.uname().nodename, os.environ["NOTE"], flush=True)
if "TFDIST_RUN" in os.environ:
    os.makedirs("/dev/shm/tfdist-snapshots-" + os.environ["TFDIST_RUN"], exist_ok=True)
def save(number, frame):
    time.sleep(2.0 if rank == 0 else 0.0)  # the others are gone by then
    print("saved", flush=True)
    sys.exit(138)
signal.signal(signal.SIGUSR1, save)
if sys.argv[1] == "fail" and rank == 2 and os.environ["TFDIST_RESTART_COUNT"] == "0":
    sys.exit(7)
if sys.argv[1] == "fail" and os.environ["TFDIST_RESTART_COUNT"] != "0":
    sys.exit(0)
count = os.environ.get("SLURM_STEP_NUM_TASKS")  # not of a rank of mpirun
print("ready", count, flush=True)
while not os.path.exists("back"):
    if (sys.argv[1], count) == ("lose", "3") and rank != 2 and os.path.exists("cut"):
        sys.exit(200)
    time.sleep(0.1)
"""


@pytest.fixture
def act(tmp_path: Path) -> Path:
    """A program without TensorFlow: worker 2 fails at the first start, is lost, or all wait."""
    program = tmp_path / "act.py"
    program.write_text(_ACT)
    return program


@pytest.mark.parametrize("engine", ENGINES)
def test_the_workers_of_a_job_on_three_nodes_meet(
    slurm: Any, meet_others: str, tmp_path: Path, engine: str
) -> None:
    words = [f"--engine={engine}", "--nodes=3", meet_others, str(tmp_path)]
    job_id = slurm.submit(words, tmp_path)
    job = slurm.wait_for_end(job_id, _LIMIT_S)
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), _log(tmp_path)
    names = [f"-{job_id}{rest}" for rest in ("-0.log", "-1.log", "-2.log", ".log", ".sbatch")]
    files = [path.name.removeprefix("meet_others") for path in (tmp_path / "logs").iterdir()]
    assert sorted(files) == names
    for worker in range(3):
        text = (tmp_path / f"logs/meet_others-{job_id}-{worker}.log").read_text()
        assert f"worker {worker} of 3 on tfd{worker + 1} is done" in text


@pytest.mark.parametrize("engine", ENGINES)
def test_the_job_ends_with_the_exit_code_of_the_worker_that_failed_first(
    slurm: Any, act: Path, tmp_path: Path, engine: str
) -> None:
    note = "a b\n'$HOME' \"x\""
    words = ["--nodes=3", f"--engine={engine}", "-x", f"NOTE={note}", act.name, "fail"]
    job = slurm.wait_for_end(slurm.submit(words, tmp_path), _LIMIT_S)
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "7:0"), _log(tmp_path)
    log = _log(tmp_path)
    assert "worker 2 failed first" in log
    assert "exit code 7" in log
    assert "tfd3, process" in log
    assert f"worker 2 on tfd3 {note}" in _log(tmp_path, worker=2)


def test_workers_start_again_if_requested(slurm: Any, act: Path, tmp_path: Path) -> None:
    words = ["--nodes=3", "--max-restarts=1", "--env=NOTE=", act.name, "fail"]
    job = slurm.wait_for_end(slurm.submit(words, tmp_path), _LIMIT_S)
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), _log(tmp_path)
    assert "restart 1 of 1" in _log(tmp_path)


def test_a_job_that_is_preempted_and_requeued_trains_as_an_undisturbed_run(
    slurm: Any, train_linear: str, fake_cluster: FakeCluster, tmp_path: Path
) -> None:
    file, out = tmp_path / "preempted", tmp_path / "undisturbed"
    out.mkdir()
    program = [train_linear, "--strategy=grpc", "--shuffle", "--num-steps=60"]
    words = ["--nodes=2", "--requeue", f"--env=TFDIST_PREEMPTED={file}", *program]
    words += ["--seconds-per-step=0.05", f"--model-dir={tmp_path / 'model'}", f"--out={tmp_path}"]
    job_id = slurm.submit(words, tmp_path)
    assert wait_until(lambda: "step = 5 (" in _log(tmp_path, worker=0), _LIMIT_S), _log(tmp_path)
    file.touch()
    waits = {"Restarts": "1", "JobState": "PENDING"}
    is_back = wait_until(lambda: waits.items() <= slurm.job(job_id).items(), _LIMIT_S)
    log = _log(tmp_path)
    assert is_back, (slurm.job(job_id), log)
    assert "asked to stop; they saved and exited" in log
    assert "requeueing the job" in log
    file.unlink()
    # It takes seconds, and a node refuses a job in the second in which it has ended it.
    fake_cluster.run_script([*program, f"--out={out}"], num_workers=2, forked=True)
    # Else Slurm waits for two minutes.
    slurm.run(["scontrol", "update", f"JobId={job_id}", "StartTime=now"])
    job = slurm.wait_for_end(job_id, _LIMIT_S)
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), (job, _log(tmp_path))
    assert "The input goes on where the interrupted training was" in _log(tmp_path, worker=1)
    assert (tmp_path / "0").read_text() == (out / "0").read_text()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_worker_that_saves_for_longer_is_not_killed_by_those_that_have_left(
    slurm: Any, act: Path, tmp_path: Path, engine: str
) -> None:
    words = ["--nodes=3", f"--engine={engine}", "--env=NOTE=", act.name, "wait"]
    job_id = slurm.submit(words, tmp_path)
    _wait_for_logs(tmp_path, "ready", num_workers=3)
    slurm.run(["scancel", "--batch", "--signal=USR1", job_id])
    job = slurm.wait_for_end(job_id, _LIMIT_S)
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "138:0"), _log(tmp_path)
    assert [_log(tmp_path, worker=worker).count("saved") for worker in range(3)] == [1, 1, 1]


def test_a_job_ends_soon_after_a_node_of_it_is_cut_off(
    slurm: Any, network: Any, act: Path, tmp_path: Path, within: Callable[[float], float]
) -> None:
    words = ["--nodes=3", "--max-restarts=1", "--env=NOTE=", act.name, "lose"]
    job_id = slurm.submit(words, tmp_path)
    assert wait_until(lambda: "ready" in _log(tmp_path, worker=2), _LIMIT_S), _log(tmp_path)
    network.cut(network.hosts[2])
    (tmp_path / "cut").touch()
    job = slurm.wait_for_end(job_id, within(_CUT_LIMIT_S))
    assert job["Reason"] == "NonZeroExitCode", job  # not: NodeDown
    assert job["ExitCode"] == "124:0", (job, _log(tmp_path))
    assert "worker 2 failed first" in _log(tmp_path)
    assert _snapshots(slurm.hosts[:2]) == "", _log(tmp_path)


def test_an_elastic_job_goes_on_without_a_node_that_is_cut_off(
    slurm: Any, network: Any, act: Path, tmp_path: Path
) -> None:
    # tests/multi_worker/test_elastic.py has the training.
    before = _snapshots(slurm.hosts)  # Another test may have left some on the third.
    words = ["--nodes=3", "--min-instances=2", "--max-restarts=1", "--env=NOTE=", act.name, "lose"]
    job_id = slurm.submit(words, tmp_path)
    _wait_for_logs(tmp_path, "ready 3", num_workers=3)
    network.cut(network.hosts[2])
    (tmp_path / "cut").touch()
    assert wait_until(lambda: "restart 1 of 1" in _log(tmp_path), _LIMIT_S), _log(tmp_path)
    log = _log(tmp_path)
    assert "worker 2 failed first" in log
    assert "tfd3 cannot be reached: going on with 2 of 3 instances" in log
    assert "a step has 2/3 of its examples now" in log
    _wait_for_logs(tmp_path, "ready 2", num_workers=2)
    network.reconnect(network.hosts[2])  # it stays out, and reports that it has left the job
    (tmp_path / "back").touch()
    job = slurm.wait_for_end(job_id, _LIMIT_S)
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), (job, _log(tmp_path))
    assert _snapshots(slurm.hosts) == before


def _snapshots(hosts: Sequence[Any]) -> str:
    """Returns the names of the snapshots in the memory of hosts."""
    return "".join(host.run(["ls", "/dev/shm"]).stdout for host in hosts)


def _wait_for_logs(folder: Path, text: str, num_workers: int) -> None:
    """Waits until the log of each of these workers has a text."""
    logs = functools.partial(_log, folder)
    workers = range(num_workers)
    have_come = wait_until(lambda: all(text in logs(worker=one) for one in workers), _LIMIT_S)
    assert have_come, _log(folder)


def _log(folder: Path, worker: int | None = None) -> str:
    """Returns the log of the job in the folder, or that of one of its workers."""
    pattern = "*[0-9].log" if worker is None else f"*-{worker}.log"
    logs = [path for path in (folder / "logs").glob(pattern)]
    if worker is None:
        logs = [path for path in logs if path.stem.count("-") == 1]
    return "".join(path.read_text() for path in logs)
