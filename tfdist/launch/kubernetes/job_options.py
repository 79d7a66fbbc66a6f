"""The options of `tfdist kubernetes`: their declarations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tfdist.launch.errors import UsageError
from tfdist.launch.kubernetes.values import (
    ASSIGNMENT,
    CLAIM_MOUNT,
    CPUS,
    IMAGE,
    LABEL,
    MEMORY,
    MEMORY_OR_NONE,
    OBJECT_NAME,
    PROGRAM,
    RUN_NAME,
    SECRET_VARIABLE,
    ClaimMount,
    SecretVariable,
)
from tfdist.launch.options.command_line import CommandLine
from tfdist.launch.options.declaration import BOOLEAN, Group, flag, option, options_of
from tfdist.launch.options.run_rules import total_replicas
from tfdist.launch.options.shared_options import START_TIMEOUT_HELP, SizeOptions, engine
from tfdist.launch.options.values import any_path, one_of, whole_number
from tfdist.process.text import listed, shown

# The engines that each kind can start, with its default first.
KINDS = {
    "job": ("grpc",),
    "tfjob": ("grpc",),
    "mpijob": ("horovod",),
    "trainjob": ("grpc", "horovod"),
}

_WRITTEN = Group("what is written")
_POD = Group("each pod")
_RIGHTS = Group("rights")
_COURSE = Group("the course of the run")


@dataclass(frozen=True, kw_only=True)
class ManifestOptions:
    """The kind, the name and the image of a run, and the destination of its manifests."""

    kind: str = option(
        one_of(*KINDS),
        "job (any cluster, gRPC), tfjob (Kubeflow Training Operator v1, gRPC), mpijob (Kubeflow "
        "MPI Operator v2beta1, Horovod) or trainjob (Kubeflow Trainer v2, either)",
        default="job",
        group=_WRITTEN,
    )
    name: str = option(RUN_NAME, "name of the run (needed)", example="train")
    namespace: str | None = option(
        LABEL, "namespace of its objects", shown_default="what kubectl chooses"
    )
    image: str = option(
        IMAGE, "container image (needed)", example="registry.example.com/team/train:1.0"
    )
    cluster_runtime: bool = flag(
        "with --kind trainjob: write only a ClusterTrainingRuntime, which TrainJobs of all "
        "namespaces use with --runtime; there is no COMMAND"
    )
    runtime: str | None = option(
        OBJECT_NAME,
        "with --kind trainjob: use this ClusterTrainingRuntime, which is on the cluster already",
        shown_default="a TrainingRuntime of this run",
    )
    output: Path | None = option(
        any_path("FILE"), "write the manifests here", shown_default="stdout"
    )
    write_dockerfile: Path | None = option(
        any_path("FILE"),
        "only write a Dockerfile for the image, with a target for each engine",
        bare=Path("Dockerfile"),
    )
    apply: bool = flag('submit with "kubectl apply"')
    create: bool = flag('submit with "kubectl create"')
    dry_run: str | None = option(
        one_of("client", "server"),
        "with --apply or --create: let kubectl (client) or the cluster (server) only check; "
        "without them nothing is submitted anyway",
        bare="client",
    )

    @property
    def verb(self) -> str | None:
        """The verb of kubectl. None submits nothing."""
        return "apply" if self.apply else "create" if self.create else None


@dataclass(frozen=True, kw_only=True)
class JobOptions(SizeOptions, ManifestOptions):
    """The options from which the manifests are made.

    An option that is None sets no value in them. Quantities are Kubernetes' own, such as 500m and
    16Gi. `command` is the program and its arguments, as the program must receive them.
    """

    engine: str = engine(shown_default="horovod for mpijob, else grpc")
    cpu: str | None = option(CPUS, "cores, as request and as limit", group=_POD)
    memory: str | None = option(MEMORY, "memory, as request and as limit, e.g. 64Gi")
    gpus: int | None = option(whole_number(0, 1000), "GPUs (nvidia.com/gpu)")
    evaluator_cpu: str | None = option(CPUS, "cores of the evaluator", shown_default="--cpu")
    evaluator_memory: str | None = option(
        MEMORY, "memory of the evaluator", shown_default="--memory"
    )
    evaluator_gpus: int = option(whole_number(0, 1000), "GPUs of the evaluator", default=0)
    shared_memory: str | None = option(
        MEMORY_OR_NONE,
        "size of /dev/shm, which counts as memory when used; none keeps the container's 64 MB",
        default="10Gi",
    )
    env: tuple[tuple[str, str], ...] = option(
        ASSIGNMENT, "a variable for the program", "-x", "--env", default=()
    )
    secret_env: tuple[SecretVariable, ...] = option(
        SECRET_VARIABLE, "a variable that takes its value from a key of a Secret", default=()
    )
    volumes: tuple[ClaimMount, ...] = option(
        CLAIM_MOUNT,
        "mount a PersistentVolumeClaim. A restart needs one that all pods share",
        "--volume",
        default=(),
    )
    mpirun: str = option(
        PROGRAM, "the image's mpirun; a path if it is not on sshd's PATH", default="mpirun"
    )
    user_id: int = option(
        whole_number(0, 2**31 - 1, "UID"),
        "the user id of all containers; 0 is root",
        "--run-as-user",
        default=1000,
        group=_RIGHTS,
    )
    host_ipc: bool = option(BOOLEAN, "share the node's IPC namespace", default=False)
    ipc_lock: bool = option(
        BOOLEAN, "let the program pin memory (IPC_LOCK; needs --run-as-user 0)", default=False
    )
    service_account: str | None = option(OBJECT_NAME, "the pods' service account")
    image_pull_secrets: tuple[str, ...] = option(
        OBJECT_NAME, "a Secret that opens the image's registry", "--image-pull-secret", default=()
    )
    has_network_policy: bool = option(
        BOOLEAN, "let only the run's own pods connect to its pods", "--network-policy", default=True
    )
    max_restarts: int = option(
        whole_number(0), "how often a worker that died is started again", default=0, group=_COURSE
    )
    active_deadline_s: int | None = option(
        whole_number(1, 10**9 - 1, "SECONDS"), "end everything after so long", shown_default="never"
    )
    grace_s: int = option(
        whole_number(0, metavar="SECONDS"),
        "how long a pod may save and leave after TERM, before KILL",
        default=30,
    )
    start_timeout_s: int = option(
        whole_number(1, metavar="SECONDS"),
        f"{START_TIMEOUT_HELP}: nodes may have to be added and the image pulled",
        default=1800,
    )
    queue: str | None = option(LABEL, "Kueue's LocalQueue")


def job_options(given: Mapping[str, Any]) -> JobOptions:
    """Returns the options; a UsageError if one is missing or cannot be used with --kind.

    `checks.check` then checks their combination.
    """
    for declared in options_of(JobOptions).values():
        if declared.example and declared.field not in given:
            name = declared.long_name
            raise UsageError(f"{name} is missing. Write for example {name} {declared.example}.")
    options = JobOptions(**{"command": (), **given})
    engine = options.engine or KINDS[options.kind][0]
    if engine not in KINDS[options.kind]:
        kinds = listed([kind for kind in KINDS if engine in KINDS[kind]], "or")
        raise UsageError(
            f"--kind {options.kind} cannot start --engine {engine}, only "
            f"{KINDS[options.kind][0]}. Use --kind {kinds}, or leave --engine out."
        )
    if options.apply and options.create:
        raise UsageError("--apply and --create are both given, and one is allowed. Keep one.")
    output = options.output
    if output is not None and not output.parent.is_dir():
        raise UsageError(
            f"--output is in {shown(str(output.parent))}, which is no folder. "
            "Make it, or name another."
        )
    replicas = total_replicas(options.num_instances, given.get("num_replicas"))
    return replace(options, engine=engine, num_replicas=replicas)


_DESCRIPTION = """\
Writes Kubernetes manifests for a training program that runs as several workers, a pod each.

COMMAND is what each container runs, without a shell; it arrives as it is written. The manifests go
to stdout, into a file, or to the cluster through kubectl."""

_EXAMPLES = """\
examples:
  two workers over gRPC on any cluster; look at it, then submit it:
    tfdist kubernetes --name train --image registry.example.com/train:1.0 --num-instances 2 \\
      --cpu 8 --memory 32Gi --volume checkpoints:/mnt/checkpoints -- python train.py
    tfdist kubernetes --apply ... (the same)
  the same over Horovod, for Kubeflow's MPI Operator:
    tfdist kubernetes --kind mpijob ... -- python train.py

A BOOL is yes, no, 1, 0, true or false. The exit code is 0, kubectl's, or 2 for a wrong option."""

KUBERNETES = CommandLine(
    prog="tfdist kubernetes",
    options=JobOptions,
    description=_DESCRIPTION,
    usage="--name NAME --image IMAGE [options] -- COMMAND [ARGUMENT...]",
    examples=_EXAMPLES,
)
