"""TF_CONFIG: the JSON text that lists the tasks of a run and names the task of this process.

All that is malformed or contradictory is a ClusterError.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfdist.cluster.tasks import (
    CHIEF_TYPES,
    TASK_TYPES,
    Cluster,
    ClusterError,
    Task,
    check_one_chief,
    unknown_name,
)
from tfdist.process.text import listed, shown

_EXAMPLE = (
    '{"cluster": {"worker": ["localhost:3737", "localhost:3738"]}, '
    '"task": {"type": "worker", "index": 0}}'
)


@dataclass(frozen=True, kw_only=True)
class TfConfig:
    """The JSON object of TF_CONFIG; each part is checked when it is read.

    `members` has all rules of a run whose tasks connect to each other. `jobs`, `task_type` and
    `task_index` allow any job name and any address: an Estimator without a strategy connects to no
    other task, and tf.estimator allows them.

    Attributes:
      values: The keys and values as they stand in the text; empty if TF_CONFIG is not set.
    """

    values: Mapping[str, Any]

    @property
    def jobs(self) -> dict[str, tuple[str, ...]]:
        """Job name to its addresses, without jobs that list none; {} without a "cluster"."""
        cluster = self.values.get("cluster", {})
        if not isinstance(cluster, dict):
            raise ClusterError(
                "TF_CONFIG cluster must be an object of job names and address lists, got "
                f'{shown(cluster)}. For example {{"worker": ["localhost:3737"]}}.'
            )
        jobs = {job: _read_addresses(job, value) for job, value in cluster.items()}
        jobs = {job: addresses for job, addresses in jobs.items() if addresses}
        check_one_chief(jobs, "TF_CONFIG cluster")
        return jobs

    @property
    def task_type(self) -> str | None:
        """The type of this process's task; None if it is not given."""
        task_type = self._task.get("type")
        if task_type is not None and not isinstance(task_type, str):
            raise ClusterError(f"TF_CONFIG has an unknown task type {unknown_name(task_type)}")
        return task_type or None

    @property
    def task_index(self) -> int | None:
        """The index of this process's task; None if it is not given."""
        index = self._task.get("index")
        # TensorFlow takes "1" as well.
        if isinstance(index, str) and re.fullmatch(r"[0-9]{1,9}", index):
            index = int(index)
        if index is None:
            return None
        if not isinstance(index, int) or isinstance(index, bool) or index < 0:
            raise ClusterError(
                f"TF_CONFIG task index must be an integer from 0, got {shown(index)}. Set "
                f"task.index to this process's place in cluster.{self.task_type or 'worker'}."
            )
        return index

    @property
    def service(self) -> dict[str, Any] | None:
        """Settings of a service that runs the program; a TypeError if they are no object."""
        service = self.values.get("service")
        if service is not None and not isinstance(service, dict):
            raise TypeError(
                f'If "service" is set in TF_CONFIG, it must be a dict. Given {type(service)}: '
                f"{service!r}."
            )
        return service

    def members(self) -> tuple[Cluster, Task]:
        """Returns the cluster and the task of this process."""
        for key in ("cluster", "task"):
            if key not in self.values:
                raise ClusterError(f'TF_CONFIG has no "{key}". A complete one: {_EXAMPLE}')
        jobs = self.jobs
        try:
            cluster = Cluster(jobs=jobs)
        except ClusterError as error:
            raise ClusterError(f"TF_CONFIG {error}") from None
        task_type, index = self.complete_task()
        if task_type not in TASK_TYPES:
            raise ClusterError(f"TF_CONFIG has an unknown task type {unknown_name(task_type)}")
        check_task_is_listed(cluster.jobs, task_type, index)
        return cluster, Task(type=task_type, index=index)

    def complete_task(self) -> tuple[str, int]:
        """Returns the type and index of this process's task; a ClusterError if one is missing."""
        task_type, index = self.task_type, self.task_index
        for key, value in (("type", task_type), ("index", index)):
            if value is None:
                raise ClusterError(
                    f'TF_CONFIG task has no "{key}": {shown(self._task)}. '
                    'For example {"type": "worker", "index": 0}.'
                )
        assert task_type is not None and index is not None
        return task_type, index

    @property
    def _task(self) -> dict[str, Any]:
        task = self.values.get("task", {})
        if not isinstance(task, dict):
            raise ClusterError(
                f"TF_CONFIG task must be an object, got {shown(task)}. "
                'For example {"type": "worker", "index": 0}.'
            )
        return task


def read_tf_config(environ: Mapping[str, str] = os.environ) -> TfConfig:
    """Reads TF_CONFIG from the environment; one that is not set or blank has no values."""
    is_set = is_tf_config_set(environ)
    return TfConfig(values=_load_object(environ["TF_CONFIG"]) if is_set else {})


def is_tf_config_set(environ: Mapping[str, str]) -> bool:
    """Returns whether TF_CONFIG has a text; a blank one counts as not set."""
    return bool(environ.get("TF_CONFIG", "").strip())


def parse_tf_config(text: str) -> tuple[Cluster, Task]:
    """Reads and checks the text of the environment variable TF_CONFIG.

    Args:
      text: A JSON object with "cluster" and "task"; other keys are not checked.

    Returns:
      The cluster and the task of this process.

    Raises:
      ClusterError: For everything malformed or contradictory.
    """
    return TfConfig(values=_load_object(text)).members()


def format_tf_config(cluster: Cluster, task: Task) -> str:
    """Returns the TF_CONFIG that makes a process this `task` of this `cluster`, as JSON."""
    jobs = {job: list(addresses) for job, addresses in cluster.jobs.items()}
    return json.dumps({"cluster": jobs, "task": {"type": task.type, "index": task.index}})


def check_task_is_listed(jobs: Mapping[str, tuple[str, ...]], task_type: str, index: int) -> None:
    """Refuses a task that the cluster does not list; evaluator 0 need not be listed."""
    count = len(jobs.get(task_type, ()))
    if task_type == "evaluator" and count == 0:
        if index > 0:
            raise ClusterError(
                f"TF_CONFIG task index {index} is out of range: an evaluator that the cluster "
                "does not list is number 0. Set task.index to 0."
            )
    elif count == 0:
        raise ClusterError(
            f'TF_CONFIG task type "{task_type}" is not in the cluster, which lists '
            f"{listed(jobs)}. Set task.type to one of these, or add "
            f"cluster.{task_type}."
        )
    elif index >= count:
        indices = [str(allowed) for allowed in range(count)]
        more = "" if task_type in CHIEF_TYPES else f", or add an address to cluster.{task_type}"
        plural = "s" if count > 1 and task_type != "ps" else ""
        raise ClusterError(
            f"TF_CONFIG task index {index} is out of range: the cluster lists {count} "
            f"{task_type}{plural} ({listed(indices)}). "
            f"Set task.index to {listed(indices, 'or')}{more}."
        )


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


def _read_addresses(job: str, value: Any) -> tuple[str, ...]:
    addresses = value
    if isinstance(value, dict):  # TensorFlow's other form: {"0": "host:port", "1": "host:port"}
        value = {str(index): address for index, address in value.items()}
        expected = [str(index) for index in range(len(value))]
        if sorted(value) != sorted(expected):
            raise ClusterError(
                f"TF_CONFIG cluster.{job} must number its addresses from 0 without gaps, "
                f"got {shown(list(value))}. Number them {listed(expected)}, or give a list."
            )
        addresses = [value[index] for index in expected]
    if not isinstance(addresses, list) or not all(
        isinstance(address, str) for address in addresses
    ):
        raise ClusterError(
            f'TF_CONFIG cluster.{job} must be a list of "host:port" strings, got {shown(value)}. '
            'For example ["localhost:3737"].'
        )
    return tuple(addresses)
