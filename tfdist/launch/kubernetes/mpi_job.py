"""A run as an MPIJob of Kubeflow's MPI Operator (v2beta1). Horovod."""

from __future__ import annotations

from typing import Any

from tfdist.launch.kubernetes.indexed_job import evaluator_job
from tfdist.launch.kubernetes.mpi_commands import (
    key_folder,
    launcher_variables,
    mpirun_command,
    sshd_capabilities,
    sshd_command,
    sshd_probe,
)
from tfdist.launch.kubernetes.options import JobOptions
from tfdist.launch.kubernetes.pods import pod_template, queued_metadata, tool_container
from tfdist.launch.kubernetes.typed import checked
from tfdist.launch.kubernetes.variables import addresses


def mpi_job(options: JobOptions) -> list[dict[str, Any]]:
    """Returns the manifests: the MPIJob, and the Job of the evaluator."""
    deadline = options.active_deadline_s
    job = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": queued_metadata(options),
        "spec": {
            "mpiImplementation": "OpenMPI",
            "slotsPerWorker": 1,
            "sshAuthMountPath": key_folder(options),
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": {
                "backoffLimit": options.max_restarts,
                # sshd does not end by itself.
                "cleanPodPolicy": "Running",
                **({"activeDeadlineSeconds": deadline} if deadline else {}),
            },
            "mpiReplicaSpecs": {"Launcher": _launcher(options), "Worker": _workers(options)},
        },
    }
    if not options.has_evaluator:
        return [job]
    hostnames = [f"{options.name}-worker-{index}" for index in range(options.num_instances)]
    return [job, evaluator_job(options, addresses(options, hostnames, options.name))]


def _launcher(options: JobOptions) -> dict[str, Any]:
    container = tool_container(
        options,
        name="launcher",
        command=mpirun_command(options),
        env=launcher_variables(options),
        is_worker=False,
    )
    template = _template(options, container, runs_program=False)
    return {"replicas": 1, "restartPolicy": "Never", "template": template}


def _workers(options: JobOptions) -> dict[str, Any]:
    container = tool_container(
        options,
        name="worker",
        command=sshd_command(options),
        env=(),
        is_worker=True,
        capabilities=sshd_capabilities(options),
    )
    return {
        "replicas": options.num_instances,
        # The operator replaces the launcher, but not a worker's pod: its container must come back.
        "restartPolicy": "OnFailure" if options.max_restarts else "Never",
        "template": _template(options, container | sshd_probe(), runs_program=True),
    }


def _template(
    options: JobOptions, container: dict[str, Any], *, runs_program: bool
) -> dict[str, Any]:
    template = pod_template(options, container, restart=None, runs_program=runs_program)
    return checked("IoK8sApiCoreV1PodTemplateSpec", template)
