"""What `tfdist kubernetes` was asked for: its options, read and checked."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from tfdist.cluster.tasks import listed, shown
from tfdist.launch.errors import UsageError
from tfdist.launch.kubernetes.option_values import ClaimMount, SecretVariable
from tfdist.launch.sizes import total_replicas

# Which engines each kind can start, its own choice first.
KINDS = {
    "job": ("grpc",),
    "tfjob": ("grpc",),
    "mpijob": ("horovod",),
    "trainjob": ("grpc", "horovod"),
}
# What must be given.
_EXAMPLES = {"name": "--name train", "image": "--image registry.example.com/team/train:1.0"}


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """What the manifests are made from.

    Attributes:
      kind: "job", "tfjob", "mpijob" or "trainjob".
      engine: "grpc" or "horovod".
      name: Of the run and its objects.
      namespace: Where they live; None leaves that to kubectl.
      image: What the containers run.
      command: The program and its arguments, as they should arrive.
      num_instances: Training pods.
      replicas_per_instance: Copies of the model in each.
      devices_per_replica: Devices of each copy.
      has_evaluator: Whether one more pod evaluates.
      cpu: Cores of a pod, as a quantity; None leaves it open.
      memory: Memory of a pod, as a quantity; None leaves it open.
      gpus: NVIDIA GPUs of a pod.
      shared_memory: Size of /dev/shm, as a quantity; None leaves the container's own.
      host_ipc: Whether the pods share the node's IPC namespace.
      ipc_lock: Whether the pods may pin memory.
      user_id: Whom the containers run as.
      env: Variables of the program.
      secret_env: Variables of the program whose values are in Secrets.
      volumes: Claims and where they are mounted.
      mpirun: The image's mpirun.
      max_restarts: How often a worker is started again.
      active_deadline_s: After how long everything is ended; None for never.
      grace_s: How long a pod may save and leave after TERM.
      start_timeout_s: How long the workers wait for each other at the start.
      queue: Kueue's queue; None for none.
      service_account: Whose rights the pods have; None for the namespace's default.
      image_pull_secrets: Secrets that open the image's registry.
      has_network_policy: Whether only the run's own pods may connect to its pods.
    """

    kind: str
    engine: str
    name: str
    namespace: str | None
    image: str
    command: tuple[str, ...]
    num_instances: int
    replicas_per_instance: int
    devices_per_replica: int
    has_evaluator: bool
    cpu: str | None
    memory: str | None
    gpus: int | None
    shared_memory: str | None
    host_ipc: bool
    ipc_lock: bool
    user_id: int
    env: tuple[tuple[str, str], ...]
    secret_env: tuple[SecretVariable, ...]
    volumes: tuple[ClaimMount, ...]
    mpirun: str
    max_restarts: int
    active_deadline_s: int | None
    grace_s: int
    start_timeout_s: int
    queue: str | None
    service_account: str | None
    image_pull_secrets: tuple[str, ...]
    has_network_policy: bool


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Where the manifests go.

    Attributes:
      output: A file; None for stdout, unless they are submitted.
      verb: kubectl's "apply" or "create"; None submits nothing.
      dry_run: kubectl's "client" or "server"; None submits for real.
    """

    output: Path | None
    verb: str | None
    dry_run: str | None


def read_options(arguments: argparse.Namespace) -> tuple[JobOptions, Delivery]:
    """Returns the options; `checks.check` looks at how they go together.

    Raises:
      UsageError: If one that is needed is missing, or another does not go with --kind.
    """
    for name, example in _EXAMPLES.items():
        if getattr(arguments, name) is None:
            raise UsageError(f"--{name} is missing. Write for example {example}.")
    engine = arguments.engine or KINDS[arguments.kind][0]
    if engine not in KINDS[arguments.kind]:
        kinds = listed([kind for kind in KINDS if engine in KINDS[kind]], "or")
        raise UsageError(
            f"--kind {arguments.kind} cannot start --engine {engine}, only "
            f"{KINDS[arguments.kind][0]}. Use --kind {kinds}, or leave --engine out."
        )
    replicas = total_replicas(arguments.num_instances, arguments.num_replicas)
    options = JobOptions(
        kind=arguments.kind,
        engine=engine,
        name=arguments.name,
        namespace=arguments.namespace,
        image=arguments.image,
        command=tuple(arguments.command),
        num_instances=arguments.num_instances,
        replicas_per_instance=replicas // arguments.num_instances,
        devices_per_replica=arguments.devices_per_replica,
        has_evaluator=arguments.evaluator,
        cpu=arguments.cpu,
        memory=arguments.memory,
        gpus=arguments.gpus,
        shared_memory=arguments.shared_memory,
        host_ipc=arguments.host_ipc,
        ipc_lock=arguments.ipc_lock,
        user_id=arguments.run_as_user,
        env=tuple(arguments.env or ()),
        secret_env=tuple(arguments.secret_env or ()),
        volumes=tuple(arguments.volume or ()),
        mpirun=arguments.mpirun,
        max_restarts=arguments.max_restarts,
        active_deadline_s=arguments.active_deadline,
        grace_s=arguments.grace,
        start_timeout_s=arguments.start_timeout,
        queue=arguments.queue,
        service_account=arguments.service_account,
        image_pull_secrets=tuple(arguments.image_pull_secret or ()),
        has_network_policy=arguments.network_policy,
    )
    return options, _read_delivery(arguments)


def _read_delivery(arguments: argparse.Namespace) -> Delivery:
    if arguments.apply and arguments.create:
        raise UsageError("--apply and --create are both given, and one is allowed. Keep one.")
    verb = "apply" if arguments.apply else "create" if arguments.create else None
    output = None if arguments.output is None else Path(arguments.output)
    if output is not None and not output.parent.is_dir():
        raise UsageError(
            f"--output is in {shown(str(output.parent))}, which is no folder. "
            "Make it, or name another."
        )
    return Delivery(output=output, verb=verb, dry_run=arguments.dry_run)
