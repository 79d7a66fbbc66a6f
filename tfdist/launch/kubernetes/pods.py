"""The pods of a run: containers, resources, rights and environment variables.

In the value of a variable, Kubernetes replaces $(NAME) by the value of the variable NAME if NAME is
earlier in the list. In this way, all pods of a Job have the same TF_CONFIG. $$ stands for a
literal $.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kubeflow_trainer_api import models

from tfdist.cluster.environment import START_TIMEOUT
from tfdist.cluster.instance_variables import (
    DEVICES_PER_REPLICA,
    HAS_EVALUATOR,
    NUM_LOCAL_REPLICAS,
)
from tfdist.launch.errors import UsageError
from tfdist.launch.kubernetes.job_options import JobOptions
from tfdist.launch.kubernetes.patches import Patch, Role, patched

_GPU = "nvidia.com/gpu"
_SHARED_MEMORY = "shared-memory"

_INSTANCE = "app.kubernetes.io/instance"
_JOB_SET = "jobset.sigs.k8s.io/jobset-name"

GRPC_PORT = 2222
_INDEX = "JOB_COMPLETION_INDEX"
_NAMESPACE = "POD_NAMESPACE"


def metadata(options: JobOptions, name: str | None = None) -> dict[str, Any]:
    """Returns the metadata of one of the run's objects: its name, namespace and labels."""
    labels = run_labels(options)
    return {
        "name": name or options.name,
        **({"namespace": options.namespace} if options.namespace else {}),
        "labels": labels,
    }


def queued_metadata(options: JobOptions, name: str | None = None) -> dict[str, Any]:
    """Returns the metadata of an object that Kueue may hold back until there is capacity."""
    meta = metadata(options, name)
    if options.queue:
        meta["labels"]["kueue.x-k8s.io/queue-name"] = options.queue
    return meta


def run_labels(options: JobOptions) -> dict[str, str]:
    """Returns the labels that all objects and pods of the run have, and no other objects.

    The pods of a ClusterTrainingRuntime belong to many runs: their labels name none.
    """
    labels = {"app.kubernetes.io/name": "tfdist"}
    return labels | ({} if options.cluster_runtime else {_INSTANCE: options.name})


def pod_selector(options: JobOptions) -> dict[str, str]:
    """Returns labels that all pods of the run have, and no other pods."""
    # JobSet, which has the name of the TrainJob, adds this label to its pods.
    return {_JOB_SET: options.name} if options.runtime else run_labels(options)


def pod_container(
    options: JobOptions,
    role: Role,
    name: str,
    *,
    env: Sequence[dict[str, Any]] | None,
    command: Sequence[str] | None = None,
    port: str | None = None,
    capabilities: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the container of a pod.

    Args:
      options: The options of the run.
      role: The role of the pod. The launcher gets no rights, volumes and resources of the program.
      name: Name of the container.
      env: Environment variables of the container.
      command: Command of the container; None is the user's. Kubernetes replaces no variables in it.
      port: Name of the port for gRPC connections from other pods. None if there are none.
      capabilities: Capabilities in addition to those of the program.
    """
    command = [escaped(word) for word in options.command] if command is None else command
    ports = [{"name": port, "containerPort": GRPC_PORT, "protocol": "TCP"}] if port else []
    return {
        "name": name,
        "image": options.image,
        **_command(command),
        **({} if env is None else {"env": list(env)}),
        **({"ports": ports} if ports else {}),
        **resources(options, role),
        **_container_rights(options, role, capabilities),
        **({} if role == "launcher" else _mounts(options)),
    }


def pod_template(
    options: JobOptions,
    container: dict[str, Any],
    *,
    role: Role = "worker",
    restart: str | None = "Never",
) -> dict[str, Any]:
    """Returns the template of pods with the given container, with the user's patches.

    Args:
      options: The options of the run.
      container: The container, from `pod_container`.
      role: The role of the pods. The launcher does not get the rights of the program.
      restart: Restart policy of the pods. None if the operator sets one.

    Raises:
      UsageError: If a patch makes them what Kubernetes does not allow.
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
    template = {
        "metadata": {"labels": run_labels(options)},
        "spec": {
            **({"restartPolicy": restart} if restart else {}),
            "containers": [container],
            **({"volumes": volumes} if volumes else {}),
            "terminationGracePeriodSeconds": options.grace_s,
            **({"hostIPC": True} if options.host_ipc and role != "launcher" else {}),
            "securityContext": _pod_rights(options),
            **({"serviceAccountName": options.service_account} if options.service_account else {}),
            # Training does not call the API server and needs no addresses of other services.
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **({"imagePullSecrets": pull} if pull else {}),
        },
    }
    for patch in options.patches:
        if patch.fits_pods(role):
            template = checked_patch(
                "IoK8sApiCoreV1PodTemplateSpec", patched(template, patch), patch
            )
    return template


def resources(options: JobOptions, role: Role = "worker") -> dict[str, Any]:
    """Returns the container's field "resources", or an empty dict if none were requested."""
    amounts, gpus = {"cpu": options.cpu, "memory": options.memory}, options.gpus
    if role == "launcher":
        amounts, gpus = {"cpu": "500m", "memory": "512Mi"}, None
    elif role == "evaluator":
        own = {"cpu": options.evaluator_cpu, "memory": options.evaluator_memory}
        amounts = {name: own[name] or amount for name, amount in amounts.items()}
        gpus = options.evaluator_gpus
    limits = {name: amount for name, amount in amounts.items() if amount}
    if gpus:
        limits[_GPU] = str(gpus)
    # Limits and requests are equal: a pod that requests less than its limit is evicted first.
    return {"resources": {"limits": limits, "requests": dict(limits)}} if limits else {}


def _command(words: Sequence[str]) -> dict[str, Any]:
    # Both are lists, so that no shell interprets them.
    if not words:
        return {}  # A TrainJob brings the command.
    return {"command": [words[0]], **({"args": list(words[1:])} if words[1:] else {})}


def _container_rights(
    options: JobOptions, role: Role, capabilities: Sequence[str]
) -> dict[str, Any]:
    added = [*capabilities, *(["IPC_LOCK"] if options.ipc_lock and role != "launcher" else [])]
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
        # Makes claims writable for the user. "OnRootMismatch" avoids changing every file on each
        # start.
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


def deadline(options: JobOptions) -> dict[str, Any]:
    """Returns the field "activeDeadlineSeconds", or an empty dict without a deadline."""
    seconds = options.active_deadline_s
    return {"activeDeadlineSeconds": seconds} if seconds else {}


def run_policy(options: JobOptions) -> dict[str, Any]:
    """Returns the field "runPolicy" of Kubeflow's TFJob and MPIJob."""
    # "Running": pods that still run when the chief or the launcher has ended are stopped, and sshd
    # does not end by itself.
    policy = {"backoffLimit": options.max_restarts, "cleanPodPolicy": "Running"}
    return {"runPolicy": policy | deadline(options)}


def escaped(text: str) -> str:
    """Returns the text with escapes, so that Kubernetes replaces no variables in it."""
    return text.replace("$", "$$")


def addresses(options: JobOptions, hostnames: Sequence[str], service: str) -> list[str]:
    """Returns the addresses on which pods with these hostnames listen, as names of the service."""
    namespace = options.namespace or f"$({_NAMESPACE})"
    return [f"{hostname}.{service}.{namespace}.svc:{GRPC_PORT}" for hostname in hostnames]


def worker_variables(options: JobOptions, workers: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the variables of a training pod; its index in the Job is its worker index."""
    # The Job's controller also adds this variable, but at the end, so that TF_CONFIG cannot use it.
    annotation = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    index = _from_field(_INDEX, annotation)
    config = _tf_config(workers, "worker", f"$({_INDEX})")
    # The index must be a number, so there are no quotes around the text that Kubernetes replaces.
    config = config.replace(f'"$({_INDEX})"', f"$({_INDEX})")
    return [
        index,
        *_namespace_variables(options),
        {"name": "TF_CONFIG", "value": config},
        {"name": START_TIMEOUT, "value": str(options.start_timeout_s)},
        *replica_variables(options),
        *program_variables(options),
    ]


def evaluator_variables(options: JobOptions, workers: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the variables of the evaluator's pod."""
    return [
        *_namespace_variables(options),
        {"name": "TF_CONFIG", "value": _tf_config(workers, "evaluator", 0)},
        *program_variables(options),
    ]


def replica_variables(options: JobOptions) -> list[dict[str, Any]]:
    """Returns the variables of each training pod: its replicas, and whether others evaluate."""
    return [
        {"name": NUM_LOCAL_REPLICAS, "value": str(options.replicas_per_instance)},
        {"name": DEVICES_PER_REPLICA, "value": str(options.devices_per_replica)},
        *([{"name": HAS_EVALUATOR, "value": "1"}] if options.evaluator else []),
    ]


def program_variables(options: JobOptions) -> list[dict[str, Any]]:
    """Returns the variables that the user requested."""
    return [
        *({"name": name, "value": escaped(value)} for name, value in options.env),
        *(
            {
                "name": one.name,
                "valueFrom": {"secretKeyRef": {"name": one.secret, "key": one.key}},
            }
            for one in options.secret_env
        ),
    ]


def _namespace_variables(options: JobOptions) -> list[dict[str, Any]]:
    return [] if options.namespace else [_from_field(_NAMESPACE, "metadata.namespace")]


def _from_field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _tf_config(workers: Sequence[str], task_type: str, index: int | str) -> str:
    return json.dumps(
        {"cluster": {"worker": list(workers)}, "task": {"type": task_type, "index": index}}
    )


def checked(model: str, document: dict[str, Any]) -> dict[str, Any]:
    """Validates a document with the model of the given name, and returns the document.

    The models refuse a value of the wrong type, but ignore unknown fields. So the document is
    compared with the fields that the model has read.

    Args:
      model: The name of a class in `kubeflow_trainer_api.models`.
      document: A manifest, or the part of a manifest that the class describes.

    Raises:
      ValueError: If the model does not know a field, or a value is of another type.
    """
    unlike = _first_difference(document, getattr(models, model).from_dict(document).to_dict())
    if unlike is not None:
        raise ValueError(f"{model} has no such field or value: {unlike}")
    return document


def checked_patch(model: str, document: dict[str, Any], patch: Patch) -> dict[str, Any]:
    """Validates a document that a patch has changed, and returns it.

    Raises:
      UsageError: If the model does not know a field, or a value is of another type.
    """
    try:
        return checked(model, document)
    except (ValueError, TypeError, AttributeError, KeyError) as error:  # What the models raise.
        reason = " ".join(str(error).split())
        raise UsageError(f"{patch}: {reason[:300]}. Fix this field.") from None


def _first_difference(written: Any, read: Any, place: str = "") -> str | None:
    if isinstance(written, dict) and isinstance(read, dict):
        names = [*written, *(read.keys() - written.keys())]
        pairs = [(written.get(name), read.get(name), f"{place}.{name}") for name in names]
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        pairs = [(*pair, f"{place}[{i}]") for i, pair in enumerate(zip(written, read, strict=True))]
    else:
        return None if written == read else f"{place} = {written!r}"
    return next(filter(None, (_first_difference(*pair) for pair in pairs)), None)
