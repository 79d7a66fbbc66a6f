import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

TWO_WORKERS = Path(__file__).parents[2] / "scripts" / "two_workers.py"

# What a worker script finds at its top.
PRELUDE = """
import json, os, signal, subprocess, sys, time
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
folder = sys.argv[1]
def note(name, text=""):
    with open(os.path.join(folder, name + ".part"), "w") as file:
        file.write(str(text))
    os.rename(os.path.join(folder, name + ".part"), os.path.join(folder, name))
def wait_for(name):
    while not os.path.exists(os.path.join(folder, name)):
        time.sleep(0.01)
"""

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts two workers, each running the given code."""

    def start_script(code: str) -> "subprocess.Popen[str]":
        script = tmp_path / "a worker.py"
        script.write_text(PRELUDE + code)
        return subprocess.Popen(
            [sys.executable, str(TWO_WORKERS), str(script), str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start_script


def wait_for_file(path: Path) -> str:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not appear"
        time.sleep(0.01)
    return path.read_text()


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until_ended(pid: int) -> None:
    deadline = time.monotonic() + 5
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} was left running"
        time.sleep(0.01)


def test_each_worker_gets_its_own_task_in_one_cluster(start: Start) -> None:
    out, _ = start("print(os.environ['TF_CONFIG'])").communicate(timeout=20)
    configs = [json.loads(line.partition("] ")[2]) for line in sorted(out.splitlines())]
    assert [config["task"] for config in configs] == [
        {"type": "worker", "index": 0},
        {"type": "worker", "index": 1},
    ]
    assert configs[0]["cluster"] == configs[1]["cluster"]
    assert len(set(configs[0]["cluster"]["worker"])) == 2


def test_every_line_names_its_worker_and_keeps_its_stream(start: Start) -> None:
    process = start("print('to out'); print('to err', file=sys.stderr)")
    out, err = process.communicate(timeout=20)
    assert sorted(out.splitlines()) == ["[worker 0] to out", "[worker 1] to out"]
    assert sorted(err.splitlines()) == ["[worker 0] to err", "[worker 1] to err"]
    assert process.returncode == 0


def test_the_result_of_the_chief_is_the_last_line_though_the_other_worker_ends_later(
    start: Start,
) -> None:
    process = start("""
if index == 0:
    print('{"draft": 1}')
    print('between')
    print('{"accuracy": 0.95}')
    note("chief has printed")
else:
    wait_for("chief has printed")
    print("late words")
""")
    out, _ = process.communicate(timeout=20)
    lines = out.splitlines()
    assert lines[-1] == '[worker 0] {"accuracy": 0.95}'
    assert "[worker 1] late words" in lines
    assert [line for line in lines if "worker 0" in line][:2] == [
        '[worker 0] {"draft": 1}',
        "[worker 0] between",
    ]


def test_when_one_worker_fails_the_other_is_stopped_with_all_it_started(
    start: Start, tmp_path: Path
) -> None:
    process = start("""
if index == 0:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    note("pids", f"{os.getpid()} {child.pid}")
    time.sleep(60)
wait_for("pids")
sys.exit(7)
""")
    _, err = process.communicate(timeout=20)
    assert process.returncode == 7
    assert "worker 1 failed first" in err.splitlines()[-1]
    assert "with exit code 7; the other one was then stopped" in err.splitlines()[-1]
    for pid in (tmp_path / "pids").read_text().split():
        wait_until_ended(int(pid))


def test_a_worker_that_ignores_sigterm_is_killed(start: Start, tmp_path: Path) -> None:
    process = start("""
if index == 1:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note("pid", os.getpid())
    time.sleep(60)
wait_for("pid")
os.kill(os.getpid(), signal.SIGSEGV)
""")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGSEGV
    assert "by signal 11 (SIGSEGV)" in err.splitlines()[-1]
    wait_until_ended(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_both_workers(start: Start, tmp_path: Path, signum: signal.Signals) -> None:
    process = start('note(f"pid {index}", os.getpid()); time.sleep(60)')
    pids = [int(wait_for_file(tmp_path / f"pid {index}")) for index in range(2)]
    process.send_signal(signum)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 128 + signum
    assert err.splitlines()[-1] == f"stopped by {signum.name}"
    for pid in pids:
        wait_until_ended(pid)


def test_workers_are_stopped_when_nobody_reads_their_output_any_more(
    start: Start, tmp_path: Path
) -> None:
    process = start("""
note(f"pid {index}", os.getpid())
while True:
    print("a line")
    time.sleep(0.01)
""")
    pids = [int(wait_for_file(tmp_path / f"pid {index}")) for index in range(2)]
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    assert process.wait(timeout=20) == 128 + signal.SIGPIPE
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    for pid in pids:
        wait_until_ended(pid)


def test_nothing_to_run_is_refused_with_the_usage() -> None:
    process = subprocess.run([sys.executable, str(TWO_WORKERS)], capture_output=True, text=True)
    assert process.returncode == 2
    assert process.stderr.startswith("usage:")
