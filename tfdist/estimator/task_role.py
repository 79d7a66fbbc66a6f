"""Who this process is in a run: the facts of RunConfig that TF_CONFIG or a strategy decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.cluster import ClusterError
from tfdist.cluster.ranks import check_launcher
from tfdist.cluster.tasks import listed


class TaskType:
    """The names of the tasks of a cluster."""

    MASTER = "master"
    PS = "ps"
    WORKER = "worker"
    CHIEF = "chief"
    EVALUATOR = "evaluator"


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


def find_role(strategy: Any, tf_config: Mapping[str, Any]) -> TaskRole:
    """Finds the role of this process: the strategy knows it, else TF_CONFIG says it.

    Args:
      strategy: The strategy for training, or None.
      tf_config: What the environment variable TF_CONFIG holds; {} if it is not set.

    Raises:
      ClusterError: If what is given contradicts itself, or nothing is given to one of several
        processes that an unsupported launcher started.
    """
    cluster, task = getattr(strategy, "cluster", None), getattr(strategy, "task", None)
    if cluster is not None and task is not None:
        jobs = {job: list(addresses) for job, addresses in cluster.jobs.items()}
        told = {"cluster": jobs, "task": {"type": task.type, "index": task.index}}
        return _role_in_cluster({**tf_config, **told}, needs_chief=False)
    collectives = getattr(getattr(strategy, "extended", None), "collectives", None)
    if collectives is not None and collectives.num_workers > 1:
        return _role_among_equals(collectives.num_workers, collectives.worker_index)
    if tf_config.get("cluster"):
        return _role_in_cluster(tf_config, needs_chief=strategy is None)
    return _role_alone(tf_config)


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


def _role_alone(tf_config: Mapping[str, Any]) -> TaskRole:
    task = _task_of(tf_config)
    task_type = task.get("type", TaskType.WORKER)
    task_id = _as_index(task.get("index", 0))
    masters = {
        "master": tf_config.get("session_master", ""),
        "evaluation_master": tf_config.get("eval_session_master", ""),
    }
    if task_type == TaskType.EVALUATOR:  # It needs nobody's address.
        return _evaluator(task_id, masters["evaluation_master"])
    if task_type != TaskType.WORKER:
        raise ClusterError(
            'If "cluster" is not set in TF_CONFIG, task type must be WORKER. It is '
            f'{task_type!r}: add the "cluster", or remove the task.'
        )
    if task_id != 0:
        raise ClusterError(
            f'If "cluster" is not set in TF_CONFIG, task index must be 0. It is {task_id}: add the '
            '"cluster", or remove the task.'
        )
    check_launcher()
    return TaskRole(
        cluster_spec=tf.train.ClusterSpec({}),
        task_type=task_type,
        task_id=0,
        is_chief=True,
        num_worker_replicas=1,
        global_id_in_cluster=0,
        **masters,
    )


def _role_among_equals(num_workers: int, worker_index: int) -> TaskRole:
    """The role of a process that knows no addresses (Horovod's)."""
    return TaskRole(
        cluster_spec=tf.train.ClusterSpec({}),
        task_type=TaskType.WORKER,
        task_id=worker_index,
        is_chief=worker_index == 0,
        num_worker_replicas=num_workers,
        global_id_in_cluster=worker_index,
    )


def _role_in_cluster(tf_config: Mapping[str, Any], *, needs_chief: bool) -> TaskRole:
    spec = _cluster_spec(tf_config["cluster"])
    chief = _chief_type(spec.jobs, needs_chief)
    if chief is not None and spec.num_tasks(chief) != 1:
        raise ClusterError(
            f'The "cluster" in TF_CONFIG must have only one "{chief}" node. It lists '
            f'{spec.num_tasks(chief)}: keep one and list the others under "worker".'
        )
    task_type, task_id = _checked_task(spec, _task_of(tf_config))
    if task_type == TaskType.EVALUATOR:
        if chief == TaskType.MASTER:
            raise ClusterError(
                "If `master` node exists in `cluster`, task_type `evaluator` is not supported. "
                "The master evaluates: call the job chief instead to have an evaluator."
            )
        return _evaluator(task_id, tf_config.get("eval_session_master", ""))
    is_alone = len(spec.jobs) == 1 and _count(spec, task_type) == 1
    address = "" if is_alone else f"grpc://{spec.task_address(task_type, task_id)}"
    return TaskRole(
        cluster_spec=spec,
        task_type=task_type,
        task_id=task_id,
        master=tf_config.get("session_master", address),
        is_chief=task_type == chief if chief else (task_type, task_id) == (TaskType.WORKER, 0),
        num_ps_replicas=_count(spec, TaskType.PS),
        num_worker_replicas=_count(spec, TaskType.WORKER) + (1 if chief else 0),
        global_id_in_cluster=_global_id(spec, chief, task_type) + task_id,
    )


def _evaluator(task_id: int, evaluation_master: str) -> TaskRole:
    return TaskRole(
        cluster_spec=tf.train.ClusterSpec({}),
        task_type=TaskType.EVALUATOR,
        task_id=task_id,
        evaluation_master=evaluation_master,
        is_chief=False,
        num_worker_replicas=0,
        global_id_in_cluster=None,
    )


def _cluster_spec(cluster: Any) -> tf.train.ClusterSpec:
    if not isinstance(cluster, dict):
        raise ClusterError(
            f'TF_CONFIG "cluster" must be an object of job names and addresses, got {cluster!r}. '
            'For example {"worker": ["localhost:3737"]}.'
        )
    # TensorFlow's other form of a job, {"0": "host:port"}, has numbers for keys outside JSON.
    jobs = {
        job: {int(k): v for k, v in tasks.items()} if isinstance(tasks, dict) else tasks
        for job, tasks in cluster.items()
    }
    try:
        return tf.train.ClusterSpec(jobs)
    except TypeError as error:
        raise ClusterError(f'TF_CONFIG "cluster" cannot be read: {error}') from None


def _chief_type(jobs: list[str], needs_chief: bool) -> str | None:
    """Returns the job of the chief; None where worker 0 is the chief."""
    if TaskType.MASTER in jobs:
        if TaskType.CHIEF in jobs:
            raise ClusterError(
                "If `master` node exists in `cluster`, job `chief` is not supported. Keep one of "
                "the two."
            )
        return TaskType.MASTER
    if TaskType.CHIEF in jobs:
        return TaskType.CHIEF
    if needs_chief and not set(jobs) <= {TaskType.WORKER, TaskType.EVALUATOR}:
        raise ClusterError(
            'If "cluster" is set in TF_CONFIG, it must have one "chief" node. It lists '
            f"{listed(jobs)}: add a chief, or leave workers only."
        )
    return None


def _task_of(tf_config: Mapping[str, Any]) -> dict[str, Any]:
    task = tf_config.get("task", {})
    if not isinstance(task, dict):
        raise ClusterError(f'TF_CONFIG "task" must be an object, got {task!r}. Remove it.')
    return task


def _checked_task(spec: tf.train.ClusterSpec, task: dict[str, Any]) -> tuple[str, int]:
    for key in ("type", "index"):
        if task.get(key) in (None, ""):
            raise ClusterError(
                f'If "cluster" is set in TF_CONFIG, task {key} must be set. TF_CONFIG "task" is '
                f'{task!r}: write {{"type": "worker", "index": 0}}, say.'
            )
    task_type, task_id = task["type"], _as_index(task["index"])
    if task_id < 0:
        raise ClusterError(f"Task index must be non-negative number. It is {task_id} in TF_CONFIG.")
    if task_type == TaskType.EVALUATOR:  # Not in the training cluster, listed or not.
        return task_type, task_id
    if task_type not in spec.jobs:
        raise ClusterError(
            f"{task_type} is not a valid task_type in the cluster_spec, which lists "
            f"{listed(spec.jobs)}. Correct TF_CONFIG's task or cluster."
        )
    if task_id not in spec.task_indices(task_type):
        raise ClusterError(
            f"{task_id} is not a valid task_id for task_type {task_type} in the cluster_spec, "
            f"which lists {spec.num_tasks(task_type)} of them, from 0. Correct TF_CONFIG."
        )
    return task_type, task_id


def _as_index(index: Any) -> int:
    try:
        return int(index)
    except (TypeError, ValueError):
        raise ClusterError(
            f"TF_CONFIG task index must be an integer from 0, got {index!r}."
        ) from None


def _count(spec: tf.train.ClusterSpec, job: str) -> int:
    return int(spec.num_tasks(job)) if job in spec.jobs else 0


def _global_id(spec: tf.train.ClusterSpec, chief: str | None, task_type: str) -> int:
    """Counts the tasks before the first one of a job: chief, other jobs by name, ps last."""
    others = sorted(set(spec.jobs) - {chief, TaskType.PS})
    order = [*([chief] if chief else []), *others, TaskType.PS]
    return sum(_count(spec, job) for job in order[: order.index(task_type)])
