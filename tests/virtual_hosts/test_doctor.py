"""`tfdist doctor --host`: what a run over these machines needs, each with a fix."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

Doctor = Callable[..., tuple[int, str]]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The folder of a program."""
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "train.py").write_text("print('training')\n")
    return folder


@pytest.fixture
def doctor(hosts: Any, ssh_agent: str, program: Path) -> Doctor:
    """Runs the command on the first host, with words; returns its exit code and its output."""

    def doctor(*words: str, folder: Path = program) -> tuple[int, str]:
        command = ["python", "-m", "tfdist", "doctor", *words]
        environ = {"OMPI_MCA_plm_rsh_agent": ssh_agent}
        done = hosts[0].run(command, cwd=folder, env=environ, timeout_s=60.0)
        return done.returncode, done.stdout + done.stderr

    return doctor


@contextmanager
def rule(host: Any, *words: str) -> Iterator[None]:
    """Within this context, a rule of the host's routing stands for a firewall."""
    host.run(["ip", "rule", "add", *words]).check_returncode()
    try:
        yield
    finally:
        host.run(["ip", "rule", "del", *words]).check_returncode()


def test_hosts_that_can_run_together_have_no_broken_line(doctor: Doctor, program: Path) -> None:
    code, said = doctor("--host", "tfd1:2,tfd2:2")
    assert code == 0, said
    first, second = said.split("\ntfd2\n", 1)
    assert "it is this machine" in first
    assert "`ssh tfd2 true` asks nothing" in second
    assert "as here: Python 3." in second and "TensorFlow 2." in second
    assert f"{program} is there, with the same train.py" in second
    assert "its clock agrees within" in second
    assert "it reaches the launcher here, at 10.77.0.1" in second
    for place, other in ((first, "tfd2"), (second, "tfd1")):
        for port in (3737, 3738):
            assert f"port {port} is reached from {other}; a message there and back" in place


def test_a_firewall_another_program_and_another_folder_are_named_with_the_fix(
    hosts: Any, doctor: Doctor, program: Path, tmp_path: Path
) -> None:
    shutil.copytree(program, tmp_path / "older")
    (tmp_path / "older" / "train.py").write_text("print('older')\n")
    hosts[1].run(["mount", "--bind", tmp_path / "older", program]).check_returncode()
    taken = "import socket, time; s = socket.create_server(('', 3737)); print(1, flush=True)\n"
    other = hosts[2].popen(["python", "-c", f"{taken}time.sleep(60)"], stdout=-1)
    try:
        other.stdout.readline()
        # Answers of tfd1's port 3737, and connections of tfd3 to tfd1, are lost.
        with (
            rule(hosts[0], "ipproto", "tcp", "sport", "3737", "blackhole"),
            rule(
                hosts[2], "ipproto", "tcp", "sport", "1024-65534", "to", "10.77.0.1", "unreachable"
            ),
        ):
            code, said = doctor("--host", "tfd1,tfd2,tfd3")
    finally:
        other.kill()
        other.wait()
        hosts[1].run(["umount", program]).check_returncode()
    assert code == 1, said
    first, second, third = said.replace("\ntfd3\n", "\ntfd2\n").split("\ntfd2\n")
    assert "tfd2 does not reach tfd1:3737: no answer within 5 s. Open TCP port 3737" in first
    assert f"{program}: another one is there: train.py. Run: rsync -a {program}/ tfd2:" in second
    assert "✗ it does not reach the launcher here: 10.77.0.1 (" in third, third
    assert "✗ port 3737 cannot be used: Address already in use. End the program" in third
    assert "--port 3738" in third


def test_a_host_without_the_folder_and_one_that_refuses_ssh_are_named(
    network: Any, hosts: Any, doctor: Doctor, tmp_path: Path
) -> None:
    folder = tmp_path / "only-here"
    (folder / "x").mkdir(parents=True)
    hosts[1].run(["mount", "-t", "tmpfs", "tmpfs", folder]).check_returncode()
    network.cut(hosts[2])
    try:
        code, said = doctor("--host", "tfd1,tfd2,tfd3,gone.invalid", folder=folder / "x")
    finally:
        hosts[1].run(["umount", folder]).check_returncode()
    assert code == 1, said
    assert f"✗ there is no {folder}/x, where the program starts. Run: rsync -a" in said
    assert "✗ ssh: connect to host tfd3 port 22: " in said
    assert "✗ ssh: Could not resolve hostname gone.invalid: " in said
    assert said.count("To try it: ssh ") == 2
