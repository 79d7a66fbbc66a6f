"""A run as a TFJob of Kubeflow's Training Operator v1, which makes TF_CONFIG itself. gRPC."""

from __future__ import annotations

from typing import Any

from tfdist.launch.kubernetes.options import JobOptions
from tfdist.launch.kubernetes.pods import pod_template, program_container, queued_metadata
from tfdist.launch.kubernetes.typed import checked
from tfdist.launch.kubernetes.variables import program_variables, replica_variables


def tf_job(options: JobOptions) -> list[dict[str, Any]]:
    """Returns the manifest. Worker 0 is the chief, so that the operator knows when all is done."""
    counts = {"Chief": 1, "Worker": options.num_instances - 1, "Evaluator": options.has_evaluator}
    deadline = options.active_deadline_s
    return [
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "TFJob",
            "metadata": queued_metadata(options),
            "spec": {
                "runPolicy": {
                    "backoffLimit": options.max_restarts,
                    # Whoever still runs when the chief has ended or failed is stopped.
                    "cleanPodPolicy": "Running",
                    **({"activeDeadlineSeconds": deadline} if deadline else {}),
                },
                "tfReplicaSpecs": {
                    role: _replicas(options, role, int(count))
                    for role, count in counts.items()
                    if count
                },
            },
        }
    ]


def _replicas(options: JobOptions, role: str, count: int) -> dict[str, Any]:
    trains = role != "Evaluator"
    start = {"name": "TFDIST_START_TIMEOUT_S", "value": str(options.start_timeout_s)}
    env = [*([start, *replica_variables(options)] if trains else []), *program_variables(options)]
    # The operator finds container and port by their names.
    container = program_container(options, name="tensorflow", env=env, port="tfjob-port")
    template = checked(
        "IoK8sApiCoreV1PodTemplateSpec", pod_template(options, container, restart=None)
    )
    return {
        "replicas": count,
        # "ExitCode" starts a pod again if its exit code is 128 or more, as ours are meant.
        "restartPolicy": "ExitCode" if options.max_restarts else "Never",
        "template": template,
    }
