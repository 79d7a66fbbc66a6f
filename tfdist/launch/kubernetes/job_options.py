"""The options of `tfdist kubernetes`, and the checks of their values.

The API server of Kubernetes would also refuse an invalid value, but later, and it would name a
manifest field that the user did not write.
"""

from __future__ import annotations

import argparse
import re
from argparse import ArgumentTypeError
from dataclasses import dataclass
from pathlib import Path

from tfdist.cluster.tasks import listed, shown
from tfdist.launch.errors import UsageError
from tfdist.launch.options.option_parser import variable
from tfdist.launch.options.run_rules import total_replicas

# The engines that each kind can start, with its default first.
KINDS = {
    "job": ("grpc",),
    "tfjob": ("grpc",),
    "mpijob": ("horovod",),
    "trainjob": ("grpc", "horovod"),
}
# Required options, with an example of each.
_EXAMPLES = {"name": "--name train", "image": "--image registry.example.com/team/train:1.0"}

LONGEST_LABEL = 63
_LONGEST_NAME = 253
_LONGEST_EXAMPLE = 30
_LABEL = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"

_BINARY = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BYTES = {**_BINARY, **_DECIMAL}
_LEAST_MEMORY = 2**20

_PART = "[a-z0-9]+(?:(?:[.]|_|__|-+)[a-z0-9]+)*"
_IMAGE = (
    rf"(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?{_PART}(?:/{_PART})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The options from which the manifests are made.

    Attributes:
      kind: "job", "tfjob", "mpijob" or "trainjob".
      engine: "grpc" or "horovod".
      name: Name of the run and its objects.
      namespace: Namespace of the objects. None leaves the choice to kubectl.
      image: Image of the containers.
      command: The program and its arguments, as the program must receive them.
      num_instances: Number of training pods.
      replicas_per_instance: Number of copies of the model in each training pod.
      devices_per_replica: Number of devices of each copy.
      has_evaluator: Whether there is an additional pod for evaluation.
      cpu: Processor cores of a pod, as a quantity. None sets no value.
      memory: Memory of a pod, as a quantity. None sets no value.
      gpus: Number of NVIDIA GPUs of a pod.
      shared_memory: Size of /dev/shm, as a quantity. None keeps the default of the container.
      host_ipc: Whether the pods share the node's IPC namespace.
      ipc_lock: Whether the pods may pin memory.
      user_id: The user id of the containers' processes.
      env: Environment variables of the program.
      secret_env: Environment variables of the program with values from Secrets.
      volumes: Persistent volume claims and their mount paths.
      mpirun: The mpirun of the image.
      max_restarts: Number of times that a worker is started again.
      active_deadline_s: Time in seconds after which the run is ended. None means no limit.
      grace_s: Time in seconds that a pod has after SIGTERM to save and exit.
      start_timeout_s: Time in seconds that the workers wait for each other at the start.
      queue: Queue of Kueue, or None.
      service_account: Service account of the pods. None means the namespace's default.
      image_pull_secrets: Secrets with credentials for the image's registry.
      has_network_policy: Whether only pods of the run may connect to its pods.
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
    """The destination of the manifests.

    Attributes:
      output: A file. None means stdout, unless the manifests are submitted.
      verb: "apply" or "create" of kubectl. None submits nothing.
      dry_run: "client" or "server" for a dry run of kubectl. None means no dry run.
    """

    output: Path | None
    verb: str | None
    dry_run: str | None


def read_options(arguments: argparse.Namespace) -> tuple[JobOptions, Delivery]:
    """Returns the options; `checks.check` then checks their combination.

    Raises:
      UsageError: If a required option is missing, or an option cannot be used with --kind.
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


@dataclass(frozen=True, kw_only=True)
class ClaimMount:
    """A PersistentVolumeClaim, and the folder in the pods where it is mounted."""

    claim: str
    path: str


@dataclass(frozen=True, kw_only=True)
class SecretVariable:
    """An environment variable with the value of a Secret's key."""

    name: str
    secret: str
    key: str


def run_name(text: str) -> str:
    """Reads a name for pods and a Service: a DNS label that starts with a letter."""
    label(text)
    if not text[0].isalpha():
        raise ArgumentTypeError(
            f"got {shown(text)}, which starts with a digit, and a Service's name may not. "
            f"Write for example {_shown_label(f'run-{text}')}."
        )
    return text


def label(text: str) -> str:
    """Reads a DNS label, such as the name of a namespace or a queue."""
    if not re.fullmatch(_LABEL, text) or len(text) > LONGEST_LABEL:
        raise ArgumentTypeError(
            f"got {shown(text)}, allowed are 1 to {LONGEST_LABEL} characters a-z, 0-9 and -, no - "
            f"first or last. Write for example {_shown_label(text)}."
        )
    return text


def object_name(text: str) -> str:
    """Reads the name of a Secret, service account or claim: DNS labels separated by dots."""
    if not re.fullmatch(rf"{_LABEL}(?:[.]{_LABEL})*", text) or len(text) > _LONGEST_NAME:
        raise ArgumentTypeError(
            f"got {shown(text)}, allowed are 1 to {_LONGEST_NAME} characters a-z, 0-9, - and ., a "
            f"letter or digit first and last. Write for example {_shown_label(text)}."
        )
    return text


def cpus(text: str) -> str:
    """Reads a number of processor cores, such as 4, 0.5 or 500m."""
    if not re.fullmatch(r"[0-9]{1,6}(?:[.][0-9]{1,3})?|[0-9]{1,9}m", text) or not re.search(
        "[1-9]", text
    ):
        raise ArgumentTypeError(
            f"got {shown(text)}, allowed are cores above 0 as 4, 0.5 or 500m (thousandths). "
            "Write for example 4."
        )
    return text


def memory(text: str) -> str:
    """Reads an amount of memory, such as 16Gi or 500M."""
    match = re.fullmatch(r"([0-9]{1,18}(?:[.][0-9]{1,3})?)([A-Za-z]*)", text)
    if not match or match[2] not in _BYTES:
        raise ArgumentTypeError(
            f"got {shown(text)}, allowed is a number with Ki, Mi, Gi, Ti (of 1024), k, M, G or T "
            f"(of 1000). Write for example {_memory_example(text)}."
        )
    if float(match[1]) * _BYTES[match[2]] < _LEAST_MEMORY:
        raise ArgumentTypeError(
            f"got {shown(text)}, which is less than a megabyte: a number without a unit counts "
            f"bytes. Write for example {_memory_example(text)}."
        )
    return text


def memory_or_none(text: str) -> str | None:
    """Reads an amount of memory; returns None for 0 and "none"."""
    return None if text in ("0", "none") else memory(text)


def image(text: str) -> str:
    """Reads the reference of a container image: registry/name:tag, or ...@sha256:digest."""
    if not re.fullmatch(_IMAGE, text):
        raise ArgumentTypeError(
            f"got {shown(text)}, allowed is REGISTRY/NAME:TAG, the name in lower case, without "
            "spaces. Write for example registry.example.com/team/train:1.0."
        )
    return text


def claim_mount(text: str) -> ClaimMount:
    """Reads a claim and its mount path: CLAIM:/FOLDER."""
    claim, _, path = text.partition(":")
    if not path.startswith("/") or re.search(r"[:\s]|/[.][.]?(/|$)", path) or path == "/":
        raise ArgumentTypeError(
            f"got {shown(text)}, allowed is the name of a PersistentVolumeClaim, a colon and an "
            "absolute folder. Write for example checkpoints:/mnt/checkpoints."
        )
    return ClaimMount(claim=object_name(claim), path=path.rstrip("/"))


def assignment(text: str) -> tuple[str, str]:
    """Reads an environment variable: NAME=VALUE."""
    name, equals, value = variable(text).partition("=")
    if not equals:
        raise ArgumentTypeError(
            f"got {shown(text)}, and a manifest holds values, not those that are here. "
            f"Write {name}=VALUE."
        )
    return name, value


def secret_variable(text: str) -> SecretVariable:
    """Reads an environment variable from a Secret: NAME=SECRET:KEY."""
    name, _, place = text.partition("=")
    secret, _, key = place.partition(":")
    if not re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key):
        raise ArgumentTypeError(
            f"got {shown(text)}, allowed is a variable, the name of a Secret and a key in it. "
            "Write for example API_TOKEN=my-secret:token."
        )
    return SecretVariable(name=variable(name), secret=object_name(secret), key=key)


def program(text: str) -> str:
    """Reads the name or the path of a program in the image."""
    if not text or re.search(r"\s", text):
        raise ArgumentTypeError(
            f"got {shown(text)}, allowed is a program's name or path without spaces. "
            "Write for example /usr/local/bin/mpirun."
        )
    return text


def _shown_label(text: str) -> str:
    near = re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")[:_LONGEST_EXAMPLE].rstrip("-")
    return near if re.fullmatch(_LABEL, near) else "train"


def _memory_example(text: str) -> str:
    match = re.match(r"\s*([0-9]+)\s*([kKmMgGtTpPeE]?)", text)
    if not match or not int(match[1]):
        return "16Gi"
    return f"{int(match[1])}{(match[2] or 'G').upper()}i"
