import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import slow_link
import virtual_hosts
from results import Options
from slow_link import Found
from virtual_hosts import virtual_network

from tfdist.testing.run import wait_until

pytestmark = pytest.mark.processes

MBIT = 1e6


def found(**changes: Any) -> Found:
    values = {
        "model": "cnn",
        "engine": "grpc",
        "rate_bits": 200 * MBIT,
        "step": [0.062, 0.063, 0.061],
        "computation": [0.005, 0.070, 0.005],
        "communication": [0.060, 0.060, 0.060],
    }
    return Found(**(values | changes))


def test_a_step_is_over_the_longer_one_and_beside_the_sum_round_by_round() -> None:
    part = slow_link.make_part([found()], ())
    rows = part.groups["CNN, gRPC, 200 Mbit/s"]
    assert rows["tfdist's step"].over[1] == pytest.approx(0.061 / 0.060)  # of 1.03, 0.9, 1.02
    assert rows["one after the other"].over[1] == pytest.approx(0.065 / 0.060)
    ratio = part.ratios["CNN, gRPC, 200 Mbit/s: step over max(computation, communication)"]
    assert ratio == rows["tfdist's step"].over


def test_without_root_it_is_said_and_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    part = measure_nothing()
    assert part.missing == ("A slow link: network namespaces need root. Run this as root.",)
    assert (part.groups, part.ratios) == ({}, {})


def test_a_missing_program_is_named_with_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "tc" else f"/bin/{name}")
    (line,) = measure_nothing().missing
    assert line == "A slow link: tc not found. Install iproute2 and util-linux."


def measure_nothing() -> Any:
    return slow_link.measure(Options(rounds=1, models=("cnn",), cores=(0, 1), say=print))


needs_hosts = pytest.mark.skipif(
    virtual_hosts.why_impossible("tc") is not None, reason=str(virtual_hosts.why_impossible("tc"))
)


@needs_hosts
def test_the_hosts_are_gone_after_a_failure_with_all_that_ran_there() -> None:
    with pytest.raises(ZeroDivisionError), virtual_network(slow_link.NAMES) as network:
        slow_link.shape(network, 100 * MBIT)
        for host in network.hosts:
            assert "tbf" in qdisc_of(host) and "rate 100Mbit" in qdisc_of(host)
        sleeper = subprocess.Popen(network.hosts[1].command(["sleep", "1000"]))
        assert wait_until(lambda: psutil.Process(sleeper.pid).name() == "sleep", 20.0)
        networks = [network_of(host.pid) for host in network.hosts]
        raise ZeroDivisionError
    assert sleeper.wait() == -9
    assert not Path(network.folder).exists()
    assert not set(networks) & {network_of(int(p.name)) for p in processes()}


@needs_hosts
def test_mpirun_reaches_the_other_host_through_the_agent() -> None:
    with virtual_network(slow_link.NAMES) as network:
        command = [
            network.write_agent(),
            "-x",
            network.hosts[1].name,
            "hostname",
            "&&",
            "echo",
            "$NAME",
        ]
        done = subprocess.run(
            network.hosts[0].command(command),
            env={**os.environ, "NAME": "kept"},
            capture_output=True,
        )
    assert done.stdout.decode().split() == ["slow2", "kept"]


def qdisc_of(host: virtual_hosts.VirtualHost) -> str:
    command = host.command(["tc", "qdisc", "show", "dev", "eth0"])
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def processes() -> Sequence[Path]:
    return [path for path in Path("/proc").iterdir() if path.name.isdigit()]


def network_of(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None  # it has just ended
