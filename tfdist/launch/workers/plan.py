"""The plan of a run: the host, command and environment of each worker."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist.cluster.environment import GRACE, PROFILE, PROFILE_STEPS, SNAPSHOT_STEPS, START_TIMEOUT
from tfdist.cluster.instance_variables import (
    RESTART_LOST_S,
    RESTART_REPEATED_STEPS,
    RESTART_STEP,
    RUN,
    instance_environment,
)
from tfdist.cluster.tasks import Cluster, Task, is_loopback
from tfdist.cluster.tf_config import format_tf_config
from tfdist.launch.errors import UsageError
from tfdist.launch.machine.cores_and_gpus import (
    Machine,
    Share,
    bound_cores,
    look_at_machine,
    share_environment,
)
from tfdist.launch.machine.limits import LONGEST_WORD
from tfdist.launch.options.hosts import Host, place_instances
from tfdist.launch.options.run_options import RunOptions

_FIRST_PORT = 3737  # of the workers on other machines; --port overrides it
_REST_OF_TF_CONFIG = 150  # bytes of it without the addresses, rounded up


@dataclass(frozen=True, kw_only=True)
class WorkerPlan:
    """One process of the run.

    Attributes:
      index: Its index in the run: instances first, in order, then the evaluator if there is one.
      name: Its name in messages: "worker 0", "evaluator".
      replicas: The indices of its replicas; empty for the evaluator.
      cores: The processor cores to which it is bound. None if it is not bound, and on another
        host, where its agent chooses them.
      share: Its share of another host's resources. None on this machine, where `cores` and
        `environment` already contain it.
      environment: The variables that are set for it, in addition to the inherited ones.
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

    `num_ilds` is poprun's number of IPU link domains, which is only a row of the topology table.
    """

    engine: str
    hosts: tuple[Host, ...]
    workers: tuple[WorkerPlan, ...]
    num_ilds: int | None = None


def make_plan(
    options: RunOptions,
    *,
    ports: Sequence[int],
    log_dir: Path,
    machine: Machine | None = None,
    environ: Mapping[str, str] = os.environ,
    restart_count: int = 0,
    restart_step: int | None = None,
    restart_cost: tuple[int, int] = (0, 0),
    run: str = "",
    num_full_instances: int | None = None,
) -> Plan:
    """Returns the plan of a run: the host, command and environment of each worker.

    Args:
      options: The options of the run.
      ports: Free ports of this machine, one per process; only gRPC listens on them.
      log_dir: The folder of the log files.
      machine: The resources of this machine; None looks at it.
      environ: The launcher's environment.
      restart_count: The number of earlier starts of this run.
      restart_step: The last step that a worker had made before the restart, if it is known.
      restart_cost: Seconds lost and steps made again by earlier interruptions.
      run: The name of the run; see `tfdist.process.snapshot_folders`.
      num_full_instances: The instances that the run was asked for, if this start has fewer.
    """
    machine = machine or look_at_machine()
    places = place_instances(options.hosts, len(options.own_instances))
    on_host: Counter[str] = Counter()
    local_indices = []
    for host in places:
        local_indices.append(on_host[host.name])
        on_host[host.name] += 1
    cluster = _cluster(options, [host.name for host in places], local_indices, ports)
    defaults = default_variables(environ)
    workers = []
    each = options.replicas_per_instance
    own = zip(options.own_instances, places, local_indices, strict=True)
    for index, host, local_index in own:
        environment = {
            **defaults,
            START_TIMEOUT: f"{options.start_timeout_s:g}",
            GRACE: f"{options.grace_s:g}",
            **_profile(options),
            **_starts(options, restart_count, restart_step, restart_cost, run),
            **options.environment,
            **instance_environment(
                index=index,
                num_instances=options.num_instances,
                local_index=local_index,
                num_total_replicas=options.num_replicas,
                devices_per_replica=options.devices_per_replica,
                restart_count=restart_count,
                num_full_instances=num_full_instances,
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


def default_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that each worker gets unless `environ` has them."""
    # With a pipe, Python buffers its output: lines would come late, and a killed worker's last
    # lines would be lost.
    return {} if "PYTHONUNBUFFERED" in environ else {"PYTHONUNBUFFERED": "1"}


def _profile(options: RunOptions) -> dict[str, str]:
    if options.profile is None:
        return {}
    return {PROFILE: os.path.abspath(options.profile), PROFILE_STEPS: options.profile_steps}


def _starts(
    options: RunOptions, count: int, step: int | None, cost: tuple[int, int], run: str
) -> dict[str, str]:
    """Returns the variables for snapshots, by which starts are connected, and of restarts' cost."""
    values: dict[str, int | str | None] = {}
    if options.max_restarts > 0:
        values |= {SNAPSHOT_STEPS: options.snapshot_steps, RESTART_STEP: step, RUN: run or None}
    if count > 0:
        values |= {RESTART_LOST_S: cost[0], RESTART_REPEATED_STEPS: cost[1]}
    return {name: str(value) for name, value in values.items() if value is not None}


def num_local_ports(options: RunOptions) -> int:
    """Returns the number of free ports of this machine that the plan uses."""
    is_chosen = options.is_on_this_machine and not options.nodes
    return options.num_instances + options.evaluator if is_chosen else 0


def _cluster(
    options: RunOptions, hosts: Sequence[str], local_indices: Sequence[int], ports: Sequence[int]
) -> Cluster:
    """Returns the addresses of the workers. Horovod's workers use none."""
    if options.nodes:
        each = len(options.own_instances)
        firsts = [address.rpartition(":") for address in options.nodes]
        addresses = [f"{host}:{int(port) + i}" for host, _, port in firsts for i in range(each)]
    elif options.is_on_this_machine:
        # An IP address: a name could resolve to another address first, to IPv6 for example.
        addresses = [f"127.0.0.1:{port}" for port in ports]
    else:
        first = options.port or _FIRST_PORT
        addresses = [
            f"{f'[{host}]' if ':' in host else host}:{first + local_index}"
            for host, local_index in zip(hosts, local_indices, strict=True)
        ]
        # No process connects to the evaluator: its address only has to be valid.
        addresses.append(f"{addresses[0].rpartition(':')[0]}:{first + options.num_instances}")
    if options.engine == "grpc":
        _check_tf_config(addresses)
    jobs = {"worker": tuple(addresses[: options.num_instances])}
    if options.evaluator:
        jobs["evaluator"] = (addresses[options.num_instances],)
    return Cluster(jobs=jobs)


def _check_tf_config(addresses: Sequence[str]) -> None:
    size = sum(len(address) + len('"", ') for address in addresses) + _REST_OF_TF_CONFIG
    if size > LONGEST_WORD:
        raise UsageError(
            f"with {len(addresses)} workers TF_CONFIG has about {size} bytes, and a variable may "
            f"have {LONGEST_WORD}. Use at most {len(addresses) * LONGEST_WORD // size} workers, or "
            "--engine horovod."
        )


def _evaluator(
    options: RunOptions, cluster: Cluster, log_dir: Path, defaults: Mapping[str, str]
) -> WorkerPlan:
    environment = {
        **defaults,
        **options.environment,
        "TF_CONFIG": format_tf_config(cluster, Task(type="evaluator", index=0)),
        # The GPUs are reserved for the training workers.
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
