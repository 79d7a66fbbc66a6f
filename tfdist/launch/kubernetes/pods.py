"""The pods of a run: containers, resources, rights and environment variables.

In the value of a variable, Kubernetes replaces $(NAME) by the value of the variable NAME if NAME is
earlier in the list. In this way, all pods of a Job have the same TF_CONFIG. $$ stands for a
literal $.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from kubeflow_trainer_api import models

from tfdist.cluster.environment import GRACE, START_TIMEOUT
from tfdist.cluster.instance_variables import (
    DEVICES_PER_REPLICA,
    HAS_EVALUATOR,
    NUM_LOCAL_REPLICAS,
)
from tfdist.launch.kubernetes.job_options import JobOptions

Role = Literal["worker", "evaluator", "launcher"]

_GPU = "nvidia.com/gpu"
_SHARED_MEMORY = "shared-memory"

_INSTANCE = "app.kubernetes.io/instance"
_JOB_SET = "jobset.sigs.k8s.io/jobset-name"

GRPC_PORT = 2222
_INDEX = "JOB_COMPLETION_INDEX"
_NAMESPACE = "POD_NAMESPACE"

# The models of the kinds that have one, and of pods.
_MODELS = {
    "ClusterTrainingRuntime": "TrainerV1alpha1ClusterTrainingRuntime",
    "Job": "IoK8sApiBatchV1Job",
    "Service": "IoK8sApiCoreV1Service",
    "TrainJob": "TrainerV1alpha1TrainJob",
    "TrainingRuntime": "TrainerV1alpha1TrainingRuntime",
}
_POD_MODEL = "IoK8sApiCoreV1PodTemplateSpec"


def present(**fields: Any) -> dict[str, Any]:
    """Returns an object of those fields that are something: not None, "", 0, False or empty."""
    return {name: value for name, value in fields.items() if value}


def manifest(
    options: JobOptions,
    version: str,
    kind: str,
    spec: dict[str, Any],
    *,
    name: str | None = None,
    is_queued: bool = False,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Returns one of the run's objects, checked by the model of its kind if there is one.

    Kueue may hold it back until there is capacity, if it `is_queued`. Its name is the run's unless
    there is a `name`.
    """
    labels = {**run_labels(options), **(labels or {})}
    if is_queued and options.queue:
        labels["kueue.x-k8s.io/queue-name"] = options.queue
    metadata = present(name=name or options.name, namespace=options.namespace, labels=labels)
    document = {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}
    return checked(_MODELS[kind], document) if kind in _MODELS else document


def run_labels(options: JobOptions) -> dict[str, str]:
    """Returns the labels that all objects and pods of the run have, and no other objects.

    The pods of a ClusterTrainingRuntime belong to many runs: their labels name none.
    """
    labels = {"app.kubernetes.io/name": "tfdist"}
    return labels if options.cluster_runtime else {**labels, _INSTANCE: options.name}


def pod_selector(options: JobOptions) -> dict[str, str]:
    """Returns labels that all pods of the run have, and no other pods."""
    # JobSet, which has the name of the TrainJob, adds this label to its pods.
    return {_JOB_SET: options.name} if options.runtime else run_labels(options)


def pod_container(
    options: JobOptions,
    role: Role,
    name: str,
    *,
    env: Sequence[dict[str, Any]] = (),
    command: Sequence[str] | None = None,
    port: str | None = None,
    capabilities: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the container of a pod.

    A launcher gets no rights, volumes and resources of the program. Without a command it is the
    user's; Kubernetes replaces no variables in one that is given. `port` names the port for gRPC.
    """
    words = [escaped(word) for word in options.command] if command is None else [*command]
    pins_memory = options.ipc_lock and role != "launcher"
    added = [*capabilities, *(["IPC_LOCK"] if pins_memory else [])]
    return present(
        name=name,
        image=options.image,
        # Both are lists, so that no shell interprets them. A TrainJob may bring them.
        command=words[:1],
        args=words[1:],
        env=[*env],
        ports=port and [{"name": port, "containerPort": GRPC_PORT, "protocol": "TCP"}],
        resources=_resources(options, role),
        securityContext={
            "allowPrivilegeEscalation": False,
            "capabilities": present(drop=["ALL"], add=added),
        },
        volumeMounts=None if role == "launcher" else _mounts(options),
    )


def pod_template(
    options: JobOptions,
    container: dict[str, Any],
    *,
    role: Role = "worker",
    restart: str | None = "Never",
) -> dict[str, Any]:
    """Returns the template of pods with the given container.

    `restart` is None if an operator sets it.
    """
    spec = present(
        restartPolicy=restart,
        containers=[container],
        volumes=_volumes(options, container),
        hostIPC=options.host_ipc and role != "launcher",
        securityContext=_pod_rights(options),
        serviceAccountName=options.service_account,
        imagePullSecrets=[{"name": name} for name in options.image_pull_secrets],
    )
    # 0 and False mean something else than nothing here. Training does not call the API server and
    # needs no addresses of other services.
    spec["terminationGracePeriodSeconds"] = options.grace_s
    spec |= {"automountServiceAccountToken": False, "enableServiceLinks": False}
    return checked(_POD_MODEL, {"metadata": {"labels": run_labels(options)}, "spec": spec})


def _volumes(options: JobOptions, container: dict[str, Any]) -> list[dict[str, Any]]:
    memory = {"medium": "Memory", "sizeLimit": options.shared_memory}
    volumes: dict[str, dict[str, Any]] = {_SHARED_MEMORY: {"emptyDir": memory}}
    for i, volume in enumerate(options.volumes):
        volumes[f"claim-{i}"] = {"persistentVolumeClaim": {"claimName": volume.claim}}
    mounted = [mount["name"] for mount in container.get("volumeMounts", ())]
    return [{"name": name, **volumes[name]} for name in mounted]


def _resources(options: JobOptions, role: Role) -> dict[str, Any]:
    """Returns the container's limits and requests, or an empty dict if none were requested."""
    amounts, gpus = {"cpu": options.cpu, "memory": options.memory}, options.gpus
    if role == "launcher":
        amounts, gpus = {"cpu": "500m", "memory": "512Mi"}, None
    elif role == "evaluator":
        own = {"cpu": options.evaluator_cpu, "memory": options.evaluator_memory}
        amounts = {name: own[name] or amount for name, amount in amounts.items()}
        gpus = options.evaluator_gpus
    limits = present(**amounts, **{_GPU: str(gpus) if gpus else None})
    # Limits and requests are equal: a pod that requests less than its limit is evicted first.
    return present(limits=limits, requests=dict(limits))


def _pod_rights(options: JobOptions) -> dict[str, Any]:
    user = options.user_id
    rights = {
        "runAsNonRoot": user != 0,
        "runAsUser": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if user:
        rights["runAsGroup"] = user
        # Makes claims writable for the user. "OnRootMismatch" avoids changing every file on each
        # start.
        rights |= {"fsGroup": user, "fsGroupChangePolicy": "OnRootMismatch"}
    return rights


def _mounts(options: JobOptions) -> list[dict[str, Any]]:
    claims = [
        {"name": f"claim-{i}", "mountPath": volume.path} for i, volume in enumerate(options.volumes)
    ]
    if not options.shared_memory:
        return claims
    return [{"name": _SHARED_MEMORY, "mountPath": "/dev/shm"}, *claims]


def deadline(options: JobOptions) -> dict[str, Any]:
    """Returns the field "activeDeadlineSeconds", or an empty dict without a deadline."""
    return present(activeDeadlineSeconds=options.active_deadline_s)


def run_policy(options: JobOptions) -> dict[str, Any]:
    """Returns the field "runPolicy" of Kubeflow's TFJob and MPIJob."""
    # "Running": pods that still run when the chief or the launcher has ended are stopped, and sshd
    # does not end by itself.
    policy = {"backoffLimit": options.max_restarts, "cleanPodPolicy": "Running"}
    return {"runPolicy": policy | deadline(options)}


def escaped(text: str) -> str:
    """Returns the text with escapes, so that Kubernetes replaces no variables in it."""
    return text.replace("$", "$$")


def addresses(options: JobOptions, infix: str) -> list[str]:
    """Returns the workers' addresses; a hostname is the run's name, the infix and the index."""
    home = f"{options.name}.{options.namespace or f'$({_NAMESPACE})'}.svc:{GRPC_PORT}"
    return [f"{options.name}{infix}{index}.{home}" for index in range(options.num_instances)]


def worker_container(options: JobOptions, name: str, workers: Sequence[str]) -> dict[str, Any]:
    """Returns the container of a training pod over gRPC; its index in the Job is its worker's."""
    # The Job's controller also adds this variable, but at the end, so that TF_CONFIG cannot use it.
    annotation = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    index = _from_field(_INDEX, annotation)
    config = _tf_config(workers, "worker", f"$({_INDEX})")
    # The index must be a number, so there are no quotes around the text that Kubernetes replaces.
    config = config.replace(f'"$({_INDEX})"', f"$({_INDEX})")
    env = [
        index,
        *_namespace_variables(options),
        {"name": "TF_CONFIG", "value": config},
        {"name": START_TIMEOUT, "value": str(options.start_timeout_s)},
        *replica_variables(options),
        *program_variables(options),
    ]
    return pod_container(options, "worker", name, env=env, port="grpc")


def evaluator_container(options: JobOptions, workers: Sequence[str]) -> dict[str, Any]:
    """Returns the container that evaluates the workers' checkpoints."""
    env = [
        *_namespace_variables(options),
        {"name": "TF_CONFIG", "value": _tf_config(workers, "evaluator", 0)},
        *program_variables(options),
    ]
    return pod_container(options, "evaluator", "evaluator", env=env)


def replica_variables(options: JobOptions) -> list[dict[str, Any]]:
    """Returns the variables of each training pod: replicas, grace period, a launched evaluator."""
    values = {
        NUM_LOCAL_REPLICAS: options.replicas_per_instance,
        DEVICES_PER_REPLICA: options.devices_per_replica,
        GRACE: options.grace_s,
    }
    if options.evaluator:
        values[HAS_EVALUATOR] = 1
    return [{"name": name, "value": str(value)} for name, value in values.items()]


def program_variables(options: JobOptions) -> list[dict[str, Any]]:
    """Returns the variables that the user requested."""
    return [
        *({"name": name, "value": escaped(value)} for name, value in options.env),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
            for name, secret, key in options.secret_env
        ),
    ]


def _namespace_variables(options: JobOptions) -> list[dict[str, Any]]:
    return [] if options.namespace else [_from_field(_NAMESPACE, "metadata.namespace")]


def _from_field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _tf_config(workers: Sequence[str], task_type: str, index: int | str) -> str:
    task = {"type": task_type, "index": index}
    return json.dumps({"cluster": {"worker": list(workers)}, "task": task})


def checked(model: str, document: dict[str, Any]) -> dict[str, Any]:
    """Validates a document with the model of the given name, and returns the document.

    The models refuse a value of the wrong type, but ignore unknown fields. So the document is
    compared with the fields that the model has read; a ValueError names the first difference.
    """
    unlike = _first_difference(document, getattr(models, model).from_dict(document).to_dict())
    if unlike is not None:
        raise ValueError(f"{model} has no such field or value: {unlike}")
    return document


def _first_difference(written: Any, read: Any, place: str = "") -> str | None:
    if isinstance(written, dict) and isinstance(read, dict):
        names = [*written, *(read.keys() - written.keys())]
        pairs = [(written.get(name), read.get(name), f"{place}.{name}") for name in names]
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        pairs = [(*pair, f"{place}[{i}]") for i, pair in enumerate(zip(written, read, strict=True))]
    else:
        return None if written == read else f"{place} = {written!r}"
    return next(filter(None, (_first_difference(*pair) for pair in pairs)), None)
