"""`tfdist run --nodes`: a launcher on each node, without ssh, and without one above them."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from tfdist.launch.machine.ports import ReservedPorts

Launch = Callable[..., Any]

MEETING = """
    from tfdist.cluster import find_cluster, meet
    cluster, task = find_cluster()
    meet(cluster, task)
    local = os.environ["TFDIST_LOCAL_INSTANCE_INDEX"]
    number = f"{cluster.worker_index(task)} of {len(cluster.workers)}"
    sys.stdout.write(f"worker {number}, here {local}\\n")
    """


@pytest.mark.processes
def test_the_workers_of_two_launchers_meet(launch: Launch) -> None:
    first = 0
    while not first:  # A node has two ports: the second one follows the first.
        with ReservedPorts(4) as ports:
            found = sorted(ports.ports)
        first = found[0] if found[-1] - found[0] == 3 else 0
    nodes = f"127.0.0.1:{first},localhost:{first + 2}"
    runs = [
        launch(MEETING, "--nodes", nodes, "--node-rank", str(rank), num_instances=4)
        for rank in range(2)
    ]
    assert [run.wait() for run in runs] == [0, 0], [run.err for run in runs]
    for rank, run in enumerate(runs):
        said = sorted(re.findall(r"^\[(\d)\] worker (\d) of 4, here (\d)$", run.out, re.M))
        own = [2 * rank, 2 * rank + 1]
        assert said == [(str(index), str(index), str(index % 2)) for index in own]
        assert run.log(f"worker-{own[1]}").startswith("worker")
