"""The plan of a run: each worker's host, command and environment."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tfdist.cluster.instance_variables import read_instance
from tfdist.cluster.tf_config import parse_tf_config
from tfdist.launch.errors import UsageError
from tfdist.launch.machine.cores_and_gpus import Machine
from tfdist.launch.options.hosts import Host
from tfdist.launch.options.run_options import RunOptions
from tfdist.launch.workers.plan import Plan, make_plan, num_local_ports

MACHINE = Machine(cores=(0, 1, 2, 3), numa_nodes=((0, 1, 2, 3),))
PORTS = (20001, 20002, 20003, 20004)


def planned(*, environ: Mapping[str, str] | None = None, **options: Any) -> Plan:
    """Returns the plan of a run with these options, or facts about its restarts."""
    names = ("restart_count", "restart_step", "restart_cost")
    facts = {name: options.pop(name) for name in names if name in options}
    return make_plan(
        RunOptions(command=("python", "train.py"), **{"num_replicas": 2, **options}),
        machine=MACHINE,
        ports=PORTS,
        log_dir=Path("logs"),
        environ=environ or {},
        run="a-run",
        **facts,
    )


def hosts(*names: str, slots: int | None = None) -> tuple[Host, ...]:
    return tuple(Host(name=name, slots=slots) for name in names)


def addresses(plan: Plan) -> list[str]:
    return json.loads(plan.workers[0].environment["TF_CONFIG"])["cluster"]["worker"]


def test_each_worker_gets_its_own_tf_config_name_and_log() -> None:
    plan = planned(num_instances=2)
    assert len(plan.workers) == 2
    for index, worker in enumerate(plan.workers):
        cluster, task = parse_tf_config(worker.environment["TF_CONFIG"])
        assert cluster.jobs == {"worker": ("127.0.0.1:20001", "127.0.0.1:20002")}
        assert (task.type, task.index) == ("worker", index)
        assert (worker.index, worker.name, worker.host) == (index, f"worker {index}", "localhost")
        assert worker.command == ("python", "train.py")
        assert worker.log_path == Path(f"logs/worker-{index}.log")


def test_each_node_starts_its_own_workers_of_one_cluster() -> None:
    nodes = {"nodes": ("a:3737", "[fd00::1]:4000"), "num_instances": 4, "num_replicas": 4}
    plans = [planned(**nodes, node_rank=rank) for rank in range(2)]
    assert [[worker.index for worker in plan.workers] for plan in plans] == [[0, 1], [2, 3]]
    assert addresses(plans[0]) == addresses(plans[1])
    assert addresses(plans[0]) == ["a:3737", "a:3738", "[fd00::1]:4000", "[fd00::1]:4001"]
    last = plans[1].workers[-1]
    assert (last.name, last.host, last.replicas) == ("worker 3", "localhost", range(3, 4))
    instance = read_instance(last.environment)
    assert instance is not None
    assert (instance.index, instance.local_index, instance.num_instances) == (3, 1, 4)


def test_replicas_are_dealt_out_evenly() -> None:
    plan = planned(num_instances=2, num_replicas=6, devices_per_replica=2)
    assert [worker.replicas for worker in plan.workers] == [range(0, 3), range(3, 6)]
    instance = read_instance(plan.workers[1].environment)
    assert instance is not None
    assert (instance.num_total_replicas, instance.num_local_replicas) == (6, 3)
    assert (instance.replica_index_offset, instance.devices_per_replica) == (3, 2)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, {"RESTART_COUNT": "0"}),
        (
            {"restart_count": 2, "restart_cost": (7, 30)},
            {"RESTART_COUNT": "2", "RESTART_LOST_S": "7", "RESTART_REPEATED_STEPS": "30"},
        ),
        # A run that may start again can keep snapshots, and find them.
        ({"max_restarts": 1}, {"RESTART_COUNT": "0", "RUN": "a-run"}),
        (
            {"max_restarts": 1, "snapshot_steps": 5, "restart_step": 12},
            {"RESTART_COUNT": "0", "RUN": "a-run", "SNAPSHOT_STEPS": "5", "RESTART_STEP": "12"},
        ),
        (
            {"start_timeout_s": 12.5, "grace_s": 7.5},
            {"RESTART_COUNT": "0", "START_TIMEOUT_S": "12.5", "GRACE_S": "7.5"},
        ),
    ],
)
def test_workers_get_the_facts_of_their_start(
    facts: dict[str, Any], expected: dict[str, str]
) -> None:
    environment = planned(**facts).workers[0].environment
    names = ("RESTART_", "RUN", "SNAPSHOT_", *expected)
    found = {name.removeprefix("TFDIST_"): value for name, value in environment.items()}
    assert {name: found[name] for name in found if name.startswith(names)} == expected


def test_workers_over_horovod_get_no_tf_config() -> None:
    plan = planned(engine="horovod", num_instances=2)
    assert plan.engine == "horovod"
    for index, worker in enumerate(plan.workers):
        assert "TF_CONFIG" not in worker.environment
        assert worker.environment["TFDIST_INSTANCE_INDEX"] == str(index)


def test_local_workers_are_bound_to_cores_of_their_own() -> None:
    first, second = planned(num_instances=2).workers
    assert (first.cores, second.cores) == ((0, 1), (2, 3))
    assert first.environment["OMP_NUM_THREADS"] == "2"
    assert first.share is None


def test_workers_on_other_hosts_take_their_share_of_their_own_machine() -> None:
    plan = planned(num_instances=4, num_replicas=4, hosts=hosts("a", "b"))
    assert [worker.cores for worker in plan.workers] == [None] * 4
    assert "OMP_NUM_THREADS" not in plan.workers[0].environment
    shares = [worker.share for worker in plan.workers]
    found = [share and (share.index, share.num_workers) for share in shares]
    assert found == [(0, 2), (0, 2), (1, 2), (1, 2)]


@pytest.mark.parametrize(
    ("options", "expected", "local_indices"),
    [
        ({"hosts": hosts("a", "b")}, ["a:3737", "b:3737", "a:3738"], "001"),
        ({"hosts": hosts("a", "b", slots=2)}, ["a:3737", "a:3738", "b:3737"], "010"),
        ({"hosts": hosts("a", slots=3), "port": 5000}, ["a:5000", "a:5001", "a:5002"], "012"),
        (
            {"hosts": hosts("fe80::1", slots=3)},
            [f"[fe80::1]:{p}" for p in (3737, 3738, 3739)],
            "012",
        ),
    ],
)
def test_workers_are_put_on_hosts_in_turn_or_until_the_slots_of_one_are_full(
    options: dict[str, Any], expected: list[str], local_indices: str
) -> None:
    plan = planned(num_instances=3, num_replicas=3, **options)
    assert addresses(plan) == expected
    assert [worker.host for worker in plan.workers] == [
        address.rpartition(":")[0].strip("[]") for address in expected
    ]
    found = [worker.environment["TFDIST_LOCAL_INSTANCE_INDEX"] for worker in plan.workers]
    assert "".join(found) == local_indices


def test_too_few_slots_are_refused() -> None:
    with pytest.raises(UsageError, match=r"2 slots.*--num-instances is 3"):
        planned(num_instances=3, num_replicas=3, hosts=hosts("a", "b", slots=1))


def test_the_evaluator_is_an_additional_process_and_no_instance() -> None:
    plan = planned(num_instances=2, evaluator=True)
    evaluator = plan.workers[2]
    assert (evaluator.index, evaluator.name) == (2, "evaluator")
    assert evaluator.replicas == range(0)
    assert evaluator.log_path == Path("logs/evaluator.log")
    cluster, task = parse_tf_config(evaluator.environment["TF_CONFIG"])
    assert (task.type, task.index) == ("evaluator", 0)
    assert cluster.jobs["evaluator"] == ("127.0.0.1:20003",)
    assert not any(name.startswith("TFDIST_") for name in evaluator.environment)
    assert evaluator.environment["CUDA_VISIBLE_DEVICES"] == "-1"


def test_the_evaluator_of_any_run_is_here_and_both_sides_learn_of_it() -> None:
    assert "TFDIST_HAS_EVALUATOR" not in planned(num_instances=2).workers[0].environment
    for options in ({"hosts": hosts("a", "b")}, {"engine": "horovod"}):
        worker, _, evaluator = planned(num_instances=2, evaluator=True, **options).workers
        assert worker.environment["TFDIST_HAS_EVALUATOR"] == "1"
        _, task = parse_tf_config(evaluator.environment["TF_CONFIG"])
        assert (evaluator.host, task.type) == ("localhost", "evaluator")


def test_the_users_variables_reach_all_workers_and_override_the_launchers() -> None:
    mine = {"A": "1", "PYTHONUNBUFFERED": "", "OMP_NUM_THREADS": "9"}
    first, *others = planned(num_instances=2, evaluator=True, environment=mine).workers
    assert all(mine.items() <= worker.environment.items() for worker in (first, *others))
    assert first.environment["TF_NUM_INTRAOP_THREADS"] == "2"


def test_threads_that_the_launchers_environment_sets_are_not_set_again() -> None:
    environment = planned(environ={"OMP_NUM_THREADS": "7"}).workers[0].environment
    assert "OMP_NUM_THREADS" not in environment  # inherited
    assert environment["PYTHONUNBUFFERED"] == "1"


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"num_instances": 2}, 2),
        ({"num_instances": 2, "evaluator": True}, 3),
        ({"num_instances": 2, "hosts": hosts("a", "b")}, 0),
        ({"num_instances": 2, "hosts": hosts("a", "b"), "evaluator": True}, 0),
    ],
)
def test_each_local_process_takes_a_free_port(options: dict[str, Any], count: int) -> None:
    assert num_local_ports(RunOptions(command=("true",), **options)) == count
