"""Hosts that this machine cannot find are named before mpirun and ssh fail."""

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfdist.launch.cli import main
from tfdist.launch.machine.remote_hosts import (
    call_on_hosts,
    find_unknown_host,
    lost_hosts,
    own_names,
    refusal_of_ssh,
    refusals_of_hosts,
)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the names gpu1 and gpu2.example.com have an address, whatever the machine's DNS says."""

    def lookup(name: str, *_: Any) -> list[Any]:
        if name in ("gpu1", "gpu2.example.com"):
            return []
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", lookup)


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts an ssh on PATH whose -G prints this configuration for every host."""

    def put(configuration: str) -> None:
        program = tmp_path / "ssh"
        program.write_text(f"#!/bin/sh\n[ \"$1\" = -G ] && printf '{configuration}'\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return put


@pytest.mark.processes
@pytest.mark.parametrize(
    ("configuration", "is_unknown"),
    [
        ("hostname gpu2\\n", True),
        ("hostname gpu2.example.com\\nproxycommand none\\n", False),
        ("hostname gpu2\\nproxyjump login\\n", False),
        ("hostname gone.example.com\\n", True),
    ],
)
def test_a_name_without_an_address_is_known_if_sshs_configuration_has_one(
    known: None, ssh: Callable[[str], None], configuration: str, is_unknown: bool
) -> None:
    ssh(configuration)
    found = find_unknown_host(["gpu1", "gpu2"])
    assert found == (("gpu2", "Name or service not known") if is_unknown else None)


@pytest.mark.processes
def test_a_run_names_the_host_and_starts_nothing(
    known: None,
    ssh: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ssh("")
    for name in [name for name in os.environ if name.startswith(("OMPI_", "SLURM_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert main(["run", "--host", "gpu1:1,gpu3:1", "--", "true"]) == 2
    error = capsys.readouterr().err
    assert error.startswith('tfdist run: error: host "gpu3" is not known to this machine: Name or')
    assert error.rstrip().endswith(
        "Correct its name, or give it an address in DNS, /etc/hosts or ~/.ssh/config."
    )
    assert not list(Path().iterdir())


@pytest.mark.processes
def test_a_command_is_run_on_each_other_host_and_a_failure_is_reported(tmp_path: Path) -> None:
    shell = tmp_path / "shell"
    shell.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ "$1" != b ]\n')
    shell.chmod(0o700)
    hosts = ("a", "localhost", "b")
    failed = asyncio.run(call_on_hosts(hosts, [str(shell), "-q"], "rm", "-rf", "/x"))
    assert failed == frozenset()
    assert sorted((tmp_path / "calls").read_text().splitlines()) == [
        "-q a rm -rf /x",
        "-q b rm -rf /x",
    ]
    assert asyncio.run(call_on_hosts(hosts, [str(shell)], "true")) == {"b"}
    assert asyncio.run(call_on_hosts(hosts, ["no-such-shell"], "true")) == {"a", "b"}


@pytest.mark.processes
def test_this_machine_is_not_lost_if_ssh_does_not_reach_it_by_its_address() -> None:
    assert asyncio.run(lost_hosts(("127.0.0.1", "gone.invalid"), ["false"])) == {"gone.invalid"}


MPIRUN = """
--------------------------------------------------------------------------
ORTE was unable to reliably start one or more daemons.
This usually is caused by:
--------------------------------------------------------------------------
"""


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("ssh: connect to host 10.9.0.3 port 2222: Connection refused", "Start sshd on that host"),
        ("ssh: connect to host b port 22: No route to host", "Start sshd on that host"),
        ("ssh: Could not resolve hostname b: Name or service not known", "Correct the name"),
        ("Host key verification failed.", "accept the host's key"),
        ("ann@b: Permission denied (publickey,password).", "ssh-copy-id"),
        ("bash: line 1: orted: command not found", "on PATH"),
    ],
)
def test_the_reason_of_ssh_is_found_in_the_text_of_mpirun(line: str, fix: str) -> None:
    said = refusal_of_ssh([line, *MPIRUN.splitlines(), line])
    assert said is not None
    assert said.reason == line.rstrip(".")
    assert fix in said.fix


def test_the_text_of_mpirun_alone_has_no_reason_of_ssh() -> None:
    assert refusal_of_ssh(MPIRUN.splitlines()) is None


@pytest.mark.processes
def test_a_host_that_refuses_is_named_with_the_last_line_and_a_fix(tmp_path: Path) -> None:
    shell = tmp_path / "shell"
    shell.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        "a) ;;\n"
        "b) echo banner >&2; echo 'ann@b: Permission denied (publickey).' >&2; exit 255 ;;\n"
        "c) exit 3 ;;\n"
        "esac\n"
    )
    shell.chmod(0o700)
    found = asyncio.run(refusals_of_hosts(["a", "b", "c"], [str(shell)]))
    assert set(found) == {"b", "c"}
    assert found["b"].reason == "ann@b: Permission denied (publickey)"
    assert found["b"].fix == (f"Put your public key there: ssh-copy-id. To try it: {shell} b true")
    assert found["c"].reason == f"{shell} ended with exit code 3"
    assert f"{shell} c true" in found["c"].fix


def test_the_names_of_this_machine_are_known_without_a_name_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lookup(*_: Any) -> None:
        raise AssertionError("a name was looked up")

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    assert {"localhost", "127.0.0.1", socket.gethostname()} <= own_names()
    assert "gone.invalid" not in own_names()
