"""Whole scripts as workers: started, watched, signalled, stopped."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tfdist.testing import FakeCluster, WorkerFailedError, WorkerTimeoutError, engine_problem
from tfdist.testing.run import wait_until

needs_horovod = pytest.mark.skipif(
    engine_problem("horovod") is not None, reason=str(engine_problem("horovod"))
)
ENGINES = ["grpc", pytest.param("horovod", marks=needs_horovod)]
OWN_INDEX = """
import json, os, signal, sys, time
if "TF_CONFIG" in os.environ:
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
else:
    index = int(os.environ["OMPI_COMM_WORLD_RANK"])
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_every_worker_has_its_own_output_and_status(fake_cluster: FakeCluster, engine: str) -> None:
    code = OWN_INDEX + "print('out', index, sys.argv[1]); print('err', index, file=sys.stderr)"
    workers = fake_cluster.run_script(["-c", code, "argument"], engine=engine, num_workers=3)
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert [worker.stdout for worker in workers] == [f"out {i} argument\n" for i in range(3)]
    assert [worker.stderr for worker in workers] == [f"err {i}\n" for i in range(3)]


def test_a_script_without_engine_gets_the_variables_of_the_run(fake_cluster: FakeCluster) -> None:
    code = "import os; print(os.environ['TF_CONFIG'])"
    [worker] = fake_cluster.run_script(["-c", code], engine="none", env={"TF_CONFIG": "nonsense"})
    assert worker.stdout == "nonsense\n"


def test_a_script_without_arguments_may_be_named_by_its_path(
    fake_cluster: FakeCluster, tmp_path: Path
) -> None:
    script = tmp_path / "a script.py"
    script.write_text("print('ran')")
    for name in (script, str(script)):
        [worker] = fake_cluster.run_script(name, engine="none")
        assert worker.stdout == "ran\n"


def test_a_failing_worker_is_named_and_the_others_are_stopped(fake_cluster: FakeCluster) -> None:
    code = OWN_INDEX + "print('here', index)\nif index == 1: sys.exit('wrong')\ntime.sleep(600)"
    with pytest.raises(WorkerFailedError) as caught:
        fake_cluster.run_script(["-c", code])
    assert "worker 1 of 2 failed first" in str(caught.value)
    assert "what worker 1 wrote:\nhere 1\nwrong" in str(caught.value)
    assert caught.value.exit_code == 1


def test_without_check_every_worker_ends_by_itself(fake_cluster: FakeCluster) -> None:
    code = OWN_INDEX + "print('here'); sys.exit(index * 3)"
    workers = fake_cluster.run_script(["-c", code], check=False)
    assert [worker.returncode for worker in workers] == [0, 3]
    assert workers[1].stdout == "here\n"


def test_a_time_limit_stops_all_and_names_the_late(fake_cluster: FakeCluster) -> None:
    code = OWN_INDEX + "print('here', index)\nif index == 1: time.sleep(600)"
    with pytest.raises(WorkerTimeoutError, match="worker 1 of 2 has not finished") as caught:
        fake_cluster.run_script(["-c", code], timeout_s=2.5)
    assert "what worker 1 wrote:\nhere 1" in str(caught.value)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_running_worker_can_be_watched_and_signalled(
    fake_cluster: FakeCluster, engine: str, all_end: Callable[..., bool]
) -> None:
    code = OWN_INDEX + (
        "signal.signal(signal.SIGUSR1, lambda *_: (print('saved', index), sys.exit(0)))\n"
        "print('ready', index)\n"
        "while True: time.sleep(0.1)\n"
    )
    with fake_cluster.start_script(["-c", code], engine=engine) as script:
        for worker in script.workers:
            match = worker.wait_for_text(r"^ready (\d)$", timeout_s=20)
            assert match.group(1) == str(worker.index)
            assert worker.poll() is None
        first, second = script.workers
        first.send_signal(signal.SIGUSR1)
        assert first.wait(timeout_s=20) == 0
        assert first.text() == "ready 0\nsaved 0\n"
        assert second.poll() is None
    assert all_end(first.pid, second.pid)
    assert second.poll() is not None


def test_a_signal_to_a_worker_whose_end_is_not_recorded_yet_has_no_effect(
    fake_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_cluster.start_script(["-c", ""], engine="none") as script:
        [worker] = script.workers
        assert worker.wait(timeout_s=20) == 0
        monkeypatch.setattr(worker, "poll", lambda: None)
        worker.send_signal(signal.SIGTERM)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_killed_worker_shows_its_signal(fake_cluster: FakeCluster, engine: str) -> None:
    code = OWN_INDEX + "print('ready')\ntime.sleep(600)"
    with fake_cluster.start_script(["-c", code], engine=engine) as script:
        worker = script.workers[1]
        worker.wait_for_text("ready", timeout_s=20)
        worker.send_signal(signal.SIGKILL)
        assert worker.wait(timeout_s=20) == -signal.SIGKILL


def test_a_worker_that_ignores_term_is_killed(
    fake_cluster: FakeCluster, all_end: Callable[..., bool]
) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready'); time.sleep(600)"
    )
    with fake_cluster.start_script(["-c", code], engine="none") as script:
        [worker] = script.workers
        worker.wait_for_text("ready", timeout_s=20)
    assert worker.poll() == -signal.SIGKILL
    assert all_end(worker.pid)


def test_a_suspended_worker_hears_term(fake_cluster: FakeCluster) -> None:
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('asked'), sys.exit(3)))\n"
        "print('ready'); os.kill(os.getpid(), signal.SIGSTOP)"
    )
    with fake_cluster.start_script(["-c", code], engine="none") as script:
        [worker] = script.workers
        worker.wait_for_text("ready", timeout_s=20)
        assert wait_until(lambda: psutil.Process(worker.pid).status() == "stopped", 20)
    assert (worker.poll(), worker.text()) == (3, "ready\nasked\n")


def test_waiting_for_text_ends_when_the_worker_ends(fake_cluster: FakeCluster) -> None:
    with fake_cluster.start_script(["-c", "print('other')"], engine="none") as script:
        start_s = time.monotonic()
        with pytest.raises(WorkerFailedError, match=r"ended with status 0 before it wrote 'never'"):
            script.workers[0].wait_for_text("never", timeout_s=60)
        assert time.monotonic() - start_s < 30


def test_waiting_for_text_has_a_limit(fake_cluster: FakeCluster) -> None:
    code = "import time; time.sleep(600)"
    with (
        fake_cluster.start_script(["-c", code], engine="none") as script,
        pytest.raises(TimeoutError, match=r"did not write 'never' within 0.2 s"),
    ):
        script.workers[0].wait_for_text("never", timeout_s=0.2)


def test_a_forgotten_script_is_stopped_with_the_cluster(
    fake_cluster: FakeCluster, all_end: Callable[..., bool]
) -> None:
    script = fake_cluster.start_script(["-c", "import time; time.sleep(600)"])
    fake_cluster.close()
    assert all_end(*[worker.pid for worker in script.workers])


FORKED = """
import atexit, os, signal, sys

atexit.register(print, "at its exit", flush=True)
print("tensorflow" in sys.modules, __name__, sys.argv[1:], sys.path[0] == os.path.dirname(__file__))
if sys.argv[1] == "interrupt":
    os.kill(os.getpid(), signal.SIGINT)
elif sys.argv[1] == "fail":
    raise ArithmeticError("of the script")
elif sys.argv[1] != "return":
    sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("engine", "way", "code", "last_line"),
    [
        ("grpc", "return", 0, ""),
        ("grpc", "3", 3, ""),
        ("none", "fail", 1, "ArithmeticError: of the script"),
        ("none", "interrupt", -signal.SIGINT, "KeyboardInterrupt"),
        pytest.param("horovod", "3", 3, "", marks=needs_horovod),
    ],
)
def test_a_forked_script_has_tensorflow_from_the_start_and_ends_as_a_program_does(
    fake_cluster: FakeCluster, tmp_path: Path, engine: str, way: str, code: int, last_line: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(FORKED)
    workers = fake_cluster.run_script([str(script), way], engine=engine, check=False, forked=True)
    ended = [worker for worker in workers if worker.returncode == code]
    assert len(ended) == len(workers) or (engine == "horovod" and ended)  # mpirun stops the others.
    for worker in ended:
        assert worker.stdout == f"True __main__ ['{way}'] True\nat its exit\n"
        assert worker.stderr.rstrip().endswith(last_line)


def test_a_forked_script_must_be_a_file(fake_cluster: FakeCluster) -> None:
    with pytest.raises(ValueError, match=r"must be a file, got the option -c: .*leave forked out"):
        fake_cluster.run_script(["-c", "pass"], forked=True)
