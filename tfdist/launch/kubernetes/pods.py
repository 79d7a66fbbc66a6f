"""Pods: their container, its resources, and the rights that they have and have not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfdist.launch.kubernetes.options import JobOptions
from tfdist.launch.kubernetes.variables import GRPC_PORT, escaped

_GPU = "nvidia.com/gpu"
_SHARED_MEMORY = "shared-memory"


def metadata(options: JobOptions, name: str | None = None) -> dict[str, Any]:
    """Returns the name, namespace and labels of one of the run's objects."""
    labels = run_labels(options)
    return {
        "name": name or options.name,
        **({"namespace": options.namespace} if options.namespace else {}),
        "labels": labels,
    }


def queued_metadata(options: JobOptions, name: str | None = None) -> dict[str, Any]:
    """Returns the metadata of an object that Kueue may hold back until there is room."""
    meta = metadata(options, name)
    if options.queue:
        meta["labels"]["kueue.x-k8s.io/queue-name"] = options.queue
    return meta


def run_labels(options: JobOptions) -> dict[str, str]:
    """Returns the labels that all objects and pods of the run have, and nobody else."""
    return {"app.kubernetes.io/name": "tfdist", "app.kubernetes.io/instance": options.name}


def program_container(
    options: JobOptions, *, name: str, env: Sequence[dict[str, Any]], port: str | None = None
) -> dict[str, Any]:
    """Returns the container of a worker or an evaluator, which runs the user's command.

    Args:
      options: What was asked for.
      name: Of the container.
      env: Its variables.
      port: The name of the port on which others connect to it over gRPC; None if nobody does.
    """
    ports = [{"name": port, "containerPort": GRPC_PORT, "protocol": "TCP"}] if port else []
    return {
        "name": name,
        "image": options.image,
        **_command([escaped(word) for word in options.command]),
        "env": list(env),
        **({"ports": ports} if ports else {}),
        **resources(options),
        **_container_rights(options, runs_program=True),
        **_mounts(options),
    }


def tool_container(
    options: JobOptions,
    *,
    name: str,
    command: Sequence[str],
    env: Sequence[dict[str, Any]],
    is_worker: bool,
    capabilities: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the container in which sshd or mpirun runs, and not the user's command itself.

    Args:
      options: What was asked for.
      name: Of the container.
      command: What it runs, in which Kubernetes replaces nothing more.
      env: Its variables.
      is_worker: Whether a worker will run in it, and needs what workers need.
      capabilities: What it needs beside what the program needs.
    """
    small = {"cpu": "500m", "memory": "512Mi"}
    return {
        "name": name,
        "image": options.image,
        **_command(command),
        **({"env": list(env)} if env else {}),
        **(
            resources(options) if is_worker else {"resources": {"limits": small, "requests": small}}
        ),
        **_container_rights(options, capabilities, runs_program=is_worker),
        **(_mounts(options) if is_worker else {}),
    }


def pod_template(
    options: JobOptions,
    container: dict[str, Any],
    *,
    restart: str | None = "Never",
    runs_program: bool = True,
) -> dict[str, Any]:
    """Returns the template of pods with this container.

    Args:
      options: What was asked for.
      container: From one of the functions above.
      restart: The pods' restart policy; None where the operator has one of its own.
      runs_program: Whether the user's program runs in them, and needs the rights asked for it.
    """
    claims = [
        {"name": f"claim-{i}", "persistentVolumeClaim": {"claimName": volume.claim}}
        for i, volume in enumerate(options.volumes)
    ]
    memory = {"medium": "Memory", "sizeLimit": options.shared_memory}
    shared = [{"name": _SHARED_MEMORY, "emptyDir": memory}] if options.shared_memory else []
    mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
    volumes = [volume for volume in [*shared, *claims] if volume["name"] in mounted]
    pull = [{"name": name} for name in options.image_pull_secrets]
    return {
        "metadata": {"labels": run_labels(options)},
        "spec": {
            **({"restartPolicy": restart} if restart else {}),
            "containers": [container],
            **({"volumes": volumes} if volumes else {}),
            "terminationGracePeriodSeconds": options.grace_s,
            **({"hostIPC": True} if options.host_ipc and runs_program else {}),
            "securityContext": _pod_rights(options),
            **({"serviceAccountName": options.service_account} if options.service_account else {}),
            # Training asks nothing of the API server, and needs no addresses of other services.
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **({"imagePullSecrets": pull} if pull else {}),
        },
    }


def resources(options: JobOptions) -> dict[str, Any]:
    """Returns the container's field "resources", or nothing if none were asked for."""
    amounts = {"cpu": options.cpu, "memory": options.memory}
    limits = {name: amount for name, amount in amounts.items() if amount}
    if options.gpus:
        limits[_GPU] = str(options.gpus)
    # Equal: a pod that gets less than it may use is the first to be evicted.
    return {"resources": {"limits": limits, "requests": dict(limits)}} if limits else {}


def _command(words: Sequence[str]) -> dict[str, Any]:
    # Both as lists: no shell reads them.
    return {"command": [words[0]], **({"args": list(words[1:])} if words[1:] else {})}


def _container_rights(
    options: JobOptions, capabilities: Sequence[str] = (), *, runs_program: bool
) -> dict[str, Any]:
    added = [*capabilities, *(["IPC_LOCK"] if options.ipc_lock and runs_program else [])]
    return {
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], **({"add": added} if added else {})},
        }
    }


def _pod_rights(options: JobOptions) -> dict[str, Any]:
    user = options.user_id
    groups = {
        "runAsGroup": user,
        # Claims become writable for the user; not by changing each of their files every time.
        "fsGroup": user,
        "fsGroupChangePolicy": "OnRootMismatch",
    }
    return {
        "runAsNonRoot": user != 0,
        "runAsUser": user,
        **(groups if user else {}),
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _mounts(options: JobOptions) -> dict[str, Any]:
    mounts = [
        *([{"name": _SHARED_MEMORY, "mountPath": "/dev/shm"}] if options.shared_memory else []),
        *(
            {"name": f"claim-{i}", "mountPath": volume.path}
            for i, volume in enumerate(options.volumes)
        ),
    ]
    return {"volumeMounts": mounts} if mounts else {}
