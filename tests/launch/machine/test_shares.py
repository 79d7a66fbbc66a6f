"""The workers' shares of one machine's cores and GPUs."""

import pytest

from tfdist.launch.machine.cores_and_gpus import Machine, Share, bound_cores, share_environment

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")


def machine(num_cores: int, *, gpus: tuple[str, ...] = (), first: int = 0) -> Machine:
    cores = tuple(range(first, first + num_cores))
    return Machine(cores=cores, numa_nodes=(cores,), gpus=gpus)


def shares(
    num_workers: int, *, bind: str = "cores", threads: int | None = None, num_devices: int = 1
) -> list[Share]:
    return [
        Share(
            num_workers=num_workers,
            index=index,
            bind=bind,
            threads=threads,
            num_devices=num_devices,
        )
        for index in range(num_workers)
    ]


def cores_of(num_workers: int, on: Machine, bind: str = "cores") -> list[tuple[int, ...] | None]:
    return [bound_cores(share, on) for share in shares(num_workers, bind=bind)]


def gpus_of(num_workers: int, on: Machine, num_devices: int = 1) -> list[str]:
    return [
        share_environment(share, on, {})["CUDA_VISIBLE_DEVICES"]
        for share in shares(num_workers, num_devices=num_devices)
    ]


def test_all_workers_get_equally_many_cores() -> None:
    assert cores_of(2, machine(4)) == [(0, 1), (2, 3)]


@pytest.mark.parametrize("num_workers", range(1, 9))
def test_no_core_is_left_over_or_given_twice(num_workers: int) -> None:
    found = [cores or () for cores in cores_of(num_workers, machine(8, first=16))]
    assert [core for cores in found for core in cores] == list(range(16, 24))
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_with_fewer_cores_than_workers_none_is_bound() -> None:
    assert cores_of(3, machine(2)) == [None, None, None]


def test_workers_are_bound_to_nothing_if_the_user_wants_that() -> None:
    assert cores_of(2, machine(4), bind="none") == [None, None]


def test_workers_are_bound_to_memory_nodes_in_turn() -> None:
    nodes = ((0, 1, 4, 5), (2, 3, 6, 7))
    two_nodes = Machine(cores=tuple(range(8)), numa_nodes=nodes)
    assert cores_of(3, two_nodes, bind="numa") == [nodes[0], nodes[1], nodes[0]]


def test_threads_divide_the_cores() -> None:
    for share in shares(2):
        found = share_environment(share, machine(5), {})
        assert found == dict.fromkeys(THREADS, "2")


def test_there_is_one_thread_at_least() -> None:
    assert set(share_environment(shares(4)[0], machine(2), {}).values()) == {"1"}


def test_a_number_of_threads_that_the_user_has_set_is_left_alone() -> None:
    found = share_environment(shares(2)[0], machine(4), {"OMP_NUM_THREADS": "7"})
    assert found == {"OPENBLAS_NUM_THREADS": "2", "TF_NUM_INTRAOP_THREADS": "2"}


def test_an_empty_number_of_threads_counts_as_not_set() -> None:
    found = share_environment(shares(2)[0], machine(4), {"OMP_NUM_THREADS": ""})
    assert found["OMP_NUM_THREADS"] == "2"


def test_the_option_for_threads_wins_over_the_environment() -> None:
    share = shares(2, threads=3)[0]
    found = share_environment(share, machine(4), {"OMP_NUM_THREADS": "7"})
    assert found == dict.fromkeys(THREADS, "3")


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


def test_without_gpus_cuda_visible_devices_is_not_set() -> None:
    assert "CUDA_VISIBLE_DEVICES" not in share_environment(shares(1)[0], machine(4), {})
