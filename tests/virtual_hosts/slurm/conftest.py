"""A real Slurm over the virtual hosts: controller on tfd1, a node on every host."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tfdist.testing.run import wait_until

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
_START_LIMIT_S = 90.0
_STOP_LIMIT_S = 5.0
_LEAVING_LIMIT_S = 5.0
# Slurm's default is 300. A job must end long before.
_NODE_DOWN_AFTER_S = 60
_CONFIGURATION = """
ClusterName=lab
SlurmctldHost={controller.name}({controller.address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
SlurmdTimeout={node_down_after_s}
GresTypes=gpu
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True, kw_only=True)
class SlurmCluster:
    """The running cluster; its commands run on tfd1."""

    hosts: tuple[Any, ...]
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which Slurm's commands find this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, command: Sequence[str], **options: Any) -> "subprocess.CompletedProcess[str]":
        """Runs a command on tfd1 to its end."""
        environ = {**options.pop("env", {}), **self.environment}
        return self.hosts[0].run(command, env=environ, **options)

    def popen(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[str]":
        """Starts a command on tfd1."""
        environ = {**options.pop("env", {}), **self.environment}
        return self.hosts[0].popen(command, env=environ, **options)

    def num_idle(self) -> int:
        """Returns how many nodes are ready for a job and have none."""
        said = self.run(["sinfo", "--noheader", "--states=idle", "--format=%D %t"]).stdout
        return sum(int(line.split()[0]) for line in said.splitlines() if line.endswith(" idle"))

    def job(self, job_id: str) -> dict[str, str]:
        """Returns what the controller knows about a job."""
        said = self.run(["scontrol", "show", "job", "--oneliner", job_id]).stdout
        return dict(word.split("=", 1) for word in said.split() if "=" in word)

    def submit(self, words: Sequence[str], cwd: Path, **options: Any) -> str:
        """Submits a job with `tfdist slurm` from a folder, and returns its id."""
        command = [sys.executable, "-m", "tfdist", "slurm", *words]
        done = self.run(command, cwd=cwd, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()[1].rstrip(":")

    def wait_for_end(self, job_id: str, limit_s: float) -> dict[str, str]:
        """Waits until the job has left its nodes, and returns the controller's record of it."""
        running = ("PENDING", "CONFIGURING", "RUNNING")
        has_ended = wait_until(lambda: self.job(job_id)["JobState"] not in running, limit_s)
        assert has_ended, self.job(job_id)
        # Its end is known when its nodes have reported it; a node that is cut off never does.
        wait_until(lambda: self.job(job_id)["JobState"] != "COMPLETING", _LEAVING_LIMIT_S)
        return self.job(job_id)

    def cancel_all(self) -> None:
        """Ends every job."""
        self.run(["scancel", "--user=root", "--signal=KILL", "--full"])
        self.run(["scancel", "--user=root"])

    def forget_jobs(self) -> None:
        """Frees nodes that were cut off and cannot report the end of their jobs."""
        nodes = ",".join(host.name for host in self.hosts)
        for state in ("down", "resume"):
            update = ["scontrol", "update", f"NodeName={nodes}", f"State={state}", "Reason=test"]
            self.run(update)


@pytest.fixture(scope="session")
def slurm_cluster(network: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Slurm's daemons, and munge's, until the end of the session."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    programs = {name: shutil.which(name, path=path) for name in _PROGRAMS}
    missing = [name for name, found in programs.items() if found is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (Debian: slurm-wlm, munge)")
    folder = tmp_path_factory.mktemp("slurm")
    nodes = "\n".join(
        f"NodeName={host.name} NodeAddr={host.address} CPUs=2 RealMemory=4000 Gres=gpu:2"
        for host in network.hosts
    )
    configuration = _CONFIGURATION.format(
        controller=network.hosts[0],
        folder=folder,
        nodes=nodes,
        node_down_after_s=_NODE_DOWN_AFTER_S,
    )
    (folder / "slurm.conf").write_text(configuration)
    # Any device does, since no task opens it.
    (folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    munge_options = [
        "--foreground",
        "--force",  # pytest's folders are for one user only
        f"--socket={folder}/munge.socket",
        f"--key-file={key}",
        *(f"--{kind}-file={folder}/munge.{kind}" for kind in ("pid", "log", "seed")),
    ]
    cluster = SlurmCluster(hosts=network.hosts, folder=folder)
    with ExitStack() as stack:

        def start(host: Any, program: str, *options: str) -> None:
            command = [programs[program], *options]
            output = stack.enter_context((folder / f"{program}-{host.name}.out").open("w"))
            process = host.popen(
                command, env=cluster.environment, cwd=folder, stdout=output, stderr=output
            )
            stack.callback(process.wait)
            stack.callback(process.kill)

        start(network.hosts[0], "munged", *munge_options)
        has_begun = wait_until((folder / "munge.socket").exists, _START_LIMIT_S)
        assert has_begun, (folder / f"munged-{network.hosts[0].name}.out").read_text()
        start(network.hosts[0], "slurmctld", "-D")
        for host in network.hosts:
            start(host, "slurmd", "-D")
        ready = wait_until(lambda: cluster.num_idle() == len(network.hosts), _START_LIMIT_S)
        logs = "\n".join(path.read_text() for path in folder.glob("*.log"))
        assert ready, f"Slurm's nodes did not become idle:\n{logs}"
        yield cluster
        cluster.cancel_all()


@pytest.fixture
def slurm(slurm_cluster: SlurmCluster, network: Any, hosts: Any) -> Iterator[SlurmCluster]:
    """The cluster with all nodes idle; jobs that a test leaves are ended."""
    assert wait_until(lambda: slurm_cluster.num_idle() == len(hosts), _START_LIMIT_S)
    yield slurm_cluster
    for host in hosts:
        network.reconnect(host)
    slurm_cluster.cancel_all()
    if not wait_until(lambda: slurm_cluster.num_idle() == len(hosts), _STOP_LIMIT_S):
        slurm_cluster.forget_jobs()
