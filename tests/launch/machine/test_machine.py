"""The cores, memory nodes and GPUs of a machine that this process may use."""

import os
from pathlib import Path

import pytest

from tfdist.launch.machine import cores_and_gpus
from tfdist.launch.machine.cores_and_gpus import Machine, look_at_machine


@pytest.fixture
def linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of /sys and /proc: memory nodes in `nodes`, GPUs in `gpus`."""
    monkeypatch.setattr(cores_and_gpus, "_NUMA_NODES", tmp_path / "nodes")
    monkeypatch.setattr(cores_and_gpus, "_NVIDIA_GPUS", tmp_path / "gpus")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3, 8})
    return tmp_path


def add_node(linux: Path, number: int, cpus: str) -> None:
    folder = linux / "nodes" / f"node{number}"
    folder.mkdir(parents=True)
    (folder / "cpulist").write_text(f"{cpus}\n")


def add_gpus(linux: Path, count: int) -> None:
    for number in range(count):
        (linux / "gpus" / f"0000:0{number}:00.0").mkdir(parents=True)


def test_this_machine_has_the_cores_that_this_process_may_use() -> None:
    found = look_at_machine({})
    assert found.cores == tuple(sorted(os.sched_getaffinity(0)))
    assert sorted(core for node in found.numa_nodes for core in node) == list(found.cores)


def test_a_machine_without_sys_files_is_one_memory_node_without_gpus(linux: Path) -> None:
    assert look_at_machine({}) == Machine(cores=(0, 1, 2, 3, 8), numa_nodes=((0, 1, 2, 3, 8),))


def test_memory_nodes_hold_only_the_cores_that_this_process_may_use(linux: Path) -> None:
    add_node(linux, 0, "0-1,8-15")
    add_node(linux, 1, "2-7")
    assert look_at_machine({}).numa_nodes == ((0, 1, 8), (2, 3))


@pytest.mark.parametrize("cpus", ["", "16-31", "4,5"])
def test_memory_nodes_without_usable_cores_are_left_out(linux: Path, cpus: str) -> None:
    add_node(linux, 0, "0-3")
    add_node(linux, 1, cpus)
    assert look_at_machine({}).numa_nodes == ((0, 1, 2, 3),)


def test_gpus_are_counted_from_0(linux: Path) -> None:
    add_gpus(linux, 3)
    assert look_at_machine({}).gpus == ("0", "1", "2")


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("1,0", ("1", "0")),
        (" 2 , 3", ("2", "3")),
        ("GPU-8d1c,MIG-41b3/1/0", ("GPU-8d1c", "MIG-41b3/1/0")),
        ("0,-1,1", ("0",)),  # CUDA stops reading at the first word that names no GPU
        ("-1", ()),
        ("", ()),
        ("none", ()),
    ],
)
def test_gpus_are_those_that_the_user_has_left_visible(
    linux: Path, visible: str, names: tuple[str, ...]
) -> None:
    add_gpus(linux, 4)
    assert look_at_machine({"CUDA_VISIBLE_DEVICES": visible}).gpus == names


def test_cuda_visible_devices_adds_no_gpus(linux: Path) -> None:
    assert look_at_machine({"CUDA_VISIBLE_DEVICES": "0"}).gpus == ()
