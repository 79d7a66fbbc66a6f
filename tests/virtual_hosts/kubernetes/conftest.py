"""Pods on virtual hosts: one host per pod, with the pod's files, names and rights."""

import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tfdist.launch.machine.mpi import find_mpirun

# Tests of two folders need these, and conftest.py cannot be imported by its name.
_MANIFESTS = Path(__file__).parents[2] / "launch" / "kubernetes" / "conftest.py"
_FIXTURES = runpy.run_path(str(_MANIFESTS))
make, pod_commands = (_FIXTURES[name] for name in ("make", "pod_commands"))

# The image's folder of Python, if this machine's Python is a virtual environment.
_IMAGE = "/mnt/image"
_PATH = f"{_IMAGE}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# On top of this machine's folders lie some that the pod alone sees: nothing is changed below.
_BECOME_POD = """
set -e
hostname "$POD"
mount -t tmpfs tmpfs "$LAYERS"
for folder in /etc /mnt /root /run; do
    mkdir -p "$LAYERS/upper$folder" "$LAYERS/work$folder"
    mount -t overlay overlay \
        -o "lowerdir=$folder,upperdir=$LAYERS/upper$folder,workdir=$LAYERS/work$folder" "$folder"
done
mkdir -p /run/sshd "$IMAGE"
mount --bind "$PREFIX" "$IMAGE"
if [ -n "$KEYS" ]; then
    mkdir -p "$KEYS"
    mount -t tmpfs -o mode=755 tmpfs "$KEYS"
fi
cp --recursive "$FILES/." /
while [ "$1" != -- ]; do
    mkdir -p "$1"
    mount --bind "$2" "$1"
    shift 2
done
shift
cd /
exec "$@"
"""


@dataclass(kw_only=True)
class ScheduledPod:
    """A pod with its host, on which it runs once it was started.

    pod: Its command, environment and user.
    names: Lines of /etc/hosts with the names of other pods.
    folder: The folder of its log and of one folder per claim.
    """

    pod: Any
    host: Any
    names: str
    folder: Path
    process: "subprocess.Popen[str] | None" = None

    def start(self) -> None:
        """Starts the container."""
        pod = self.pod
        layers = self.folder / f"{pod.hostname}.layers"
        layers.mkdir()
        parameters = {
            "POD": pod.hostname,
            "LAYERS": str(layers),
            "FILES": str(self._write_files()),
            "KEYS": pod.key_folder or "",
            "IMAGE": _IMAGE,
            "PREFIX": sys.prefix,
        }
        variables = {"PATH": _PATH, "HOSTNAME": pod.hostname, "HOME": "/", **pod.environment}
        words = [f"{name}={value}" for name, value in variables.items()]
        command = [*_rights(pod), "env", "--ignore-environment", *words, *pod.command]
        become = ["unshare", "--mount", "--uts", "sh", "-c", _BECOME_POD, "sh", *self._claims()]
        with self.log.open("w") as log:
            self.process = self.host.popen(
                [*become, "--", *command], env=parameters, stdout=log, stderr=log
            )

    @property
    def log(self) -> Path:
        return self.folder / f"{self.pod.hostname}.log"

    def is_ready(self) -> bool:
        """Returns whether its readiness probe succeeds: a connection to sshd."""
        port = int(self.pod.command[self.pod.command.index("-p") + 1])
        knock = f"import socket; socket.create_connection(({self.host.address!r}, {port}), 1)"
        return self.host.run([sys.executable, "-c", knock]).returncode == 0

    def wait(self, limit_s: float) -> int:
        """Waits for its end, and returns its exit code."""
        assert self.process is not None
        return self.process.wait(limit_s)

    def stop(self, limit_s: float) -> int:
        """Sends it TERM, as Kubernetes does, and returns its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(limit_s)

    def _write_files(self) -> Path:
        """Returns a folder with the files that an image or an operator puts into the pod."""
        pod, folder = self.pod, self.folder / f"{self.pod.hostname}.files"
        own_name = f"127.0.0.1 localhost\n{self.host.address} {pod.hostname}\n"
        texts = {"/etc/hosts": own_name + self.names, "/etc/passwd": _users(pod), **pod.files}
        for path, text in texts.items():
            own = folder / path.lstrip("/")
            own.parent.mkdir(parents=True, exist_ok=True)
            own.write_text(text)
        if pod.key_folder:
            _copy_key(self.folder / "key", folder / pod.key_folder.lstrip("/"), pod.user)
        return folder

    def _claims(self) -> list[str]:
        """Returns the mount points of claims, and the folders mounted there."""
        words = []
        for path, claim in self.pod.claims.items():
            source = self.folder / claim
            source.mkdir(exist_ok=True)
            # As with fsGroup: the folder and new files in it belong to the group.
            os.chown(source, 0, self.pod.user)
            source.chmod(0o2775)
            words += [path, str(source)]
        return words


@pytest.fixture
def schedule(
    hosts: Sequence[Any], tmp_path: Path
) -> Iterator[Callable[[Sequence[Any]], list[ScheduledPod]]]:
    """Assigns a host to each pod; the claims are folders of tmp_path."""
    if shutil.which("setpriv") is None:
        pytest.skip("pods need setpriv (Debian: util-linux)")
    scheduled: list[ScheduledPod] = []

    def schedule(pods: Sequence[Any]) -> list[ScheduledPod]:
        placed = list(zip(pods, hosts[: len(pods)], strict=True))
        names = "".join(
            f"{host.address} {name}\n" for pod, host in placed for name in pod.dns_names
        )
        scheduled.extend(
            ScheduledPod(pod=pod, host=host, names=names, folder=tmp_path) for pod, host in placed
        )
        return scheduled

    yield schedule
    for pod in scheduled:
        if pod.process is not None:
            pod.process.kill()
            pod.process.wait()


def _users(pod: Any) -> str:
    """Returns the image's users. Over gRPC these need not include the pod's."""
    lines = [
        line
        for line in Path("/etc/passwd").read_text().splitlines()
        if pod.user == 0 or line.split(":")[2] != str(pod.user)
    ]
    if pod.key_folder and pod.user:
        lines.append(f"train:x:{pod.user}:{pod.user}::/:/bin/sh")
    return "".join(f"{line}\n" for line in lines)


def _copy_key(key: Path, folder: Path, user: int) -> None:
    """Puts the run's key where the operator mounts it, owned by root and readable only by root."""
    if not key.exists():
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-N", "", "-f", key], check=True
        )
    folder.mkdir(parents=True)
    for name, source in (
        ("id_rsa", key),
        ("id_rsa.pub", key.with_suffix(".pub")),
        ("authorized_keys", key.with_suffix(".pub")),
    ):
        (folder / name).write_text(source.read_text())
        (folder / name).chmod(0o644 if user else 0o600)


def _rights(pod: Any) -> list[str]:
    """Returns the prefix of a command that runs with the pod's user and capabilities."""
    # One more: what is in the image is readable, but perhaps not where it is on this machine.
    reads = "-all,+dac_read_search"
    bounding = ",".join([reads, *(f"+{name.lower()}" for name in pod.capabilities)])
    return [
        *("setpriv", f"--reuid={pod.user}", f"--regid={pod.user}", "--clear-groups"),
        *("--no-new-privs", f"--inh-caps={reads}", f"--ambient-caps={reads}"),
        f"--bounding-set={bounding}",
    ]


@pytest.fixture(scope="session")
def image_mpirun() -> str:
    """The path of mpirun in the image."""
    mpirun = find_mpirun()
    assert mpirun is not None
    path = Path(mpirun)
    return str(_IMAGE / path.relative_to(sys.prefix)) if path.is_relative_to(sys.prefix) else mpirun
