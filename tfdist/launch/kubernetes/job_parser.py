"""The command line of `tfdist kubernetes`."""

from __future__ import annotations

import argparse

from tfdist.launch.kubernetes.job_options import (
    KINDS,
    assignment,
    claim_mount,
    cpus,
    image,
    label,
    memory,
    memory_or_none,
    object_name,
    program,
    run_name,
    secret_variable,
)
from tfdist.launch.options.option_parser import OptionParser, boolean, one_of, whole_number
from tfdist.launch.options.shared_options import add_command_argument, add_size_arguments

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


def add_arguments(parser: OptionParser) -> None:
    """Adds the options of `tfdist kubernetes` to the parser."""
    parser.usage = "tfdist kubernetes --name NAME --image IMAGE [options] -- COMMAND [ARGUMENT...]"
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    add_command_argument(parser)
    group = parser.add_argument_group("what is written")
    group.add_argument(
        "--kind",
        type=one_of(*KINDS),
        default="job",
        metavar="KIND",
        help="job (any cluster, gRPC), tfjob (Kubeflow Training Operator v1, gRPC), mpijob "
        "(Kubeflow MPI Operator v2beta1, Horovod) or trainjob (Kubeflow Trainer v2, either) "
        "(default: %(default)s)",
    )
    group.add_argument("--name", type=run_name, metavar="NAME", help="name of the run (needed)")
    group.add_argument(
        "--namespace",
        type=label,
        metavar="NAME",
        help="namespace of its objects (default: what kubectl chooses)",
    )
    group.add_argument("--image", type=image, metavar="IMAGE", help="container image (needed)")
    group.add_argument(
        "--output", metavar="FILE", help="write the manifests here (default: stdout)"
    )
    group.add_argument("--apply", action="store_true", help='submit with "kubectl apply"')
    group.add_argument("--create", action="store_true", help='submit with "kubectl create"')
    group.add_argument(
        "--dry-run",
        nargs="?",
        const="client",
        type=one_of("client", "server"),
        metavar="=WHERE",
        help="with --apply or --create: let kubectl (client) or the cluster (server) only check; "
        "without them nothing is submitted anyway",
    )
    add_size_arguments(parser)
    parser.set_defaults(engine=None)
    parser.option("--engine").help = (
        "what connects the workers: grpc (TensorFlow's own, through TF_CONFIG) or horovod (over "
        "Open MPI) (default: horovod for mpijob, else grpc)"
    )
    _add_pod_arguments(parser)
    _add_right_arguments(parser)
    _add_course_arguments(parser)


def _add_pod_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("each pod")
    group.add_argument("--cpu", type=cpus, metavar="N", help="cores, as request and as limit")
    group.add_argument(
        "--memory", type=memory, metavar="SIZE", help="memory, as request and as limit, e.g. 64Gi"
    )
    group.add_argument(
        "--gpus", type=whole_number(0, 1000), metavar="N", help="GPUs (nvidia.com/gpu)"
    )
    group.add_argument(
        "--shared-memory",
        type=memory_or_none,
        default="10Gi",
        metavar="SIZE",
        help="size of /dev/shm, which counts as memory when used; none keeps the container's 64 MB "
        "(default: %(default)s)",
    )
    group.add_argument(
        "-x",
        "--env",
        action="append",
        type=assignment,
        metavar="NAME=VALUE",
        help="a variable for the program; repeatable",
    )
    group.add_argument(
        "--secret-env",
        action="append",
        type=secret_variable,
        metavar="NAME=SECRET:KEY",
        help="a variable whose value is a key of a Secret; repeatable",
    )
    group.add_argument(
        "--volume",
        action="append",
        type=claim_mount,
        metavar="CLAIM:/FOLDER",
        help="mount a PersistentVolumeClaim; repeatable. A restart needs one that all pods share",
    )
    group.add_argument(
        "--mpirun",
        type=program,
        default="mpirun",
        metavar="PROGRAM",
        help="the image's mpirun; a path if it is not on sshd's PATH (default: %(default)s)",
    )


def _add_right_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("rights")
    group.add_argument(
        "--run-as-user",
        type=whole_number(0, 2**31 - 1),
        default=1000,
        metavar="UID",
        help="the user id of all containers; 0 is root (default: %(default)s)",
    )
    group.add_argument(
        "--host-ipc",
        type=boolean,
        default=False,
        metavar="BOOL",
        help="share the node's IPC namespace (default: no)",
    )
    group.add_argument(
        "--ipc-lock",
        type=boolean,
        default=False,
        metavar="BOOL",
        help="let the program pin memory (IPC_LOCK; needs --run-as-user 0) (default: no)",
    )
    group.add_argument(
        "--service-account", type=object_name, metavar="NAME", help="the pods' service account"
    )
    group.add_argument(
        "--image-pull-secret",
        action="append",
        type=object_name,
        metavar="NAME",
        help="a Secret that opens the image's registry; repeatable",
    )
    group.add_argument(
        "--network-policy",
        type=boolean,
        default=True,
        metavar="BOOL",
        help="let only the run's own pods connect to its pods (default: yes)",
    )


def _add_course_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the course of the run")
    group.add_argument(
        "--max-restarts",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="how often a worker that died is started again (default: %(default)s)",
    )
    group.add_argument(
        "--active-deadline",
        type=whole_number(1, 10**9 - 1),
        metavar="SECONDS",
        help="end everything after so long (default: never)",
    )
    group.add_argument(
        "--grace",
        type=whole_number(0),
        default=30,
        metavar="SECONDS",
        help="how long a pod may save and leave after TERM, before KILL (default: %(default)s)",
    )
    group.add_argument(
        "--start-timeout",
        type=whole_number(1),
        default=1800,
        metavar="SECONDS",
        help="how long the workers wait for each other at the start: nodes may have to be added "
        "and the image pulled (default: %(default)s)",
    )
    group.add_argument("--queue", type=label, metavar="NAME", help="Kueue's LocalQueue")
