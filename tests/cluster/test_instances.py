"""The place of this process among the instances of the run, and its share of the work."""

from collections.abc import Callable
from typing import Any

import pytest

from tfdist.cluster import ClusterError, instances
from tfdist.cluster.environment import find_engine, find_instance, find_launched_replicas
from tfdist.cluster.instance_variables import instance_environment
from tfdist.cluster.instances import Instance

WORKERS = '{"cluster": {"worker": ["a:1", "a:2", "b:1"]}, "task": {"type": "worker", "index": 1}}'
CHIEF = (
    '{"cluster": {"chief": ["a:1"], "worker": ["a:2"], "evaluator": ["a:3"]}, '
    '"task": {"type": "%s", "index": 0}}'
)
STEP = {
    "SLURM_JOB_ID": "17",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NODELIST": "n[08-09],m",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "1",
}
MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
HOROVOD = {name.replace("OMPI_COMM_WORLD", "HOROVOD"): value for name, value in MPI.items()}


def launched(**numbers: int) -> dict[str, str]:
    """Instance 1 of 2 on one machine, with 2 of 4 replicas; or as the numbers say."""
    default = {
        "index": 1,
        "num_instances": 2,
        "local_index": 1,
        "num_total_replicas": 4,
        "devices_per_replica": 1,
    }
    return instance_environment(**{**default, **numbers})


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Sets variables for the functions that read the process's own environment."""

    def set_all(variables: dict[str, str]) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_all


# Who says it.


def test_the_launcher_says_everything() -> None:
    assert find_instance(launched(devices_per_replica=3)) == Instance(
        index=1,
        num_instances=2,
        local_index=1,
        num_total_replicas=4,
        num_local_replicas=2,
        replica_index_offset=2,
        devices_per_replica=3,
        source="tfdist run",
    )


@pytest.mark.parametrize(
    ("variables", "place", "num_local", "source"),
    [
        (MPI, (3, 4, 1), 2, "mpirun"),
        (HOROVOD, (3, 4, 1), 2, "horovodrun"),
        ({**STEP, **MPI}, (3, 4, 1), 2, "mpirun"),
        ({"TF_CONFIG": WORKERS}, (1, 3, 1), 2, "TF_CONFIG"),
        ({"TF_CONFIG": WORKERS.replace('"index": 1', '"index": 2')}, (2, 3, 0), 1, "TF_CONFIG"),
        ({"TF_CONFIG": WORKERS, **MPI}, (1, 3, 1), 2, "TF_CONFIG"),  # mpirun only started them
        ({"TF_CONFIG": CHIEF % "chief"}, (0, 2, 0), 2, "TF_CONFIG"),
        ({"TF_CONFIG": CHIEF % "worker"}, (1, 2, 1), 2, "TF_CONFIG"),
        (STEP, (3, 5, 1), 2, "Slurm"),
        ({}, (0, 1, 0), 1, ""),
        ({"TF_CONFIG": CHIEF % "evaluator"}, (0, 1, 0), 1, ""),  # It is no instance.
    ],
)
def test_without_the_launcher_the_engine_says_it(
    variables: dict[str, str], place: tuple[int, int, int], num_local: int, source: str
) -> None:
    index, num_instances, local_index = place
    assert find_instance(variables) == Instance(
        index=index,
        num_instances=num_instances,
        local_index=local_index,
        num_local_instances=num_local,
        num_total_replicas=num_instances,
        replica_index_offset=index,
        source=source,
    )


def test_the_engine_says_how_many_instances_share_the_machine(environ: Any) -> None:
    of_launcher = launched(num_instances=3, num_total_replicas=3)
    assert find_instance({**of_launcher, "TF_CONFIG": WORKERS}).num_local_instances == 2
    environ(MPI)
    assert instances.num_local_instances() == 2


@pytest.mark.parametrize(
    ("variables", "is_there"),
    [
        ({}, False),
        (launched(), False),
        (launched(has_evaluator=True), True),
        ({"TF_CONFIG": WORKERS}, False),
        ({"TF_CONFIG": CHIEF % "chief"}, True),
        ({"TF_CONFIG": CHIEF.replace(', "evaluator": ["a:3"]', "") % "evaluator"}, True),
    ],
)
def test_an_evaluator_is_known_from_the_launcher_and_from_tf_config(
    environ: Callable[[dict[str, str]], None], variables: dict[str, str], is_there: bool
) -> None:
    environ(variables)
    assert instances.has_evaluator() == is_there


@pytest.mark.parametrize(
    ("environ", "engine"),
    [
        ({}, None),
        ({"TF_CONFIG": WORKERS}, "grpc"),
        (STEP, "grpc"),
        (MPI, "horovod"),
        ({**MPI, **STEP}, "horovod"),
        ({**MPI, "TF_CONFIG": WORKERS}, "grpc"),
        (HOROVOD, "horovod"),
        ({**HOROVOD, **STEP}, "horovod"),
        ({**HOROVOD, "TF_CONFIG": WORKERS}, "grpc"),
        ({name: "1" if name.endswith("SIZE") else "0" for name in MPI}, None),
        (launched(num_instances=1, index=0, local_index=0, num_total_replicas=2), None),
    ],
)
def test_the_engine_is_what_lists_the_workers(environ: dict[str, str], engine: str | None) -> None:
    assert find_engine(environ) == engine


def test_instances_that_nothing_joins_have_no_engine_and_are_refused() -> None:
    with pytest.raises(ClusterError, match="is 2, but the others cannot be reached") as e:
        find_engine(launched())
    assert str(e.value).endswith("with tfdist run, or unset all TFDIST variables.")


# The launcher and the engine together.

LAST = {"num_instances": 4, "index": 3, "local_index": 3}


def test_the_launcher_adds_replicas_to_what_the_engine_says() -> None:
    reported = launched(index=3, num_instances=4, local_index=1, num_total_replicas=8)
    assert find_instance({**reported, **MPI}).num_local_replicas == 2
    reported = launched(index=1, num_instances=3, local_index=1, num_total_replicas=6)
    assert find_instance({**reported, "TF_CONFIG": WORKERS}).replica_index_offset == 2
    # mpirun has started an evaluator, too: it says nothing about the training processes.
    assert find_instance({**reported, **MPI, "TF_CONFIG": WORKERS}).num_instances == 3


@pytest.mark.parametrize(
    ("reported", "engine", "message"),
    [
        (
            {},
            MPI,
            "NUM_INSTANCES is 2, but mpirun says 4 instances. Start the program with one of ",
        ),
        ({"num_instances": 4}, MPI, "INSTANCE_INDEX is 1, but mpirun says 3 as this one's index"),
        (LAST, MPI, "LOCAL_INSTANCE_INDEX is 3, but mpirun says 1 as its local index"),
        (LAST, HOROVOD, "LOCAL_INSTANCE_INDEX is 3, but horovodrun says 1 as its local index"),
        ({}, {"TF_CONFIG": WORKERS}, "NUM_INSTANCES is 2, but TF_CONFIG says 3 instances"),
        ({}, STEP, "NUM_INSTANCES is 2, but Slurm says 5 instances"),
        (
            {},
            {"TF_CONFIG": CHIEF % "evaluator"},
            "NUM_INSTANCES is 2, but this process's task in TF_CONFIG does not train, so it is no "
            "instance. Unset the TFDIST variables for it.",
        ),
    ],
)
def test_launcher_and_engine_must_agree(
    reported: dict[str, int], engine: dict[str, str], message: str
) -> None:
    with pytest.raises(ClusterError) as caught:
        find_instance({**launched(**reported), **engine})
    assert str(caught.value).startswith(f"TFDIST_{message}")
    assert "\n" not in str(caught.value)


def test_what_is_equal_for_all_may_stand_beside_an_engine() -> None:
    shape = {"TFDIST_NUM_LOCAL_REPLICAS": "2", "TFDIST_DEVICES_PER_REPLICA": "4"}
    instance = find_instance({**shape, "TF_CONFIG": WORKERS})
    assert (instance.num_total_replicas, instance.replica_index_offset) == (6, 2)
    assert (instance.num_local_replicas, instance.devices_per_replica) == (2, 4)
    alone = find_instance(shape)
    assert (alone.num_total_replicas, alone.num_instances, alone.source) == (2, 1, "tfdist run")
    assert find_instance({**shape, "TF_CONFIG": CHIEF % "evaluator"}) == Instance()


def test_devices_alone_are_not_enough() -> None:
    with pytest.raises(ClusterError, match="TFDIST_NUM_LOCAL_REPLICAS is not set, though TFD"):
        find_instance({"TFDIST_DEVICES_PER_REPLICA": "2"})
    with pytest.raises(ClusterError, match='is "none", expected an integer from 1'):
        find_instance({"TFDIST_NUM_LOCAL_REPLICAS": "none"})


def test_only_the_launcher_knows_about_replicas() -> None:
    assert find_launched_replicas({"TF_CONFIG": WORKERS}) is None
    assert find_launched_replicas({"TF_CONFIG": '{"model_dir": "x"}'}) is None  # no cluster: fine
    assert find_launched_replicas({"TFDIST_NUM_LOCAL_REPLICAS": "2"}) is not None
    evaluator = {"TFDIST_NUM_LOCAL_REPLICAS": "2", "TF_CONFIG": CHIEF % "evaluator"}
    assert find_launched_replicas(evaluator) is None


# What cannot be.


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("NUM_INSTANCES", "two", 'is "two", expected an integer from 1.'),
        ("NUM_INSTANCES", "0", 'is "0", expected an integer from 1.'),
        ("INSTANCE_INDEX", "-1", 'is "-1", expected an integer from 0.'),
        ("INSTANCE_INDEX", "", 'is "", expected an integer from 0.'),
        ("INSTANCE_INDEX", "\u0661", 'is "\\u0661", expected an integer from 0.'),
        ("NUM_LOCAL_REPLICAS", "1.5", 'is "1.5", expected'),
        ("NUM_TOTAL_REPLICAS", "9" * 5000, 'is "999'),
        ("NUM_TOTAL_REPLICAS", "1\n2", 'is "1\\n2", expected'),
        ("DEVICES_PER_REPLICA", "0", 'is "0", expected'),
        ("INSTANCE_INDEX", "2", "is 2 but TFDIST_NUM_INSTANCES is 2."),
        ("LOCAL_INSTANCE_INDEX", "2", "is 2 but TFDIST_INSTANCE_INDEX is 1."),
        ("NUM_TOTAL_REPLICAS", "5", "is 5 but 2 instances of 2 have 4."),
        ("REPLICA_INDEX_OFFSET", "1", "is 1 but instance 1 of 2 has 2."),
        ("UNIFORM_REPLICAS_PER_INSTANCE", "no", 'is "no", expected 0 or 1.'),
    ],
)
def test_contradictions_are_refused_in_one_line(name: str, value: str, message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        find_instance({**launched(), f"TFDIST_{name}": value})
    said = str(caught.value)
    assert said.startswith(f"TFDIST_{name} {message}")
    assert "to tfdist run." in said
    assert "\n" not in said
    assert len(said) < 250


@pytest.mark.parametrize("missing", [name for name in launched() if name != "TFDIST_RESTART_COUNT"])
def test_each_variable_is_missed_by_the_others(missing: str) -> None:
    environ = {name: value for name, value in launched().items() if name != missing}
    with pytest.raises(ClusterError) as caught:
        find_instance(environ)
    first = "TFDIST_INSTANCE_INDEX" if missing == "TFDIST_NUM_INSTANCES" else "TFDIST_NUM_INSTANCES"
    assert str(caught.value) == (
        f"{missing} is not set, though {first} is. Start the program with tfdist run, which sets "
        "both, or unset all TFDIST variables."
    )


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"num_total_replicas": 5}, "5 replicas do not divide over 2 instances. Nearest numbers"),
        ({"num_total_replicas": 1, "num_instances": 2}, "Nearest numbers that do: 2."),
        ({"num_total_replicas": 0}, 'TFDIST_NUM_TOTAL_REPLICAS is "0"'),
        ({"index": 2}, "TFDIST_INSTANCE_INDEX is 2 but TFDIST_NUM_INSTANCES is 2."),
        ({"num_instances": 0}, 'TFDIST_NUM_INSTANCES is "0"'),
        ({"restart_count": -1}, 'TFDIST_RESTART_COUNT is "-1"'),
    ],
)
def test_the_launcher_cannot_write_what_no_instance_would_read(
    numbers: dict[str, int], message: str
) -> None:
    with pytest.raises(ClusterError, match=message):
        launched(**numbers)


# Instances with different numbers of replicas.


def uneven(index: int, local: int, offset: int) -> dict[str, str]:
    """One of three instances with six replicas in all."""
    numbers = {
        "NUM_INSTANCES": 3,
        "INSTANCE_INDEX": index,
        "LOCAL_INSTANCE_INDEX": 0,
        "NUM_TOTAL_REPLICAS": 6,
        "NUM_LOCAL_REPLICAS": local,
        "REPLICA_INDEX_OFFSET": offset,
        "DEVICES_PER_REPLICA": 1,
        "UNIFORM_REPLICAS_PER_INSTANCE": 0,
    }
    return {f"TFDIST_{name}": str(number) for name, number in numbers.items()}


def test_an_uneven_layout_knows_its_replicas_but_no_equal_shares(environ: Any) -> None:
    environ(uneven(1, 3, 1))
    assert instances.num_total_replicas() == 6
    assert instances.num_local_replicas() == 3
    assert instances.replica_index_offset() == 1
    assert instances.global_batch_size(4) == 24
    for function in (instances.num_instances, instances.instance_index, instances.shard):
        with pytest.raises(ClusterError) as caught:
            function()
        assert str(caught.value) == (
            f"{function.__name__}() is for instances with equal numbers of replicas, and this one "
            "has 3 of 6 in a run where they differ. Use num_total_replicas(), num_local_replicas() "
            "and replica_index_offset()."
        )


@pytest.mark.parametrize(
    ("index", "local", "offset"),
    [
        (0, 3, 1),  # the first one's offset is 0
        (0, 5, 0),  # nothing left for one of the others
        (1, 3, 0),  # nothing left for the one before
        (1, 3, 3),  # nothing left for the one after
        (2, 3, 2),  # the last one ends with the last replica
    ],
)
def test_an_uneven_layout_that_cannot_be_is_refused(index: int, local: int, offset: int) -> None:
    with pytest.raises(ClusterError, match=f"OFFSET is {offset} but instance {index} of 3 has"):
        find_instance(uneven(index, local, offset))


# The functions.


@pytest.mark.parametrize(
    ("variables", "answers"),
    [
        ({}, (False, 1, 0, 0, 1, 1, 0, 1, 0, 0, (1, 0))),
        (
            launched(devices_per_replica=2, restart_count=3),
            (True, 2, 1, 1, 4, 2, 2, 2, 4, 3, (2, 1)),
        ),
    ],
)
def test_the_functions_answer_for_this_process(
    environ: Any, variables: dict[str, str], answers: tuple[Any, ...]
) -> None:
    environ(variables)
    functions = (
        *(instances.is_launched, instances.num_instances, instances.instance_index),
        *(instances.local_instance_index, instances.num_total_replicas),
        *(instances.num_local_replicas, instances.replica_index_offset),
        *(instances.num_devices_per_replica, instances.first_device_index),
        *(instances.restart_count, instances.shard),
    )
    assert tuple(function() for function in functions) == answers


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, 1.0),
        (launched(), 1.0),
        (launched(num_full_instances=4), 0.5),
        ({**STEP, "TFDIST_NUM_FULL_INSTANCES": "10"}, 0.5),
    ],
)
def test_the_size_factor_is_the_part_of_the_run_that_is_left(
    environ: Any, variables: dict[str, str], expected: float
) -> None:
    environ(variables)
    assert instances.size_factor() == expected


def test_only_a_launcher_plans_the_devices_of_a_replica(environ: Any) -> None:
    assert instances.check_num_devices_per_replica(16)
    environ({"TF_CONFIG": WORKERS})
    assert instances.is_launched()
    assert instances.check_num_devices_per_replica(4)
    environ({**launched(num_instances=3, num_total_replicas=3, devices_per_replica=2)})
    assert instances.check_num_devices_per_replica(2)
    assert not instances.check_num_devices_per_replica(1)


# Batches.


def test_the_global_batch_is_what_all_replicas_see_for_an_update_and_is_split_back(
    environ: Any,
) -> None:
    assert instances.global_batch_size(8) == 8
    environ(launched())
    assert instances.global_batch_size(8) == 32
    assert instances.global_batch_size(8, accumulation_steps=5) == 160
    for micro in (1, 7, 64):
        assert instances.micro_batch_size(instances.global_batch_size(micro, 3), 3) == micro


@pytest.mark.parametrize(
    ("size", "steps", "message"),
    [
        (
            100,
            4,
            "global batch 100 does not split over 2 instances x 2 replicas x 4 accumulation steps "
            "(16 shares). Nearest sizes that do: 96 and 112.",
        ),
        (3, 1, "(4 shares). Nearest size that does: 4."),
    ],
)
def test_a_global_batch_that_does_not_split_is_refused_with_the_nearest_ones(
    environ: Any, size: int, steps: int, message: str
) -> None:
    environ(launched())
    with pytest.raises(ValueError) as caught:
        instances.micro_batch_size(size, steps)
    assert message in str(caught.value)


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "8"])
def test_sizes_are_integers_of_at_least_1(number: Any) -> None:
    for call in (
        lambda: instances.global_batch_size(number),
        lambda: instances.global_batch_size(1, number),
        lambda: instances.micro_batch_size(number),
        lambda: instances.micro_batch_size(1, number),
        lambda: instances.shuffle_buffer_size(number),
        lambda: instances.shuffle_buffer_size(1, number),
    ):
        with pytest.raises(ValueError, match="must be an integer of at least 1"):
            call()


def test_the_shuffle_buffer_holds_this_instances_share(environ: Any) -> None:
    assert instances.shuffle_buffer_size(1001) == 1001
    environ(launched())
    assert instances.shuffle_buffer_size(1000) == 500
    assert instances.shuffle_buffer_size(1001) == 501  # Dataset.shard gives the first one more.
    assert instances.shuffle_buffer_size(1000, most=64) == 64
    assert instances.shuffle_buffer_size(10, most=64) == 5
