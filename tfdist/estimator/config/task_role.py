"""The role of this process in a run, taken from a strategy or from TF_CONFIG."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfdist.cluster import ClusterError
from tfdist.cluster.environment import PARAMETER_SERVERS, REPLACE
from tfdist.cluster.ranks import check_launcher
from tfdist.cluster.tasks import CHIEF_TYPES, TaskType, is_chief, training_tasks
from tfdist.cluster.tf_config import TfConfig, check_task_is_listed
from tfdist.process.text import listed

# The second half of a refusal.
NO_SERVERS = (
    "there are no parameter servers here. Give RunConfig (or enable_compat) "
    f'parameter_servers="{REPLACE}", or set {PARAMETER_SERVERS}={REPLACE} for every task: the '
    "workers then hold the variables and train in step, as with "
    "tfdist.strategies.MultiWorkerStrategy."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskRole:
    """The role of this process, by default alone; a RunConfig has the same attributes.

    Attributes:
      cluster_spec: The cluster as given; empty without one and for an evaluator.
      task_type: One of `TaskType`, or another job's name.
      task_id: The index among the tasks of that type.
      master: The target of a training session; "" is this process itself.
      evaluation_master: The target of an evaluation's session.
      is_chief: Whether this task saves checkpoints and summaries.
      num_ps_replicas: The number of parameter servers.
      num_worker_replicas: The number of tasks that train, including the chief; 0 for an evaluator.
      global_id_in_cluster: The position in the cluster, in the order chief, other jobs by name,
        ps; None for an evaluator.
    """

    cluster_spec: tf.train.ClusterSpec = field(default_factory=lambda: tf.train.ClusterSpec({}))
    task_type: str = TaskType.WORKER
    task_id: int = 0
    master: str = ""
    evaluation_master: str = ""
    is_chief: bool = True
    num_ps_replicas: int = 0
    num_worker_replicas: int = 1
    global_id_in_cluster: int | None = 0


def find_role(strategy: Any, tf_config: TfConfig, *, replaces_servers: bool = False) -> TaskRole:
    """Returns the role of this process, from the strategy, else from TF_CONFIG.

    Args:
      strategy: The strategy for training, or None.
      tf_config: The environment variable TF_CONFIG.
      replaces_servers: Whether the workers hold the variables in place of the ps tasks.

    Raises:
      ClusterError: If the settings contradict each other. Also if there are none, in one of several
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
    if strategy is None and not replaces_servers:
        _check_chief_of_others(jobs)
    if task_type != TaskType.EVALUATOR:  # An evaluator does not train, even if listed.
        check_task_is_listed(jobs, task_type, index)
    return _role_in_cluster(jobs, task_type, index, tf_config)


def refuse_parameter_servers(config: Any) -> None:
    """Raises ClusterError for the RunConfig of a cluster that lists parameter servers.

    There is none for a worker that replaces them: its config lists no ps tasks.
    """
    if config.task_type == TaskType.PS or config.num_ps_replicas > 0:
        raise ClusterError(
            f"TF_CONFIG's cluster has job 'ps' (this task is {config.task_type} {config.task_id}), "
            f"and {NO_SERVERS}"
        )


def device_filters(role: TaskRole) -> list[str] | None:
    """Returns the jobs visible to a session of this task by default; None without a default."""
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
        master=tf_config.values.get("session_master") or "",
        evaluation_master=tf_config.values.get("eval_session_master", ""),
    )


def _role_among_equals(extended: Any) -> TaskRole:
    """Returns the role of a process in a run without addresses (Horovod's)."""
    worker_index = extended.collectives.worker_index
    return TaskRole(
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
    master = tf_config.values.get("session_master")
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
        task_type=TaskType.EVALUATOR,
        task_id=index,
        evaluation_master=tf_config.values.get("eval_session_master", ""),
        is_chief=False,
        num_worker_replicas=0,
        global_id_in_cluster=None,
    )


def _check_chief_of_others(jobs: Mapping[str, tuple[str, ...]]) -> None:
    """Raises an error for jobs such as `ps` next to workers without a chief to save the model."""
    if not set(jobs) & set(CHIEF_TYPES) and not set(jobs) <= {TaskType.WORKER, TaskType.EVALUATOR}:
        raise ClusterError(
            'If "cluster" is set in TF_CONFIG, it must have one "chief" node. It lists '
            f"{listed(jobs)}: add a chief, or leave workers only. Without parameter servers "
            f'(RunConfig(parameter_servers="{REPLACE}")), worker 0 is the chief.'
        )


def _global_id(jobs: Mapping[str, tuple[str, ...]], task_type: str) -> int:
    """Returns the number of tasks before a job's first one: chief, other jobs by name, ps last."""
    first = [job for job in CHIEF_TYPES if job in jobs]
    others = sorted(set(jobs) - {*first, TaskType.PS})
    order = [*first, *others, TaskType.PS]
    return sum(len(jobs.get(job, ())) for job in order[: order.index(task_type)])
