"""TF_CONFIG: who is in this run, and which of them this process is."""

import json
import re
from typing import Any

from tfdist.cluster.tasks import (
    CHIEF_TYPES,
    TASK_TYPES,
    Cluster,
    ClusterError,
    Task,
    listed,
    shown,
    unknown_name,
)

_EXAMPLE = (
    '{"cluster": {"worker": ["localhost:3737", "localhost:3738"]}, '
    '"task": {"type": "worker", "index": 0}}'
)


def parse_tf_config(text: str) -> tuple[Cluster, Task]:
    """Reads and checks the text of the environment variable TF_CONFIG.

    Keys beside "cluster" and "task" are left to those who know them.

    Args:
      text: A JSON object with "cluster" and "task".

    Returns:
      The cluster, and the task that this process is.

    Raises:
      ClusterError: For everything malformed or contradictory.
    """
    config = _load_object(text)
    for key in ("cluster", "task"):
        if key not in config:
            raise ClusterError(f'TF_CONFIG has no "{key}". A whole one: {_EXAMPLE}')
    try:
        cluster = Cluster(jobs=_read_jobs(config["cluster"]))
    except ClusterError as error:
        raise ClusterError(f"TF_CONFIG {error}") from None
    task = _read_task(config["task"])
    _check_task_is_listed(cluster, task)
    return cluster, task


def lists_tasks(text: str) -> bool:
    """Whether the text of a TF_CONFIG has a "cluster"; one without may name a model_dir, say.

    What cannot be read counts as having one, so that `parse_tf_config` says what is wrong.
    """
    if not text.strip():
        return False
    try:
        config = json.loads(text)
    except (RecursionError, ValueError):
        return True
    return not isinstance(config, dict) or "cluster" in config


def format_tf_config(cluster: Cluster, task: Task) -> str:
    """Returns the TF_CONFIG that makes a process this task of this cluster, as JSON."""
    jobs = {job: list(addresses) for job, addresses in cluster.jobs.items()}
    return json.dumps({"cluster": jobs, "task": {"type": task.type, "index": task.index}})


def _load_object(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text, object_pairs_hook=_object_without_repeats)
    except json.JSONDecodeError as error:
        near = shown(text[max(0, error.pos - 10) : error.pos + 20])
        raise ClusterError(
            f"TF_CONFIG is not JSON: {error.msg} at line {error.lineno}, column {error.colno}, "
            f"near {near}.\nJSON takes double quotes; in a shell write TF_CONFIG='{_EXAMPLE}'"
        ) from None
    except ClusterError:
        raise
    except (RecursionError, ValueError):  # ValueError: an integer of thousands of digits
        raise ClusterError(
            "TF_CONFIG cannot be read: nested too deeply, or a number too long. "
            f"For example {_EXAMPLE}"
        ) from None
    if not isinstance(config, dict):
        raise ClusterError(
            f"TF_CONFIG must be a JSON object, got {shown(config)}. For example {_EXAMPLE}"
        )
    return config


def _object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # json would keep the last of two equal keys and lose the workers of the first.
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise ClusterError(
                f"TF_CONFIG has the key {shown(name)} twice in one object. Keep one."
            )
        seen.add(name)
    return dict(pairs)


def _read_jobs(cluster: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(cluster, dict):
        raise ClusterError(
            f"cluster must be an object of job names and address lists, got {shown(cluster)}. "
            'For example {"worker": ["localhost:3737"]}.'
        )
    return {job: _read_addresses(job, value) for job, value in cluster.items()}


def _read_addresses(job: str, value: Any) -> tuple[str, ...]:
    addresses = value
    if isinstance(value, dict):  # TensorFlow's other form: {"0": "host:port", "1": "host:port"}
        expected = [str(index) for index in range(len(value))]
        if sorted(value) != sorted(expected):
            raise ClusterError(
                f"cluster.{job} must number its addresses from 0 without gaps, "
                f"got {shown(list(value))}. Number them {listed(expected)}, or give a list."
            )
        addresses = [value[index] for index in expected]
    if not isinstance(addresses, list) or not all(isinstance(one, str) for one in addresses):
        raise ClusterError(
            f'cluster.{job} must be a list of "host:port" strings, got {shown(value)}. '
            'For example ["localhost:3737"].'
        )
    return tuple(addresses)


def _read_task(task: Any) -> Task:
    if not isinstance(task, dict):
        raise ClusterError(
            f"TF_CONFIG task must be an object, got {shown(task)}. "
            'For example {"type": "worker", "index": 0}.'
        )
    for key in ("type", "index"):
        if key not in task:
            raise ClusterError(
                f'TF_CONFIG task has no "{key}": {shown(task)}. '
                'For example {"type": "worker", "index": 0}.'
            )
    task_type, index = task["type"], task["index"]
    if not isinstance(task_type, str) or task_type not in TASK_TYPES:
        raise ClusterError(f"TF_CONFIG has an unknown task type {unknown_name(task_type)}")
    if isinstance(index, str) and re.fullmatch(r"[0-9]{1,9}", index):  # TensorFlow takes "1" too
        index = int(index)
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise ClusterError(
            f"TF_CONFIG task index must be an integer from 0, got {shown(index)}. "
            f"Set task.index to this process's place in cluster.{task_type}."
        )
    return Task(type=task_type, index=index)


def _check_task_is_listed(cluster: Cluster, task: Task) -> None:
    count = len(cluster.jobs.get(task.type, ()))
    if task.type == "evaluator" and count == 0:
        if task.index > 0:
            raise ClusterError(
                f"TF_CONFIG task index {task.index} is out of range: an evaluator that the cluster "
                "does not list is number 0. Set task.index to 0."
            )
    elif count == 0:
        raise ClusterError(
            f'TF_CONFIG task type "{task.type}" is not in the cluster, which lists '
            f"{listed(cluster.jobs)}. Set task.type to one of these, or add "
            f"cluster.{task.type}."
        )
    elif task.index >= count:
        indices = [str(index) for index in range(count)]
        more = "" if task.type in CHIEF_TYPES else f", or add an address to cluster.{task.type}"
        plural = "s" if count > 1 and task.type != "ps" else ""
        raise ClusterError(
            f"TF_CONFIG task index {task.index} is out of range: the cluster lists {count} "
            f"{task.type}{plural} ({listed(indices)}). "
            f"Set task.index to {listed(indices, 'or')}{more}."
        )
