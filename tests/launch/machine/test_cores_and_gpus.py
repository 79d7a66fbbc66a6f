"""The cores and GPUs that this process may use, and the workers' shares of them."""

import os
from pathlib import Path

import pytest

from tfdist.launch.machine import cores_and_gpus
from tfdist.launch.machine.cores_and_gpus import (
    Machine,
    Share,
    bound_cores,
    look_at_machine,
    share_environment,
)

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")


def machine(num_cores: int, *, gpus: tuple[str, ...] = (), first: int = 0) -> Machine:
    cores = tuple(range(first, first + num_cores))
    return Machine(cores=cores, numa_nodes=(cores,), gpus=gpus)


def shares(
    num_workers: int, *, bind: str = "cores", threads: int | None = None, num_devices: int = 1
) -> list[Share]:
    wanted = {"bind": bind, "threads": threads, "num_devices": num_devices}
    return [Share(num_workers=num_workers, index=i, **wanted) for i in range(num_workers)]


def cores_of(num_workers: int, on: Machine, bind: str = "cores") -> list[tuple[int, ...] | None]:
    return [bound_cores(share, on) for share in shares(num_workers, bind=bind)]


def gpus_of(num_workers: int, on: Machine, num_devices: int = 1) -> list[str]:
    return [
        share_environment(share, on, {})["CUDA_VISIBLE_DEVICES"]
        for share in shares(num_workers, num_devices=num_devices)
    ]


@pytest.mark.parametrize("num_workers", range(1, 9))
def test_no_core_is_left_over_or_given_twice(num_workers: int) -> None:
    found = [cores or () for cores in cores_of(num_workers, machine(8, first=16))]
    assert [core for cores in found for core in cores] == list(range(16, 24))
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_workers_are_bound_to_nothing_if_there_are_too_few_cores_or_the_user_wants_that() -> None:
    assert cores_of(3, machine(2)) == [None, None, None]
    assert cores_of(2, machine(4), bind="none") == [None, None]


def test_workers_are_bound_to_memory_nodes_in_turn() -> None:
    nodes = ((0, 1, 4, 5), (2, 3, 6, 7))
    two_nodes = Machine(cores=tuple(range(8)), numa_nodes=nodes)
    assert cores_of(3, two_nodes, bind="numa") == [nodes[0], nodes[1], nodes[0]]


@pytest.mark.parametrize(
    ("num_workers", "num_cores", "option", "environ", "threads"),
    [
        (2, 5, None, {}, ["2", "2", "2"]),
        (4, 2, None, {}, ["1", "1", "1"]),
        # A number that the user has set in the environment is left alone, unless it is empty.
        (2, 4, None, {"OMP_NUM_THREADS": "7"}, [None, "2", "2"]),
        (2, 4, None, {"OMP_NUM_THREADS": ""}, ["2", "2", "2"]),
        (2, 4, 3, {"OMP_NUM_THREADS": "7"}, ["3", "3", "3"]),
    ],
)
def test_threads_divide_the_cores_unless_the_user_says_otherwise(
    num_workers: int,
    num_cores: int,
    option: int | None,
    environ: dict[str, str],
    threads: list[str | None],
) -> None:
    for share in shares(num_workers, threads=option):
        found = share_environment(share, machine(num_cores), environ)
        assert [found.get(name) for name in THREADS] == threads
        assert found.keys() <= set(THREADS)  # without GPUs none are named


def test_each_worker_gets_gpus_of_its_own() -> None:
    four = machine(4, gpus=("0", "1", "2", "3"))
    assert gpus_of(2, four) == ["0", "1"]
    assert gpus_of(2, four, num_devices=2) == ["0,1", "2,3"]
    assert "TF_FORCE_GPU_ALLOW_GROWTH" not in share_environment(shares(2)[0], four, {})


def test_gpus_are_taken_from_those_that_the_user_has_left_visible() -> None:
    assert gpus_of(2, machine(4, gpus=("5", "GPU-1a"))) == ["5", "GPU-1a"]


def test_too_few_gpus_are_shared_and_no_worker_takes_all_of_their_memory() -> None:
    two = machine(8, gpus=("0", "1"))
    assert gpus_of(3, two) == ["0", "1", "0"]
    assert gpus_of(2, two, num_devices=3) == ["0,1", "1,0"]
    for share in shares(3):
        assert share_environment(share, two, {})["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"


# The machine.


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
