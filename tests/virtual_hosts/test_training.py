"""Workers on three hosts, started by hand or with mpirun, and the end of one that is cut off."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfdist.launch.machine.mpi import find_mpirun, mpirun_environment, mpirun_options
from tfdist.process.exit_codes import LOST_WORKER
from tfdist.testing.run import wait_until

_PORT = 4000
_LIMIT_S = 120.0
# On two idle cores 6 s, and 11 where the session of a host that is gone is closed; TCP alone takes
# minutes.
_CUT_LIMIT_S = 40.0


@pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun")
def test_ranks_on_three_hosts_meet_over_mpi(
    hosts: Any, ssh_agent: str, meet_others: str, tmp_path: Path
) -> None:
    # test_run.py trains over Horovod.
    mpirun = find_mpirun()
    assert mpirun is not None
    options = mpirun_options(mpirun, is_local=False, subnet="10.77.0.0/24", kill_after_s=1.0)
    # Virtual hosts share /tmp: a daemon of an earlier run would remove this run's files.
    with tempfile.TemporaryDirectory(prefix="tfd") as session:
        settings = {"plm_rsh_agent": ssh_agent, "orte_tmpdir_base": session}
        words = [mpirun, *options, "-np", "3", "-H", ",".join(host.name for host in hosts)]
        words += [word for name, value in settings.items() for word in ("--mca", name, value)]
        done = hosts[0].run(
            [*words, "python", meet_others, str(tmp_path)],
            env=mpirun_environment(mpirun, {}),
            timeout_s=_LIMIT_S,
        )
    assert done.returncode == 0, done.stderr
    for index, host in enumerate(hosts):
        assert f"worker {index} of 3 on {host.name} is done" in done.stdout


def test_a_worker_that_is_cut_off_is_named_by_all_others_in_time(
    network: Any, hosts: Any, train_linear: str, tmp_path: Path, within: Callable[[float], float]
) -> None:
    # They train until a host is cut off, which they notice after 5 s and not after 20.
    endless = ("--num-steps=1000000", "--seconds-per-step=0.05", "--unreachable-after-s=5")
    command = ["python", train_linear, "--strategy=grpc", *endless]
    cluster = {"worker": [f"{host.name}:{_PORT}" for host in hosts]}
    workers = []
    for index, host in enumerate(hosts):
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
        with (tmp_path / f"{index}.log").open("w") as log:
            workers.append(host.popen(command, env={"TF_CONFIG": config}, stdout=log, stderr=log))
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


def _logs(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("*.log")))
