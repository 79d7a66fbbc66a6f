"""The commands of docs/two-machines.md on two machines that share a disk, with a real sshd."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from virtual_hosts import find_sshd, virtual_network, why_impossible

from tfdist.testing.run import wait_until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "two-machines.md").read_text()
# The machines share a disk, so that nothing is copied.
LEFT_OUT = r"^rsync -a .*$"
PASSWORD = "tfdist"
SHADOW = "root:$5$tfdist$JB.WVmYI9MxPVJEh9iNS610z.fRRwZuGh88L00zx4M/:19000:0:99999:7:::\n"
_LIMIT_S = 280.0


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """Machines a and b, each with an ~/.ssh of its own, and sshd on b, which asks a password."""
    if (problem := why_impossible()) is not None:
        pytest.skip(problem)
    if (sshd := find_sshd()) is None:
        pytest.skip("needs sshd and ssh (Debian: openssh-server)")
    key, shadow = tmp_path / "host_key", tmp_path / "shadow"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    shadow.write_text(SHADOW)
    (tmp_path / "sshd").write_text(
        f"HostKey {key}\nUsePAM no\nPermitRootLogin yes\nPidFile none\nStrictModes no\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    with virtual_network(("a", "b")) as network:
        a, b = network.hosts
        home = Path.home() / ".ssh"
        home.mkdir(mode=0o700, exist_ok=True)
        for host in (a, b):
            host.run(["mount", "-t", "tmpfs", "-o", "mode=700", "tmpfs", home]).check_returncode()
        b.run(["mount", "--bind", shadow, "/etc/shadow"]).check_returncode()
        server = b.popen([sshd, "-D", "-e", "-f", tmp_path / "sshd"], stderr=subprocess.DEVNULL)
        try:
            knock = ["bash", "-c", "</dev/tcp/b/22"]
            assert wait_until(lambda: a.run(knock).returncode == 0, _LIMIT_S)
            yield a, b
        finally:
            server.kill()
            server.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of README's smallest program."""
    [program, _] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "tfdist").mkdir()
    (tmp_path / "tfdist" / "smallest.py").write_text(program)
    return tmp_path / "tfdist"


def test_the_pages_commands_lead_from_bare_machines_to_a_training(
    machines: tuple[Any, Any], folder: Path, tmp_path: Path
) -> None:
    a, _ = machines
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    [without_ssh] = [block for block in blocks if "--node-rank" in block]
    blocks.remove(without_ssh)
    script, num_left_out = re.subn(LEFT_OUT, ":", "\n".join(blocks), flags=re.MULTILINE)
    assert num_left_out == 1
    answer = tmp_path / "answer"  # What a person answers: the password is asked for once.
    answer.write_text(
        '#!/bin/sh\ncase "$1" in *yes/no*) echo yes; exit ;; esac\n'
        f"mkdir {tmp_path}/asked && echo {PASSWORD}\n"
    )
    answer.chmod(0o755)
    environ = {"SSH_ASKPASS": str(answer), "SSH_ASKPASS_REQUIRE": "force", "PYTHONPATH": str(ROOT)}
    command = ["bash", "-exc", script]
    printed = tmp_path / "printed"
    with printed.open("w") as out:
        done = a.run(
            command,
            cwd=folder,
            env=environ,
            timeout_s=_LIMIT_S,
            capture_output=False,
            stdin=None,
            input="\n",
            stdout=out,
            stderr=out,
        )
    said = printed.read_text()
    assert done.returncode == 0, said
    for line in _lines(0, folder) + _lines(1, folder):
        assert re.search(f"^{line}", said, re.M), f"{line}\n{said}"


def _lines(place: int, folder: Path) -> list[str]:
    """Returns the lines of a block of output on the page as patterns: numbers may differ."""
    block = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)[place]
    shown = block.replace("/root/tfdist", str(folder)).splitlines()
    lines = [re.escape(line.rstrip()) for line in shown if line != "..."]
    return [re.sub(r"(?<![\w/-])\d[\d\\.]*", r"[0-9.]+", line) for line in lines]
