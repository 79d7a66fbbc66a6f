"""The variables of the tasks of a Slurm step, and the cluster read from them."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fit_line
import pytest

from tfdist.testing import FakeCluster

_SHOW = """
import json, os, sys
from tfdist.cluster import find_cluster
cluster, task = find_cluster()
found = [task.index, cluster.jobs["worker"], os.environ.get("CUDA_VISIBLE_DEVICES")]
sys.stdout.write(json.dumps(found) + "\\n")  # In one piece: tasks share the output.
"""


@pytest.mark.parametrize(
    ("places", "nodes"),
    [
        (["--nodes=3", "--ntasks=4"], [1, 1, 2, 3]),
        (["--nodes=2", "--ntasks=2", "--nodelist=tfd[1,3]"], [1, 3]),
    ],
)
def test_every_task_of_a_step_knows_all_workers_and_its_own_place(
    slurm: Any, places: Sequence[str], nodes: Sequence[int]
) -> None:
    found = _show(slurm, places)
    assert [index for index, _, _ in found] == list(range(len(nodes)))
    workers = found[0][1]
    assert [other for _, other, _ in found] == [workers] * len(nodes)
    assert [address.partition(":")[0] for address in workers] == [f"tfd{node}" for node in nodes]
    assert len(set(workers)) == len(workers)


def test_two_steps_of_a_job_get_ports_apart(slurm: Any, tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text(_SHOW)
    steps = "srun -N2 python show.py; srun -N2 python show.py"
    done = slurm.run(["salloc", "--nodes=2", "--quiet", "bash", "-c", steps], cwd=tmp_path)
    lists = [set(json.loads(line)[1]) for line in done.stdout.splitlines()]
    assert len(lists) == 4, done.stderr
    assert sum(one.isdisjoint(lists[0]) for one in lists) == 2


def test_each_task_sees_its_own_gpu(slurm: Any) -> None:
    found = _show(slurm, ["--nodes=2", "--ntasks-per-node=2", "--gpus-per-task=1"])
    assert [gpu for _, _, gpu in found] == ["0", "1", "0", "1"]


def test_fit_under_srun_trains_as_one_process(
    slurm: Any, fake_cluster: FakeCluster, tmp_path: Path
) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    fake_cluster.run_script([fit_line.__file__, str(alone)], engine="none", forked=True)
    done = slurm.run(["srun", "--nodes=2", sys.executable, fit_line.__file__, str(tmp_path)])
    assert done.returncode == 0, done.stderr
    fit_line.check_workers(tmp_path, alone, 2)


def _show(slurm: Any, options: Sequence[str]) -> list[Any]:
    done = slurm.run(["srun", *options, "python", "-c", _SHOW])
    assert done.returncode == 0, done.stderr
    return sorted(json.loads(line) for line in done.stdout.splitlines())
