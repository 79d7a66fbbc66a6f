"""Ranks of launchers: those that are served are found, and the others are refused."""

import pytest

from tfdist.cluster import ClusterError, MpiRank, find_cluster, find_mpi_rank
from tfdist.cluster.environment import check_horovod, find_engine, find_instance
from tfdist.cluster.instance_variables import instance_environment
from tfdist.cluster.ranks import check_launcher

MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
HOROVOD = {  # As `horovodrun --gloo` and Horovod on Ray and on Spark set them.
    "HOROVOD_HOSTNAME": "a",
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "2",
    "HOROVOD_LOCAL_RANK": "0",
    "HOROVOD_LOCAL_SIZE": "1",
    "HOROVOD_CROSS_RANK": "1",
    "HOROVOD_CROSS_SIZE": "2",
    "HOROVOD_CONTROLLER": "gloo",
    "HOROVOD_CPU_OPERATIONS": "gloo",
}
TF_CONFIG = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
ALONE = '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'
EVALUATOR = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "evaluator", "index": 0}}'
STEP = {
    "SLURM_JOB_ID": "17",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NODELIST": "n[08-09]",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
ONE_TASK = {
    **STEP,
    **{"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NODELIST": "n08"},
    "SLURM_STEP_TASKS_PER_NODE": "1",
}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2"}
LAUNCHED = instance_environment(
    index=1, num_instances=2, local_index=1, num_total_replicas=2, devices_per_replica=1
)


def check_refusal(error: pytest.ExceptionInfo[ClusterError], *fragments: str) -> None:
    message = str(error.value)
    assert [fragment for fragment in fragments if fragment not in message] == [], message
    assert message.count("\n") <= 1


# Open MPI's mpirun, and Horovod's own launcher.


def test_the_rank_that_a_launcher_gave_is_found() -> None:
    assert find_mpi_rank({"PATH": "/bin", "HOROVOD_CYCLE_TIME": "5"}) is None
    assert find_mpi_rank(MPI) == MpiRank(rank=3, size=4, local_rank=1, local_size=2)
    assert find_mpi_rank(HOROVOD) == MpiRank(
        rank=1, size=2, local_rank=0, local_size=1, launcher="horovodrun"
    )


def test_of_two_launchers_that_one_counts_which_horovod_follows() -> None:
    rank = find_mpi_rank({**MPI, **HOROVOD})
    assert rank is not None and rank.launcher == "horovodrun"
    rank = find_mpi_rank({**MPI, **HOROVOD, "HOROVOD_CONTROLLER": "mpi"})
    assert rank is not None and rank.launcher == "mpirun"
    rank = find_mpi_rank({**MPI, "HOROVOD_CONTROLLER": "gloo"})
    assert rank is not None and rank.launcher == "mpirun"


@pytest.mark.parametrize(
    ("given", "change", "fragments"),
    [
        (MPI, {"OMPI_COMM_WORLD_SIZE": "2"}, ["_RANK is 3 but", "WORLD_SIZE is 2", "mpirun"]),
        (MPI, {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, ["LOCAL_RANK is 1", "LOCAL_SIZE is 1"]),
        (MPI, {"OMPI_COMM_WORLD_LOCAL_SIZE": "9"}, ["LOCAL_SIZE is 9", "_WORLD_SIZE is 4"]),
        (MPI, {"OMPI_COMM_WORLD_RANK": "-1"}, ['_WORLD_RANK is "-1"', "integer from 0"]),
        (MPI, {"OMPI_COMM_WORLD_SIZE": None}, ["WORLD_SIZE is not set", "_RANK is"]),
        (MPI, {"OMPI_COMM_WORLD_RANK": None}, ["WORLD_RANK is not set", "_SIZE is"]),
        (HOROVOD, {"HOROVOD_SIZE": "1"}, ["HOROVOD_RANK is 1 but HOROVOD_SIZE is 1"]),
        (HOROVOD, {"HOROVOD_RANK": "x"}, ['HOROVOD_RANK is "x"', "Leave it to horovodrun."]),
        (HOROVOD, {"HOROVOD_SIZE": None}, ["HOROVOD_SIZE is not", "unset HOROVOD_RANK, HO"]),
        (HOROVOD, {"HOROVOD_ELASTIC": "1"}, ['ELASTIC is "1"', "may change", "horovodrun -np N"]),
    ],
)
def test_contradicting_variables_are_named(
    given: dict[str, str], change: dict[str, str | None], fragments: list[str]
) -> None:
    environ = {name: value for name, value in {**given, **change}.items() if value is not None}
    with pytest.raises(ClusterError) as caught:
        find_mpi_rank(environ)
    check_refusal(caught, *fragments)


# Launchers that are not served: each process would take itself for the chief.


@pytest.mark.parametrize("ask", [check_launcher, find_cluster, find_engine, find_instance])
@pytest.mark.parametrize(
    ("environ", "found"),
    [
        (PMI, "PMI_SIZE is 2"),
        ({"PMI_SIZE": "2"}, "PMI_SIZE is 2"),
        ({"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "8"}, "MV2_COMM_WORLD_SIZE is 8"),
        ({"PMIX_RANK": "0"}, 'PMIX_RANK is "0", without Open MPI'),
        # In a Slurm step that only started the launcher's daemons, or that is not whole.
        ({**PMI, **ONE_TASK}, "PMI_SIZE is 2"),
        ({"PMI_RANK": "2", "PMI_SIZE": "4", **STEP}, "PMI_SIZE is 4"),
        ({**PMI, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, "PMI_SIZE is 2"),
    ],
)
def test_one_of_several_processes_of_an_unsupported_launcher_is_refused(
    ask: object, environ: dict[str, str], found: str
) -> None:
    assert callable(ask)
    with pytest.raises(ClusterError) as caught:
        ask(environ)
    check_refusal(caught, found, "not supported", "horovodrun --gloo or srun", "unset ")


@pytest.mark.parametrize(
    ("environ", "engine"),
    [
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, None),
        ({"PMI_FD": "7"}, None),
        ({**PMI, "TF_CONFIG": TF_CONFIG}, "grpc"),
        ({**PMI, "PMIX_RANK": "3", **MPI}, "horovod"),
        ({**PMI, **HOROVOD}, "horovod"),
        ({**PMI, **STEP}, "grpc"),  # srun --mpi=pmi2
        ({"PMIX_RANK": "1", **STEP}, "grpc"),  # srun --mpi=pmix
        ({"PMIX_RANK": "0", **ONE_TASK}, None),
    ],
)
def test_variables_of_other_launchers_are_no_matter_where_the_workers_are_known(
    environ: dict[str, str], engine: str | None
) -> None:
    assert find_engine(environ) == engine


# What Horovod can join.


@pytest.mark.parametrize(
    ("environ", "who"),
    [
        ({"TF_CONFIG": TF_CONFIG}, "TF_CONFIG says that this is worker 1 of 2, over gRPC"),
        ({"TF_CONFIG": TF_CONFIG, **LAUNCHED}, "TF_CONFIG says that this is worker 1 of 2"),
        (LAUNCHED, "tfdist run says that this is worker 1 of 2"),
        (STEP, "Slurm says that this is worker 1 of 2"),
        (
            {"TF_CONFIG": TF_CONFIG, **{n: "1" if "SIZE" in n else "0" for n in MPI}},
            "TF_CONFIG says that this is worker 1 of 2",
        ),
    ],
)
def test_horovod_is_refused_for_workers_that_it_cannot_join(
    environ: dict[str, str], who: str
) -> None:
    with pytest.raises(ClusterError) as caught:
        check_horovod(environ)
    check_refusal(caught, who, "MultiWorkerStrategy", "tfdist run --engine horovod")


def test_horovod_is_refused_for_an_evaluator_that_mpirun_started() -> None:
    with pytest.raises(ClusterError) as caught:
        check_horovod({**MPI, "TF_CONFIG": EVALUATOR})
    check_refusal(caught, "TF_CONFIG says evaluator 0", "rank 3 of 4", "without mpirun.")


@pytest.mark.parametrize(
    "environ",
    [
        {},
        MPI,
        HOROVOD,
        {**MPI, **STEP},
        {**MPI, "TF_CONFIG": TF_CONFIG},
        {"TF_CONFIG": EVALUATOR},
        {"TF_CONFIG": ALONE},
        {"TF_CONFIG": '{"model_dir": "x"}'},
        {"TF_CONFIG": " "},
        ONE_TASK,
    ],
    ids=[
        *("alone", "mpirun", "horovodrun", "mpirun on Slurm", "mpirun with TF_CONFIG"),
        *("evaluator", "one worker", "TF_CONFIG without cluster", "blank", "one task"),
    ],
)
def test_horovod_takes_a_rank_an_evaluator_and_a_process_on_its_own(
    environ: dict[str, str],
) -> None:
    check_horovod(environ)
