"""A Slurm step as a cluster: it is found in the environment, and contradictions are named."""

import pytest

from tfdist.cluster import (
    ClusterError,
    Task,
    find_cluster,
    format_tf_config,
    parse_tf_config,
)
from tfdist.cluster.slurm import expand_node_list, first_port

TF_CONFIG = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
STEP = {
    "SLURM_JOB_ID": "17",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NODELIST": "n[08-09],m",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "1",
}


def test_tf_config_wins_over_slurm_even_if_it_is_wrong() -> None:
    with pytest.raises(ClusterError, match='no "cluster"'):
        find_cluster({"TF_CONFIG": "{}", **STEP})
    assert find_cluster({"TF_CONFIG": TF_CONFIG, **STEP}) == parse_tf_config(TF_CONFIG)


def test_the_tasks_of_a_slurm_step_are_the_workers() -> None:
    found = find_cluster(STEP)
    assert found is not None
    cluster, task = found
    port = first_port(job_id=17)
    assert cluster.jobs == {
        "worker": (f"n08:{port}", f"n08:{port + 1}", f"n09:{port}", f"n09:{port + 1}", f"m:{port}")
    }
    assert task == Task(type="worker", index=3)
    assert parse_tf_config(format_tf_config(cluster, task)) == (cluster, task)


@pytest.mark.parametrize(
    "environ",
    [
        {"PATH": "/bin"},
        {"TF_CONFIG": ""},
        {"TF_CONFIG": "  \n"},
        {**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
        {**STEP, "OMPI_COMM_WORLD_RANK": "0"},
        {**STEP, "HOROVOD_RANK": "0"},
        # A batch script, without srun.
        {"SLURM_JOB_ID": "17", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_NODEID": "0"},
    ],
)
def test_without_a_tf_config_or_a_step_of_several_tasks_there_is_no_cluster(
    environ: dict[str, str],
) -> None:
    assert find_cluster(environ) is None


@pytest.mark.parametrize(
    ("change", "fragments"),
    [
        ({"SLURM_PROCID": "5"}, ["SLURM_PROCID is 5", "SLURM_STEP_NUM_TASKS is 5", "0 to 4"]),
        ({"SLURM_PROCID": "x"}, ['SLURM_PROCID is "x"', "integer"]),
        ({"SLURM_JOB_ID": ""}, ['SLURM_JOB_ID is ""', "integer"]),
        ({"SLURM_STEP_ID": "batch"}, ['SLURM_STEP_ID is "batch"']),
        ({"SLURM_STEP_NUM_TASKS": "many"}, ['SLURM_STEP_NUM_TASKS is "many"']),
        ({"SLURM_STEP_NODELIST": "n[08-09]"}, ["SLURM_STEP_NODELIST has 2 nodes", "3 nodes"]),
        ({"SLURM_STEP_NODELIST": "n[08-09"}, ['"n[08-09" is not a node list']),
        ({"SLURM_STEP_NODELIST": "n[0-999999]"}, ["more than 100000", "Make its ranges smaller"]),
        ({"SLURM_STEP_NUM_TASKS": "9" * 15}, ["9" * 15, "at most 100000"]),
        ({"SLURM_STEP_NODELIST": "n[9-8],m"}, ['range "9-8"']),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, ["SLURM_STEP_TASKS_PER_NODE", "4 tasks"]),
        ({"SLURM_STEP_TASKS_PER_NODE": "two"}, ['SLURM_STEP_TASKS_PER_NODE "two"']),
        ({"SLURM_NODEID": "0", "SLURM_LOCALID": "1"}, ["SLURM_NODEID is 0", "=block"]),
        ({"SLURM_LOCALID": "0"}, ["SLURM_LOCALID is 0", "expected 1"]),
    ],
)
def test_contradicting_slurm_variables_are_named(
    change: dict[str, str], fragments: list[str]
) -> None:
    with pytest.raises(ClusterError) as caught:
        find_cluster({**STEP, **change})
    message = str(caught.value)
    assert [fragment for fragment in fragments if fragment not in message] == [], message
    assert message.count("\n") <= 1


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", "n1"),
        ("n[0-1,4],m", "n0 n1 n4 m"),
        ("n[08-10]", "n08 n09 n10"),
        ("n[099-101]-ib", "n099-ib n100-ib n101-ib"),
        ("r[1-2]n[1-3]", "r1n1 r1n2 r1n3 r2n1 r2n2 r2n3"),
        ("gpu-a.example.org,gpu-b", "gpu-a.example.org gpu-b"),
    ],
)
def test_node_lists_expand_as_slurm_means_them(text: str, names: str) -> None:
    assert expand_node_list(text) == names.split()


@pytest.mark.parametrize("text", ["", ",", "n1,", "n[", "n]", "n[]", "n[a-b]", "n[1-]", "n [1]"])
def test_what_is_no_node_list_is_refused(text: str) -> None:
    with pytest.raises(ClusterError, match="SLURM_STEP_NODELIST"):
        expand_node_list(text)


def test_jobs_in_a_row_and_steps_of_a_job_get_ports_apart() -> None:
    ports = {first_port(job_id=job) for job in range(1000, 1199)}
    assert len(ports) == 199
    assert all(abs(one - other) >= 64 for one in ports for other in ports if one != other)
    assert min(ports) >= 20000
    assert max(ports) + 63 < 32768
    assert first_port(job_id=1, step_id=0) != first_port(job_id=1, step_id=1)
