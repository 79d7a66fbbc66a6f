"""Makes virtual hosts, and removes them with all that runs on them when standard input ends.

    keep_hosts.py FOLDER NAME...

Each host has a network, a hostname, an /etc/hosts, a shared memory and the number of a boot of its
own; files and process ids are those of this machine. Their cables end in a bridge in one more
network, the switch; the machine's own network has no part in it. The line on standard output that
says "ready" maps names to process ids whose namespaces are the hosts; "switch" is the switch's.

The process ends shortly after its parent, also if the parent was killed, so nothing is left.
"""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

SUBNET = "10.77.0"
# Runs on the host itself. Its end takes the namespaces away, if nothing else runs there.
HOLD = """
hostname "$0" && mount --bind "$1" /etc/hosts && mount -t tmpfs tmpfs /dev/shm &&
    mount --bind "$2" /proc/sys/kernel/random/boot_id && ip link set lo up && echo ready && exec cat
"""
_END_LIMIT_S = 20.0


def hold(name: str, hosts_file: Path) -> "subprocess.Popen[str]":
    """Starts the process that keeps a host's namespaces until its standard input ends."""
    boot_file = hosts_file.with_name(f"boot-{name}")
    boot_file.write_text(f"{uuid.uuid4()}\n")
    files = (str(hosts_file), str(boot_file))
    holder = subprocess.Popen(
        ["unshare", "--net", "--uts", "--mount", "sh", "-c", HOLD, name, *files],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    if holder.stdout.readline() != "ready\n":
        sys.exit(f"{name} could not be made: exit code {holder.wait()}")
    return holder


def ip(pid: int, command: str) -> None:
    """Runs `ip` in the network of a process."""
    subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", "ip", *command.split()], check=True)


def connect(host: int, switch: int, number: int) -> None:
    """Plugs a cable into a host and into port `number` of the switch."""
    ip(host, f"link add eth0 type veth peer name port{number} netns {switch}")
    ip(host, f"addr add {SUBNET}.{number}/24 dev eth0")
    ip(host, "link set eth0 up")
    ip(switch, f"link set port{number} master bridge")
    ip(switch, f"link set port{number} up")


def processes_in(networks: set[str]) -> set[int]:
    """Returns the processes that run in one of these networks."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "ns" / "net") in networks:
                    found.add(int(entry.name))
            except OSError:
                continue  # it has just ended
    return found


def end_all(holders: "list[subprocess.Popen[str]]") -> None:
    """Kills what runs on the hosts, then the hosts."""
    networks = {os.readlink(f"/proc/{holder.pid}/ns/net") for holder in holders}
    kept = {holder.pid for holder in holders}
    give_up_s = time.monotonic() + _END_LIMIT_S
    while (left := processes_in(networks) - kept) and time.monotonic() < give_up_s:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)
    for holder in holders:
        holder.kill()
        holder.wait()


def main(folder: Path, names: list[str]) -> None:
    hosts_file = folder / "hosts"
    lines = [f"{SUBNET}.{number} {name}\n" for number, name in enumerate(names, start=1)]
    hosts_file.write_text("".join(["127.0.0.1 localhost\n", *lines]))
    holders: list[subprocess.Popen[str]] = []
    try:
        holders.append(hold("switch", hosts_file))
        ip(holders[0].pid, "link add bridge type bridge")
        ip(holders[0].pid, "link set bridge up")
        for number, name in enumerate(names, start=1):
            holders.append(hold(name, hosts_file))
            connect(holders[-1].pid, holders[0].pid, number)
        pids = [holder.pid for holder in holders]
        print("ready", json.dumps(dict(zip(["switch", *names], pids, strict=True))), flush=True)
        sys.stdin.read()
    finally:
        end_all(holders)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
