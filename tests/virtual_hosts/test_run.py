"""`tfdist run --host`: one command on the first host starts workers on all of them."""

import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tfdist.launch.machine.mpi import horovod_problem
from tfdist.process.exit_codes import NO_SPACE
from tfdist.testing.run import wait_until

_LIMIT_S = 120.0
_CUT_LIMIT_S = 30.0  # 6 s on two idle cores; TCP alone takes minutes.
_NO_HOROVOD = horovod_problem()
needs_horovod = pytest.mark.skipif(_NO_HOROVOD is not None, reason=str(_NO_HOROVOD))
ENGINES = ["grpc", pytest.param("horovod", marks=needs_horovod)]

_TALK = """
import os, sys, time
print("worker", os.environ["TFDIST_INSTANCE_INDEX"], "on", os.uname().nodename, flush=True)
if sys.argv[1] == os.uname().nodename:
    sys.exit(7)
while True:
    time.sleep(0.1)
"""
# Launcher and agents notice after 5 s of silence, and not after 20.
_SHORT_SILENCE = """
import tfdist.launch.workers.channel as channel
channel.SILENCE_S = 5.0
"""


@pytest.fixture
def mpirun_settings(fake_agent: str) -> Iterator[dict[str, str]]:
    """MPI settings to reach the virtual hosts, which share /tmp but not a run's own folder."""
    with tempfile.TemporaryDirectory(prefix="tfd") as session:
        yield {
            "OMPI_MCA_plm_rsh_agent": fake_agent,
            "OMPI_MCA_orte_tmpdir_base": session,
        }


@needs_horovod
def test_over_horovod_workers_on_two_hosts_train_as_one_process(
    hosts: Any,
    mpirun_settings: dict[str, str],
    train_linear: str,
    check_weights: Any,
    tmp_path: Path,
) -> None:
    program = [train_linear, "--strategy=horovod", f"--out={tmp_path}"]
    command = _command("tfd1,tfd2", "horovod", program)
    done = hosts[0].run(command, cwd=tmp_path, env=mpirun_settings, timeout_s=_LIMIT_S)
    assert done.returncode == 0, done.stderr
    check_weights(tmp_path, 2)
    _check_who_is_done(done.stdout, 2)


@needs_horovod
def test_over_horovod_a_worker_on_another_host_that_fails_is_named(
    hosts: Any, mpirun_settings: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "talk.py").write_text(_TALK)
    command = _command("tfd1,tfd2,tfd3", "horovod", ["talk.py", "tfd3"])
    done = hosts[0].run(command, cwd=tmp_path, env=mpirun_settings, timeout_s=_LIMIT_S)
    assert done.returncode == 7, done.stderr
    assert "worker 2 failed first" in done.stderr
    assert "tfd3, process" in done.stderr


def test_a_worker_on_a_host_that_is_cut_off_is_named_in_time(
    network: Any,
    hosts: Any,
    mpirun_settings: dict[str, str],
    tmp_path: Path,
    within: Callable[[float], float],
) -> None:
    (tmp_path / "talk.py").write_text(_TALK)
    (tmp_path / "sitecustomize.py").write_text(_SHORT_SILENCE)
    environ = {**mpirun_settings, "PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}"}
    command = _command("tfd1,tfd2,tfd3", "grpc", ["talk.py", "none"])
    with (tmp_path / "out").open("w") as out:
        launcher = hosts[0].popen(command, cwd=tmp_path, env=environ, stdout=out, stderr=out)
    try:
        said = (tmp_path / "out").read_text
        assert wait_until(lambda: said().count("] worker") == 3, _LIMIT_S), said()
        network.cut(hosts[2])
        assert wait_until(lambda: launcher.poll() is not None, within(_CUT_LIMIT_S)), said()
        # Its agent ends it without a message from the launcher.
        assert wait_until(
            lambda: "talk.py" not in str(hosts[2].processes()), within(_CUT_LIMIT_S)
        ), hosts[2].processes()
    finally:
        launcher.kill()
        launcher.wait()
    assert launcher.returncode == 124, said()
    assert "worker 2 failed first" in said()
    assert "tfd3" in said()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_goes_on_without_a_lost_host_and_takes_it_in_when_it_is_back(
    network: Any,
    hosts: Any,
    mpirun_settings: dict[str, str],
    ssh_agent: str,
    tmp_path: Path,
    within: Callable[[float], float],
    engine: str,
) -> None:
    (tmp_path / "talk.py").write_text(
        "import os, sys, time\n"
        "number, start = os.environ['TFDIST_NUM_INSTANCES'], os.environ['TFDIST_RESTART_COUNT']\n"
        "snapshots = '/dev/shm/tfdist-snapshots-' + os.environ['TFDIST_RUN']\n"
        "os.makedirs(snapshots, exist_ok=True)\n"
        "print(f'one of {number}, start {start}', flush=True)\n"
        "while start != '2':\n    time.sleep(0.1)\n"
        f"sys.exit({NO_SPACE})\n"
    )
    (tmp_path / "sitecustomize.py").write_text(_SHORT_SILENCE)
    environ = {
        **mpirun_settings,
        "OMPI_MCA_plm_rsh_agent": ssh_agent,
        "PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}",
    }

    def snapshots() -> list[str]:
        listing = ["sh", "-c", "ls -d /dev/shm/tfdist-snapshots-*"]
        return [host.run(listing).stdout for host in hosts]

    before = snapshots()  # Another test may have left some on a host that was cut off.
    elastic = ("--max-restarts=2", "--min-instances=2", "--rejoin-interval=1", "--output=all")
    command = _command("tfd1,tfd2,tfd3", engine, ["talk.py"], *elastic)
    with (tmp_path / "out").open("w") as out:
        launcher = hosts[0].popen(command, cwd=tmp_path, env=environ, stdout=out, stderr=out)
    try:
        said = (tmp_path / "out").read_text
        assert wait_until(lambda: said().count("one of 3, start 0") == 3, _LIMIT_S), said()
        network.cut(hosts[2])
        assert wait_until(lambda: said().count("one of 2, start 1") == 2, _LIMIT_S), said()
        assert "tfd3 cannot be reached: going on with 2 of 3 instances" in said()
        network.reconnect(hosts[2])
        assert wait_until(lambda: said().count("one of 3, start 2") == 3, _LIMIT_S), said()
        assert "tfd3 can be reached again: the workers save, and start again as 3" in said()
        assert launcher.wait(within(_CUT_LIMIT_S)) == NO_SPACE, said()
    finally:
        launcher.kill()
        launcher.wait()
    assert "tfdist: interrupted 2 times" in said()
    assert snapshots() == before


def test_over_grpc_ssh_starts_workers_that_meet(
    hosts: Any, ssh_agent: str, meet_others: str, tmp_path: Path
) -> None:
    shell = f"--mpi-global-args=--mca plm_rsh_agent '{ssh_agent}'"
    program = ["--", meet_others, str(tmp_path)]
    run = ["python", "-m", "tfdist", "run", "--host=tfd1:1,tfd2:2", shell, "-v", *program]
    done = hosts[0].run(run, cwd=tmp_path, timeout_s=_LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert "mpirun" not in done.stderr
    hosts_of_workers = {0: "tfd1", 1: "tfd2", 2: "tfd2"}
    for worker, host in hosts_of_workers.items():
        assert f"worker {worker} of 3 on {host} is done" in done.stdout


@needs_horovod
def test_a_host_that_refuses_ssh_is_named_before_mpirun_starts(hosts: Any, tmp_path: Path) -> None:
    refusing = tmp_path / "refusing"
    said = "ssh: connect to host tfd2 port 22: Connection refused"
    refusing.write_text(f"#!/bin/sh\necho '{said}' >&2; exit 255\n")
    refusing.chmod(0o755)
    environ = {"OMPI_MCA_plm_rsh_agent": str(refusing)}
    command = _command("tfd1,tfd2", "horovod", ["true"])
    done = hosts[0].run(command, cwd=tmp_path, env=environ, timeout_s=_LIMIT_S)
    assert done.returncode == 1, done.stderr
    [line] = [one for one in done.stderr.splitlines() if "could not be started" in one]
    assert line.startswith(f"tfdist: the workers could not be started: tfd2: {said}. Start sshd")
    assert line.endswith(f"To try it: {refusing} tfd2 true")
    [log] = tmp_path.glob("tfdist-logs/*/start.log")
    assert log.read_text() == ""  # mpirun's output


def test_over_grpc_a_failure_a_host_that_refuses_and_ctrl_c_end_all_workers(
    hosts: Any, fake_agent: str, tmp_path: Path
) -> None:
    (tmp_path / "talk.py").write_text(_TALK)
    environ = {"OMPI_MCA_plm_rsh_agent": fake_agent}
    command = _command("tfd1,tfd2,tfd3", "grpc", ["talk.py", "tfd3"])
    done = hosts[0].run(command, cwd=tmp_path, env=environ, timeout_s=_LIMIT_S)
    assert done.returncode == 7, done.stderr
    assert "worker 2 failed first" in done.stderr
    assert "tfd3, process" in done.stderr

    refusing = tmp_path / "refusing"
    refusing.write_text("#!/bin/sh\necho Permission denied >&2; exit 255\n")
    refusing.chmod(0o755)
    environ["OMPI_MCA_plm_rsh_agent"] = str(refusing)
    done = hosts[0].run(command, cwd=tmp_path, env=environ, timeout_s=_LIMIT_S)
    assert done.returncode == 1, done.stderr
    assert re.search("refusing to tfd[23] ended with exit code 255 before", done.stderr)
    assert "Permission denied" in done.stderr

    environ["OMPI_MCA_plm_rsh_agent"] = fake_agent
    command = _command("tfd1,tfd2", "grpc", ["talk.py", "none"])
    with (tmp_path / "out").open("w") as out:
        launcher = hosts[0].popen(command, cwd=tmp_path, env=environ, stdout=out, stderr=out)
    said = (tmp_path / "out").read_text
    assert wait_until(lambda: said().count("] worker") == 2, _LIMIT_S), said()
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(_CUT_LIMIT_S) == 130, said()
    assert "talk.py" not in str(hosts[1].processes())


def test_one_command_on_each_host_trains_as_one_process(
    hosts: Any, train_linear: str, check_weights: Any, tmp_path: Path
) -> None:
    program = [train_linear, "--strategy=grpc", f"--out={tmp_path}"]
    nodes = ["python", "-m", "tfdist", "run", "--nodes=tfd1:3737,tfd2:3737", "--progress=none"]
    with (tmp_path / "out").open("w") as out:
        command = [*nodes, "--node-rank=0", "--", *program]
        first = hosts[0].popen(command, cwd=tmp_path, stdout=out, stderr=out)
    try:
        command = [*nodes, "--node-rank=1", "--", *program]
        second = hosts[1].run(command, cwd=tmp_path, timeout_s=_LIMIT_S)
        assert first.wait(_LIMIT_S) == 0, (tmp_path / "out").read_text()
    finally:
        first.kill()
        first.wait()
    assert second.returncode == 0, second.stderr
    assert "instances |     1     |" in second.stderr
    check_weights(tmp_path, 2)


def test_on_a_machine_whose_loopback_has_ipv6_alone_a_run_says_what_to_do(
    hosts: Any, tmp_path: Path
) -> None:
    address = ("127.0.0.1/8", "dev", "lo")
    hosts[2].run(["ip", "address", "del", *address]).check_returncode()
    try:
        command = ["python", "-m", "tfdist", "run", "--", "true"]
        done = hosts[2].run(command, cwd=tmp_path, timeout_s=_LIMIT_S)
    finally:
        hosts[2].run(["ip", "address", "add", *address]).check_returncode()
    assert done.returncode == 1
    assert (
        "tfdist: the workers could not be started: this machine has no address 127.0.0.1, by which "
        "launcher and workers meet. Run as root: ip address add 127.0.0.1/8 dev lo\n"
    ) in done.stderr


def _check_who_is_done(said: str, num_workers: int) -> None:
    for worker in range(num_workers):
        assert f"worker {worker} of {num_workers} on tfd{worker + 1} is done" in said


def _command(hosts: str, engine: str, program: Sequence[str], *more: str) -> list[str]:
    size = f"--num-instances={len(hosts.split(','))}"
    network = "--host-subnet=10.77.0.0/24"
    return [
        *("python", "-m", "tfdist", "run", f"--engine={engine}", size, f"--host={hosts}", network),
        *("--progress=none", "--grace=5", *more, "--", *program),
    ]
