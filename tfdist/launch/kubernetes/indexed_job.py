"""A run over gRPC as batch/v1 Jobs and a headless Service, which every cluster supports."""

from __future__ import annotations

from typing import Any

from tfdist.launch.kubernetes.job_options import JobOptions
from tfdist.launch.kubernetes.pods import (
    GRPC_PORT,
    addresses,
    deadline,
    evaluator_container,
    manifest,
    pod_template,
    run_labels,
    worker_container,
)
from tfdist.process.exit_codes import NEVER_AGAIN


def indexed_job(options: JobOptions) -> list[dict[str, Any]]:
    """Returns the manifests: the Service, the workers' Job and the evaluator's Job."""
    workers = addresses(options, "-")
    manifests = [_service(options), _workers(options, workers)]
    return manifests + ([evaluator_job(options, workers)] if options.evaluator else [])


def evaluator_job(options: JobOptions, workers: list[str]) -> dict[str, Any]:
    """Returns the Job of the pod that evaluates the workers' checkpoints."""
    spec = {
        "backoffLimit": options.max_restarts,
        **failure_policy(options),
        **deadline(options),
        "template": pod_template(options, evaluator_container(options, workers), role="evaluator"),
    }
    name = f"{options.name}-evaluator"
    return manifest(options, "batch/v1", "Job", spec, name=name, is_queued=True)


def failure_policy(options: JobOptions) -> dict[str, Any]:
    """Returns a Job's field "podFailurePolicy", with the pod failures that end the Job at once."""
    rules: list[dict[str, Any]] = [
        # If started again, the pod would end in the same way.
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [*NEVER_AGAIN]}}
    ]
    if options.max_restarts:
        # A pod that Kubernetes itself removed, for example from a drained node, has not failed.
        condition = {"type": "DisruptionTarget", "status": "True"}
        rules.append({"action": "Ignore", "onPodConditions": [condition]})
    return {"podFailurePolicy": {"rules": rules}}


def _workers(options: JobOptions, workers: list[str]) -> dict[str, Any]:
    template = pod_template(options, worker_container(options, "worker", workers))
    template["spec"]["subdomain"] = options.name
    spec = {
        "completionMode": "Indexed",
        "completions": options.num_instances,
        "parallelism": options.num_instances,
        # When one worker dies, the others lose it, end, and start again. So each restart of the
        # run counts as one restart of each worker.
        "backoffLimitPerIndex": options.max_restarts,
        # All workers are needed: the first one that is given up ends the Job.
        "maxFailedIndexes": 0,
        **failure_policy(options),
        **deadline(options),
        "template": template,
    }
    return manifest(options, "batch/v1", "Job", spec, is_queued=True)


def _service(options: JobOptions) -> dict[str, Any]:
    port = {"name": "grpc", "port": GRPC_PORT, "targetPort": GRPC_PORT, "protocol": "TCP"}
    spec = {
        "clusterIP": "None",
        # The workers resolve each other's addresses before any of them is ready.
        "publishNotReadyAddresses": True,
        "selector": run_labels(options),
        "ports": [port],
    }
    return manifest(options, "v1", "Service", spec)
