"""Workers on several hosts, started by hand or with mpirun, and the end of one that is cut off."""

import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tfdist.launch.machine.mpi import (
    find_mpirun,
    mpirun_environment,
    mpirun_options,
)
from tfdist.process.exit_codes import LOST_WORKER
from tfdist.testing.run import wait_until

_SUBNET = "10.77.0.0/24"
_PORT = 4000
_LIMIT_S = 120.0
# On two idle cores 6 s, and 11 where the session of a host that is gone is closed; TCP alone takes
# minutes.
_CUT_LIMIT_S = 40.0
needs_mpirun = pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun")


@needs_mpirun
def test_ranks_on_three_hosts_meet_over_mpi(
    hosts: Any, ssh_agent: str, meet_others: str, tmp_path: Path
) -> None:
    # test_run.py trains over Horovod.
    _mpirun(hosts, ssh_agent, ["python", meet_others, str(tmp_path)])


def test_grpc_over_hosts_with_names_trains_as_one_process(
    hosts: Any, train_linear: str, check_weights: Any, tmp_path: Path
) -> None:
    workers = _start_grpc(hosts[:2], tmp_path, ["python", train_linear, f"--out={tmp_path}"])
    assert [worker.wait(_LIMIT_S) for worker in workers] == [0, 0], _logs(tmp_path)
    check_weights(tmp_path, 2)


def test_a_worker_that_is_cut_off_is_named_by_all_others_in_time(
    network: Any,
    hosts: Any,
    train_linear: str,
    tmp_path: Path,
    within: Callable[[float], float],
) -> None:
    # They train until a host is cut off, which they notice after 5 s and not after 20.
    endless = ("--num-steps=1000000", "--seconds-per-step=0.05", "--unreachable-after-s=5")
    workers = _start_grpc(hosts, tmp_path, ["python", train_linear, *endless])
    try:
        assert wait_until(lambda: "step = 5" in _logs(tmp_path), _LIMIT_S), _logs(tmp_path)
        network.cut(hosts[2])
        has_ended = wait_until(
            lambda: None not in [worker.poll() for worker in workers], within(_CUT_LIMIT_S)
        )
        assert has_ended, _logs(tmp_path)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [worker.returncode for worker in workers] == [LOST_WORKER] * 3
    for survivor in (0, 1):
        last = (tmp_path / f"{survivor}.log").read_text().splitlines()[-1]
        assert last.startswith(f"WorkerLostError: Lost worker 2 (tfd3:{_PORT}) while training")


def _mpirun(hosts: Sequence[Any], agent: str, command: Sequence[str]) -> None:
    """Runs a rank on each host."""
    mpirun = find_mpirun()
    assert mpirun is not None
    options = mpirun_options(mpirun, is_local=False, subnet=_SUBNET, kill_after_s=1.0)
    names = ",".join(host.name for host in hosts)
    # Virtual hosts share /tmp: a daemon of an earlier run would remove this run's files.
    with tempfile.TemporaryDirectory(prefix="tfd") as session:
        done = hosts[0].run(
            [
                *(mpirun, *options, "--mca", "plm_rsh_agent", agent),
                *("--mca", "orte_tmpdir_base", session),
                *("-np", str(len(hosts)), "-H", names, *command),
            ],
            env=mpirun_environment(mpirun, {}),
            timeout_s=_LIMIT_S,
        )
    assert done.returncode == 0, done.stderr
    for index, host in enumerate(hosts):
        assert f"worker {index} of {len(hosts)} on {host.name} is done" in done.stdout


def _start_grpc(
    hosts: Sequence[Any], folder: Path, command: Sequence[str]
) -> "list[subprocess.Popen[str]]":
    """Starts a worker on each host, with a log in the folder."""
    addresses = [f"{host.name}:{_PORT}" for host in hosts]
    workers = []
    for index, host in enumerate(hosts):
        task = {"type": "worker", "index": index}
        config = json.dumps({"cluster": {"worker": addresses}, "task": task})
        with (folder / f"{index}.log").open("w") as log:
            workers.append(
                host.popen(
                    [*command, "--strategy=grpc"], env={"TF_CONFIG": config}, stdout=log, stderr=log
                )
            )
    return workers


def _logs(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("*.log")))
