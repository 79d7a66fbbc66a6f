"""The properties of virtual hosts that the other tests in this folder rely on."""

import subprocess
from typing import Any


def test_a_command_runs_on_its_host(hosts: Any) -> None:
    for host in hosts:
        said = host.run(["sh", "-c", "hostname; ip -brief address show eth0"]).stdout
        assert said.split()[0] == host.name
        assert host.address in said


def test_hosts_know_each_other_by_name_and_a_cut_cable_keeps_them_apart(
    network: Any, hosts: Any
) -> None:
    reach = (
        "import socket, sys\n"
        "server = socket.create_server(('', 7000))\n"
        "print('listens', flush=True)\n"
        "server.accept()"
    )
    server = hosts[1].popen(["python", "-c", reach], stdout=subprocess.PIPE)

    def knock(limit_s: int) -> Any:
        code = f"import socket; socket.create_connection(('tfd2', 7000), {limit_s})"
        return hosts[0].run(["python", "-c", code])

    try:
        assert server.stdout.readline() == "listens\n"
        network.cut(hosts[1])
        assert "timed out" in knock(1).stderr
        network.reconnect(hosts[1])
        assert knock(30).returncode == 0  # A port that was just plugged in may lose the first try.
        assert server.wait(30) == 0
    finally:
        server.kill()
        server.communicate()


def test_a_command_keeps_its_process_id(hosts: Any) -> None:
    process = hosts[0].popen(["sh", "-c", "echo $$; exec sleep 60"], stdout=subprocess.PIPE)
    try:
        assert int(process.stdout.readline()) == process.pid
        assert process.pid in hosts[0].processes()
    finally:
        process.kill()
        process.communicate()
