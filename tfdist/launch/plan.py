"""The plan of a run: which worker is where, what it runs, and in which environment."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist.cluster.environment import START_TIMEOUT
from tfdist.cluster.instance_variables import instance_environment
from tfdist.cluster.tasks import Cluster, Task, is_loopback
from tfdist.cluster.tf_config import format_tf_config
from tfdist.launch.machine.cores_and_gpus import (
    Machine,
    Share,
    bound_cores,
    look_at_machine,
    share_environment,
)
from tfdist.launch.options.hosts import Host, place_instances
from tfdist.launch.options.run_options import RunOptions

_FIRST_PORT = 3737  # of the workers on other machines, unless --port says another
_DEFAULTS = {
    # A pipe's buffer keeps lines back, and the lines of a killed worker for ever.
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True, kw_only=True)
class WorkerPlan:
    """One process of the run.

    Attributes:
      index: Its number in the run: instances first, in order, then the evaluator if there is one.
      name: What messages call it: "worker 0", "evaluator".
      host: Where it runs.
      replicas: The indices of the model's copies in it; none for the evaluator.
      devices_per_replica: Devices of each copy.
      cores: The processor cores that it is bound to; None binds it to none, or its host is another
        one, where its agent finds them.
      share: Its part of its host, if that is another one; None on this machine, where the plan has
        it in `cores` and `environment`.
      command: What it runs.
      environment: The variables that are set for it, on top of the inherited ones.
      log_path: Where all that it prints is kept.
    """

    index: int
    name: str
    host: str
    replicas: range
    devices_per_replica: int
    cores: tuple[int, ...] | None
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log_path: Path
    share: Share | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All processes of the run.

    Attributes:
      engine: "grpc" or "horovod".
      hosts: The machines, in order.
      workers: The processes, in order of their index.
      num_ilds: The original's link domains: a row in the topology table, nothing else.
    """

    engine: str
    hosts: tuple[Host, ...]
    workers: tuple[WorkerPlan, ...]
    num_ilds: int | None = None


def make_plan(
    options: RunOptions,
    *,
    machine: Machine,
    ports: Sequence[int],
    log_dir: Path,
    environ: Mapping[str, str],
    restart_count: int = 0,
) -> Plan:
    """Returns who runs where, with which environment.

    Args:
      options: What the user wants.
      machine: What this machine has.
      ports: Free ports of this machine, one for each process; taken for gRPC alone.
      log_dir: Where the logs go.
      environ: The launcher's environment.
      restart_count: How often the run was started before.
    """
    places = place_instances(options.hosts, options.num_instances)
    on_host: Counter[str] = Counter()
    local_indices = []
    for host in places:
        local_indices.append(on_host[host.name])
        on_host[host.name] += 1
    cluster = _cluster(options, [host.name for host in places], local_indices, ports)
    defaults = {name: value for name, value in _DEFAULTS.items() if name not in environ}
    workers = []
    each = options.replicas_per_instance
    for index, (host, local_index) in enumerate(zip(places, local_indices, strict=True)):
        environment = {
            **defaults,
            START_TIMEOUT: f"{options.start_timeout_s:g}",
            **options.environment,
            **instance_environment(
                index=index,
                num_instances=options.num_instances,
                local_index=local_index,
                num_total_replicas=options.num_replicas,
                devices_per_replica=options.devices_per_replica,
                restart_count=restart_count,
                has_evaluator=options.evaluator,
            ),
        }
        if options.engine == "grpc":
            task = Task(type="worker", index=index)
            environment["TF_CONFIG"] = format_tf_config(cluster, task)
        share = Share(
            num_workers=on_host[host.name],
            index=local_index,
            bind=options.bind,
            threads=options.threads,
            num_devices=each * options.devices_per_replica,
        )
        is_here = is_loopback(host.name)
        if is_here:
            environment = {**share_environment(share, machine, environ), **environment}
        workers.append(
            WorkerPlan(
                index=index,
                name=f"worker {index}",
                host=host.name,
                replicas=range(index * each, (index + 1) * each),
                devices_per_replica=options.devices_per_replica,
                cores=bound_cores(share, machine) if is_here else None,
                share=None if is_here else share,
                command=options.command,
                environment=environment,
                log_path=log_dir / f"worker-{index}.log",
            )
        )
    if options.evaluator:
        workers.append(_evaluator(options, cluster, log_dir, defaults))
    return Plan(
        engine=options.engine,
        hosts=options.hosts,
        workers=tuple(workers),
        num_ilds=options.num_ilds,
    )


def num_local_ports(options: RunOptions) -> int:
    """Returns how many free ports of this machine the plan takes."""
    return options.num_instances + options.evaluator if options.is_on_this_machine else 0


def plan_here(
    options: RunOptions, ports: Sequence[int], log_dir: Path, restart_count: int = 0
) -> Plan:
    """Returns the plan for this machine and environment as they are."""
    return make_plan(
        options,
        machine=look_at_machine(),
        ports=ports,
        log_dir=log_dir,
        environ=os.environ,
        restart_count=restart_count,
    )


def _cluster(
    options: RunOptions,
    hosts: Sequence[str],
    local_indices: Sequence[int],
    ports: Sequence[int],
) -> Cluster:
    """Returns where the workers listen; for Horovod, where they might."""
    if options.is_on_this_machine:
        # Numbers: a name may lead elsewhere first, to IPv6 for example.
        addresses = [f"127.0.0.1:{port}" for port in ports]
    else:
        first = options.port or _FIRST_PORT
        addresses = [
            f"{f'[{host}]' if ':' in host else host}:{first + local_index}"
            for host, local_index in zip(hosts, local_indices, strict=True)
        ]
        # Nobody connects to the evaluator.
        addresses.append(f"{addresses[0].rpartition(':')[0]}:{first + options.num_instances}")
    jobs = {"worker": tuple(addresses[: options.num_instances])}
    if options.evaluator:
        jobs["evaluator"] = (addresses[options.num_instances],)
    return Cluster(jobs=jobs)


def _evaluator(
    options: RunOptions, cluster: Cluster, log_dir: Path, defaults: Mapping[str, str]
) -> WorkerPlan:
    environment = {
        **defaults,
        **options.environment,
        "TF_CONFIG": format_tf_config(cluster, Task(type="evaluator", index=0)),
        # The training's devices are the training's.
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    return WorkerPlan(
        index=options.num_instances,
        name="evaluator",
        host="localhost",
        replicas=range(0),
        devices_per_replica=options.devices_per_replica,
        cores=None,
        command=options.command,
        environment=environment,
        log_path=log_dir / "evaluator.log",
    )
