"""The tasks of a run, their addresses ("host:port"), and which of them train."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfdist.process.endings import OneLineError
from tfdist.process.text import did_you_mean, listed, shown


class TaskType:
    """The names of the tasks of a cluster."""

    MASTER = "master"
    PS = "ps"
    WORKER = "worker"
    CHIEF = "chief"
    EVALUATOR = "evaluator"


CHIEF_TYPES = (TaskType.CHIEF, TaskType.MASTER)
TASK_TYPES = (*CHIEF_TYPES, TaskType.WORKER, TaskType.PS, TaskType.EVALUATOR)

_LONGEST_HOST = 253  # DNS's limit
_LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost")


class ClusterError(OneLineError, ValueError):
    """The description of the cluster is wrong; the message is one or two lines for the user."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One process of the run: a type ("chief", "master", "worker", "ps", "evaluator"), an index.

    Attributes:
      type: The job, such as "worker".
      index: Its index in the job, from 0.
    """

    type: str
    index: int

    def __post_init__(self) -> None:
        """Refuses a type that no process can have, and an index below 0."""
        if self.type not in TASK_TYPES:
            raise ClusterError(f"Unknown task type {unknown_name(self.type)}")
        if self.index < 0:
            raise ClusterError(f"Task index {self.index} is negative. Indices count from 0.")

    @property
    def name(self) -> str:
        """The task's name in messages: "chief", "master", "worker 1", "ps 0" or "evaluator 0"."""
        return self.type if self.type in CHIEF_TYPES else f"{self.type} {self.index}"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """All tasks of a run and the addresses at which they listen.

    Attributes:
      jobs: Job name to its addresses ("host:port"), in task order, as listed. The evaluator may
        be listed or not; it is never counted as a worker.

    Raises:
      ClusterError: If a job name is unknown, an address is malformed or listed twice, there is
        more than one chief or no worker at all, or loopback addresses stand beside others.
    """

    jobs: Mapping[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        """Checks the jobs, whether they come from TF_CONFIG, from Slurm or from a program."""
        # A job without addresses is a job that is not there, as TensorFlow sees it too.
        jobs = {job: tuple(addresses) for job, addresses in self.jobs.items() if addresses}
        object.__setattr__(self, "jobs", jobs)
        for job in self.jobs:
            if job not in TASK_TYPES:
                raise ClusterError(f"cluster has an unknown job {unknown_name(job)}")
        _check_addresses(self.jobs)
        check_one_chief(self.jobs)
        if not self.workers:
            only = f", only {listed(self.jobs)}" if self.jobs else ""
            raise ClusterError(
                f"cluster lists no chief and no worker{only}. "
                'Add the tasks that train, for example "worker": ["localhost:3737"].'
            )
        _check_loopback(self.jobs)

    @property
    def workers(self) -> tuple[Task, ...]:
        """The training tasks in worker order: the chief (or master) first, then worker 0, 1, ..."""
        return training_tasks(self.jobs)

    @property
    def num_workers(self) -> int:
        """The number of tasks that train: chief and workers, without ps and evaluator."""
        return len(self.workers)

    @property
    def has_evaluator(self) -> bool:
        """True if an evaluator is listed (one may run without being listed)."""
        return "evaluator" in self.jobs

    def without_parameter_servers(self) -> Cluster:
        """Returns the cluster without its tasks of type ps."""
        return Cluster(jobs={job: a for job, a in self.jobs.items() if job != TaskType.PS})

    def address(self, task: Task) -> str:
        """Returns the "host:port" of `task`; a ClusterError if it is not listed."""
        addresses = self.jobs.get(task.type, ())
        if task.index >= len(addresses):
            raise ClusterError(f"The cluster lists no address for {task.type} {task.index}.")
        return addresses[task.index]

    def worker_index(self, task: Task) -> int:
        """Returns the position of `task` in `workers`; a ClusterError if it is not among them."""
        if task not in self.workers:
            names = listed([worker.name for worker in self.workers])
            raise ClusterError(
                f"{task.name} is not a worker of this cluster. Its workers: {names}."
            )
        return self.workers.index(task)

    def local_index(self, task: Task) -> int:
        """Returns the position of `task` on its machine; a ClusterError as above."""
        return self._local_workers(task).index(task)

    def num_local_workers(self, task: Task) -> int:
        """Returns the number of workers on the machine of `task`; a ClusterError as above."""
        return len(self._local_workers(task))

    def _local_workers(self, task: Task) -> list[Task]:
        """Returns the workers with the host of this one, in worker order."""
        hosts = [split_address(self.address(worker))[0].lower() for worker in self.workers]
        hosts = ["localhost" if is_loopback(host) else host for host in hosts]
        own = hosts[self.worker_index(task)]
        return [worker for worker, host in zip(self.workers, hosts, strict=True) if host == own]

    def is_chief(self, task: Task) -> bool:
        """Returns whether `task` writes checkpoints: it is the chief or master, else worker 0."""
        return is_chief(self.jobs, task.type, task.index)


def training_tasks(jobs: Mapping[str, Sequence[str]]) -> tuple[Task, ...]:
    """Returns the tasks that train in worker order: chief or master first, then the workers."""
    return tuple(
        Task(type=job, index=index)
        for job in (*CHIEF_TYPES, TaskType.WORKER)
        for index in range(len(jobs.get(job, ())))
    )


def is_chief(jobs: Mapping[str, Sequence[str]], task_type: str, index: int) -> bool:
    """Returns whether this task of these jobs writes checkpoints: the first one that trains."""
    return [(task.type, task.index) for task in training_tasks(jobs)[:1]] == [(task_type, index)]


def _check_addresses(jobs: Mapping[str, tuple[str, ...]]) -> None:
    places: dict[tuple[str, int], str] = {}
    for job, addresses in jobs.items():
        for index, address in enumerate(addresses):
            try:
                host, port = split_address(address)
            except ValueError as error:
                raise ClusterError(f"cluster.{job} lists {shown(address)}: {error}") from None
            # TensorFlow's server takes the port on all of a machine's addresses.
            key = ("localhost" if is_loopback(host) else host.lower(), port)
            if key in places:
                raise ClusterError(
                    f"cluster lists {address} twice, as {places[key]} and {job} {index}. "
                    "Give each task its own address."
                )
            places[key] = f"{job} {index}"


def check_one_chief(jobs: Mapping[str, Sequence[str]], called: str = "cluster") -> None:
    """Refuses jobs that list more than one chief or master; a ClusterError."""
    chiefs = [address for job in CHIEF_TYPES for address in jobs.get(job, ())]
    if len(chiefs) > 1:
        named = [_quoted(address)[1:-1] for address in chiefs]
        raise ClusterError(
            f"{called} lists {len(chiefs)} chiefs ({listed(named)}), and one is allowed. "
            "Keep one of them under chief and list the others under worker."
        )


def _check_loopback(jobs: Mapping[str, tuple[str, ...]]) -> None:
    # No task connects to the evaluator, so its address may be anything.
    addresses = [address for job in jobs if job != "evaluator" for address in jobs[job]]
    local = [address for address in addresses if is_loopback(split_address(address)[0])]
    remote = [address for address in addresses if address not in local]
    if local and remote:
        raise ClusterError(
            f"cluster mixes {local[0]}, by which each machine means itself, with {remote[0]}. "
            "Use names or addresses that every machine can reach, or localhost for all."
        )


def unknown_name(name: Any) -> str:
    """Returns the end of a message that refuses a task type: allowed types, and the nearest."""
    hint = did_you_mean(str(name), TASK_TYPES)
    return f"{shown(name)}: allowed are {listed(TASK_TYPES)}.{hint}"


def checked_count(name: str, value: Any, *, least: int = 1, more: str = "") -> int:
    """Returns an integer of at least `least`, or raises a ValueError that ends with `more`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}.{more}")
    return value


def read_integer(
    environ: Mapping[str, str], name: str, least: int = 0, *, digits: int = 9, advice: str
) -> int:
    """Returns an environment variable's number; a ClusterError ends with `advice`.

    It must be at least `least` and have at most `digits` digits.
    """
    text = environ[name]
    if not re.fullmatch(rf"[0-9]{{1,{digits}}}", text) or int(text) < least:
        raise ClusterError(f"{name} is {shown(text)}, expected an integer from {least}. {advice}")
    return int(text)


def split_address(address: str) -> tuple[str, int]:
    """Splits "host:port" into its two parts; an IPv6 host loses its brackets.

    The message of the ValueError for other texts is the second half of a sentence whose first half
    says where the address stands.
    """
    host, colon, port_text = address.rpartition(":")
    if not colon or address.endswith("]"):
        raise ValueError('it has no port. Write "host:port", for example "localhost:3737".')
    if not host:
        raise ValueError('it has no host. Write "host:port", for example "localhost:3737".')
    if not re.fullmatch(r"[0-9]{1,5}", port_text) or not 1 <= int(port_text) <= 65535:
        raise ValueError(f"{_quoted(port_text)} is not a port. Use a number from 1 to 65535.")
    return _checked_host(host), int(port_text)


def is_loopback(host: str) -> bool:
    """Returns whether every machine means itself by it (localhost, 127.x, ::1, 0.0.0.0)."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() in _LOOPBACK_NAMES or host.lower().endswith(".localhost")
    return ip.is_loopback or ip.is_unspecified


def _checked_host(host: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            raise ValueError(
                f"{_quoted(host)[1:-1]} is not an IPv6 address. Write [address]:port."
            ) from None
    if "://" in host:
        raise ValueError('it starts with a protocol. Write only "host:port".')
    if ":" in host:
        raise ValueError("its host has a colon. Put an IPv6 address in brackets: [::1]:3737.")
    labels = host.removesuffix(".").split(".")
    # A name that begins with "-" would be an option of ssh.
    is_name = all(re.fullmatch(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)", label) for label in labels)
    if not is_name or len(host) > _LONGEST_HOST:
        raise ValueError(
            f'{_quoted(host)} is not a host. Use a name of letters, digits, "_", "." and, '
            'between them, "-", or an IP.'
        )
    return host


def _quoted(text: str) -> str:
    return json.dumps(text if len(text) <= 40 else f"{text[:37]}...")  # always one line
