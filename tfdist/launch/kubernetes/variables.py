"""The environment variables of the containers.

Kubernetes replaces $(NAME) in a value by the variable NAME, if that stands before it in the list;
that is how one TF_CONFIG serves all pods of a Job. A doubled $ stands for one that is meant.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tfdist.cluster.instance_variables import DEVICES_PER_REPLICA, NUM_LOCAL_REPLICAS
from tfdist.launch.kubernetes.options import JobOptions

GRPC_PORT = 2222
_INDEX = "JOB_COMPLETION_INDEX"
_NAMESPACE = "POD_NAMESPACE"


def escaped(text: str) -> str:
    """Returns the text in which Kubernetes replaces nothing: it arrives as it is written here."""
    return text.replace("$", "$$")


def addresses(options: JobOptions, hostnames: Sequence[str], service: str) -> list[str]:
    """Returns where the pods of these hostnames listen, by the names the service gives them."""
    namespace = options.namespace or f"$({_NAMESPACE})"
    return [f"{hostname}.{service}.{namespace}.svc:{GRPC_PORT}" for hostname in hostnames]


def worker_variables(options: JobOptions, workers: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the variables of a training pod whose index in its Job is its index as a worker."""
    # The Job's controller would add this one itself, but last, when TF_CONFIG cannot use it.
    annotation = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    index = _from_field(_INDEX, annotation)
    config = _tf_config(workers, "worker", f"$({_INDEX})")
    # An index as a number: no quotes around what Kubernetes replaces.
    config = config.replace(f'"$({_INDEX})"', f"$({_INDEX})")
    return [
        index,
        *_namespace_variables(options),
        {"name": "TF_CONFIG", "value": config},
        {"name": "TFDIST_START_TIMEOUT_S", "value": str(options.start_timeout_s)},
        *replica_variables(options),
        *program_variables(options),
    ]


def evaluator_variables(options: JobOptions, workers: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the variables of the pod that evaluates."""
    return [
        *_namespace_variables(options),
        {"name": "TF_CONFIG", "value": _tf_config(workers, "evaluator", 0)},
        *program_variables(options),
    ]


def replica_variables(options: JobOptions) -> list[dict[str, Any]]:
    """Returns what each training pod is told about its replicas."""
    return [
        {"name": NUM_LOCAL_REPLICAS, "value": str(options.replicas_per_instance)},
        {"name": DEVICES_PER_REPLICA, "value": str(options.devices_per_replica)},
    ]


def program_variables(options: JobOptions) -> list[dict[str, Any]]:
    """Returns the variables that the user has asked for."""
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
