"""The ports on which the processes of a run listen are those that the guide lists."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest

from tfdist.cluster.rendezvous.protocol import Member
from tfdist.cluster.rendezvous.sockets import listening
from tfdist.launch.machine.ports import ReservedPorts
from tfdist.strategies.horovod.membership import _listen
from tfdist.testing import engine_problem

PRELUDE = Path(__file__).parents[1] / "programs" / "launched_prelude.py"
GUIDE = Path(__file__).parents[2] / "docs" / "launching.md"
# Writes where Python listens while the workers join, then waits.
PROGRAM = """
import json, socket
listen, hosts = socket.socket.listen, []
def noting_listen(listener, *words):
    listen(listener, *words)
    hosts.append(listener.getsockname()[0])
socket.socket.listen = noting_listen
import tensorflow as tf
from tfdist.strategies import strategy_for_run
with strategy_for_run().scope():
    tf.Variable(1.0)
(here / f"hosts-{index}").write_text(json.dumps(hosts))
ready()
wait_for("go")
"""


def listed() -> dict[str, str]:
    """Returns the addresses of each row in the guide: "loopback", "all" or "none"."""
    text = GUIDE.read_text()
    table = text[text.index("### Which ports") :].split("\n\n")[1]
    found = {}
    for line in table.splitlines()[2:]:
        what, port, addresses = (cell.strip() for cell in line.strip("|").split("|"))
        is_none = re.match(r"none|on one machine none", port)
        here = re.match(r"loopback|\*\*all\*\*", addresses)  # On one machine: what stands first.
        found[what] = "none" if is_none else here[0].strip("*") if here else ""
    return found


def kind_of(address: str) -> str:
    return "loopback" if address.startswith("127.") or address == "::1" else "all"


def addresses_of(processes: list[psutil.Process]) -> str:
    found = {
        kind_of(one.laddr.ip)
        for process in processes
        for one in process.net_connections(kind="inet")
        if one.status == psutil.CONN_LISTEN
    }
    return _widest(found)


def joined_at(run: Any, index: int) -> str:
    """Returns the addresses on which a worker's own code listened while the workers joined."""
    hosts = json.loads((run.folder / f"hosts-{index}").read_text())
    return _widest(set(map(kind_of, hosts)))


def _widest(kinds: set[str]) -> str:
    return next((kind for kind in ("all", "loopback") if kind in kinds), "none")


@pytest.mark.processes
@pytest.mark.parametrize("engine", ["grpc", "horovod"])
def test_a_run_listens_where_the_guide_says(
    launch: Callable[..., Any], engine: Literal["grpc", "horovod"], tmp_path: Path
) -> None:
    if (problem := engine_problem(engine)) is not None:
        pytest.skip(problem)
    program = tmp_path / "run-0" / "program.py"
    program.parent.mkdir()
    program.write_text(PRELUDE.read_text() + PROGRAM)
    run = launch((sys.executable, str(program)), f"--engine={engine}")
    run.wait_until_ready(0, 1)
    mpirun = [one for one in run.living() if one.cmdline()[0].endswith("mpirun")]
    agents = [one for one in run.living("tfdist.launch.run.agent") if one not in mpirun]
    workers = [one for one in run.living(str(program)) if one.pid != run.process.pid]
    assert len(workers) == 2
    launcher = psutil.Process(run.process.pid)
    known = [launcher, *mpirun, *agents, *workers]
    assert addresses_of([one for one in run.living() if one not in known]) == "none"
    seen = {
        "the launcher, for its agents": addresses_of([launcher]),
        "agents": addresses_of(agents),
    }
    if engine == "grpc":
        seen |= {
            "gRPC workers, until all have joined": joined_at(run, 0),
            "gRPC workers, after that: TensorFlow's server": addresses_of(workers),
        }
    else:
        seen |= {
            "Horovod's rank 0, until all ranks have joined its watch": joined_at(run, 0),
            "Horovod's workers, after that": addresses_of(workers),
            "`mpirun`, and its daemon on other hosts": addresses_of(mpirun),
        }
        assert joined_at(run, 1) == "none"
    (run.folder / "go").touch()
    assert run.wait() == 0, run.err
    assert seen == {what: listed()[what] for what in seen}


@pytest.mark.parametrize("host", ["127.0.0.1", "another-host.test"])
def test_workers_and_ps_tasks_listen_on_loopback_only_if_their_address_is_there(
    host: str,
) -> None:
    with ReservedPorts(1) as reserved:
        ps = Member(name="ps 0", address=f"{host}:{reserved.ports[0]}")
        with listening(ps) as listeners:
            kinds = {kind_of(listener.getsockname()[0]) for listener in listeners}
    is_here = host == "127.0.0.1"
    assert kinds == {"loopback" if is_here else "all"}
    assert is_here == (listed()["a ps task, until the chief is done"] in kinds)


@pytest.mark.parametrize("on_one_host", [True, False])
def test_rank_0_listens_on_loopback_only_if_all_ranks_are_there(on_one_host: bool) -> None:
    row = listed()["Horovod's rank 0, until all ranks have joined its watch"]
    with _listen(on_one_host) as listener:
        assert on_one_host == (kind_of(listener.getsockname()[0]) == row)
