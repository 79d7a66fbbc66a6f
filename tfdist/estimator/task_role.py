"""The role of this process in a run, as a strategy or TF_CONFIG gives it to a RunConfig."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.cluster import ClusterError
from tfdist.cluster.ranks import check_launcher
from tfdist.cluster.tasks import (
    CHIEF_TYPES,
    TaskType,
    is_chief,
    listed,
    training_tasks,
)
from tfdist.cluster.tf_config import TfConfig, check_task_is_listed


@dataclass(frozen=True, kw_only=True)
class TaskRole:
    """This process's part; the fields are RunConfig's properties of the same name.

    Attributes:
      cluster_spec: The cluster as given; empty without one and for an evaluator.
      task_type: One of `TaskType`, or another job's name.
      task_id: The index among the tasks of that type.
      master: The target of a training session; "" is this process itself.
      evaluation_master: The target of an evaluation's session.
      is_chief: Whether this task saves checkpoints and summaries.
      num_ps_replicas: How many parameter servers there are.
      num_worker_replicas: How many tasks train, the chief included; 0 for an evaluator.
      global_id_in_cluster: The position in the cluster: chief, other jobs by name, ps; None for an
        evaluator.
    """

    cluster_spec: tf.train.ClusterSpec
    task_type: str
    task_id: int
    master: str = ""
    evaluation_master: str = ""
    is_chief: bool
    num_ps_replicas: int = 0
    num_worker_replicas: int
    global_id_in_cluster: int | None


def find_role(strategy: Any, tf_config: TfConfig) -> TaskRole:
    """Finds the role of this process: the strategy knows it, else TF_CONFIG says it.

    Args:
      strategy: The strategy for training, or None.
      tf_config: The environment variable TF_CONFIG.

    Raises:
      ClusterError: If what is given contradicts itself, or nothing is given to one of several
        processes that an unsupported launcher started.
    """
    cluster, task = getattr(strategy, "cluster", None), getattr(strategy, "task", None)
    if cluster is not None and task is not None:
        return _role_in_cluster(cluster.jobs, task.type, task.index, tf_config)
    collectives = getattr(getattr(strategy, "extended", None), "collectives", None)
    if collectives is not None and collectives.num_workers > 1:
        return _role_among_equals(strategy.extended)
    jobs = tf_config.jobs
    if not jobs:
        return _role_alone(tf_config)
    task_type, index = tf_config.complete_task()
    if strategy is None:
        _check_chief_of_others(jobs)
    if task_type != TaskType.EVALUATOR:  # Not in the training cluster, listed or not.
        check_task_is_listed(jobs, task_type, index)
    return _role_in_cluster(jobs, task_type, index, tf_config)


def refuse_parameter_servers(config: Any) -> None:
    """Refuses the RunConfig of a cluster that lists parameter servers; ClusterError."""
    if config.task_type == TaskType.PS or config.num_ps_replicas > 0:
        raise ClusterError(
            f"TF_CONFIG's cluster has job 'ps' (this task is {config.task_type} {config.task_id}), "
            "and there are no parameter servers here. Remove 'ps' and give RunConfig "
            "train_distribute=tfdist.strategies.MultiWorkerStrategy(): the workers hold the "
            "variables."
        )


def device_filters(role: TaskRole) -> list[str] | None:
    """Says which jobs a session of this task sees by default; None where there is no default."""
    return {
        TaskType.MASTER: ["/job:ps", "/job:master"],
        TaskType.CHIEF: ["/job:ps", "/job:chief"],
        TaskType.WORKER: ["/job:ps", f"/job:worker/task:{role.task_id}"],
        TaskType.PS: ["/job:ps", "/job:worker", "/job:chief", "/job:master"],
    }.get(role.task_type)


def _role_alone(tf_config: TfConfig) -> TaskRole:
    task_type = tf_config.task_type or TaskType.WORKER
    index = tf_config.task_index or 0
    if task_type == TaskType.EVALUATOR:  # It connects to no other task.
        return _evaluator(index, tf_config)
    for name, found, is_allowed, allowed in (
        ("type", task_type, task_type == TaskType.WORKER, "WORKER"),
        ("index", index, index == 0, "0"),
    ):
        if not is_allowed:
            raise ClusterError(
                f'If "cluster" is not set in TF_CONFIG, task {name} must be {allowed}. It is '
                f'{found!r}: add the "cluster", or remove the task.'
            )
    check_launcher()
    return TaskRole(
        cluster_spec=tf.train.ClusterSpec({}),
        task_type=task_type,
        task_id=0,
        master=tf_config.session_master or "",
        evaluation_master=tf_config.eval_session_master,
        is_chief=True,
        num_worker_replicas=1,
        global_id_in_cluster=0,
    )


def _role_among_equals(extended: Any) -> TaskRole:
    """Returns the role of a process that knows no addresses (Horovod's)."""
    worker_index = extended.collectives.worker_index
    return TaskRole(
        cluster_spec=tf.train.ClusterSpec({}),
        task_type=TaskType.WORKER,
        task_id=worker_index,
        is_chief=extended.should_checkpoint,
        num_worker_replicas=extended.collectives.num_workers,
        global_id_in_cluster=worker_index,
    )


def _role_in_cluster(
    jobs: Mapping[str, tuple[str, ...]], task_type: str, index: int, tf_config: TfConfig
) -> TaskRole:
    if task_type == TaskType.EVALUATOR:
        if TaskType.MASTER in jobs:
            raise ClusterError(
                "If `master` node exists in `cluster`, task_type `evaluator` is not supported. "
                "The master evaluates: call the job chief instead to have an evaluator."
            )
        return _evaluator(index, tf_config)
    is_alone = sum(map(len, jobs.values())) == 1
    master = tf_config.session_master
    if master is None:
        master = "" if is_alone else f"grpc://{jobs[task_type][index]}"
    return TaskRole(
        cluster_spec=tf.train.ClusterSpec({job: [*addresses] for job, addresses in jobs.items()}),
        task_type=task_type,
        task_id=index,
        master=master,
        is_chief=is_chief(jobs, task_type, index),
        num_ps_replicas=len(jobs.get(TaskType.PS, ())),
        num_worker_replicas=len(training_tasks(jobs)),
        global_id_in_cluster=_global_id(jobs, task_type) + index,
    )


def _evaluator(index: int, tf_config: TfConfig) -> TaskRole:
    return TaskRole(
        cluster_spec=tf.train.ClusterSpec({}),
        task_type=TaskType.EVALUATOR,
        task_id=index,
        evaluation_master=tf_config.eval_session_master,
        is_chief=False,
        num_worker_replicas=0,
        global_id_in_cluster=None,
    )


def _check_chief_of_others(jobs: Mapping[str, tuple[str, ...]]) -> None:
    """Refuses jobs such as `ps` next to workers without a chief: nothing would save the model."""
    if not set(jobs) & set(CHIEF_TYPES) and not set(jobs) <= {TaskType.WORKER, TaskType.EVALUATOR}:
        raise ClusterError(
            'If "cluster" is set in TF_CONFIG, it must have one "chief" node. It lists '
            f"{listed(jobs)}: add a chief, or leave workers only."
        )


def _global_id(jobs: Mapping[str, tuple[str, ...]], task_type: str) -> int:
    """Counts the tasks before the first one of a job: chief, other jobs by name, ps last."""
    first = [job for job in CHIEF_TYPES if job in jobs]
    others = sorted(set(jobs) - {*first, TaskType.PS})
    order = [*first, *others, TaskType.PS]
    return sum(len(jobs.get(job, ())) for job in order[: order.index(task_type)])
