"""A run as a TrainJob of Kubeflow Trainer v2, and the TrainingRuntime that it refers to.

The runtime holds the settings for the administrators of a cluster: rights, volumes and the handling
of failures. The TrainJob holds the settings of the run: image, command, variables and size.
"""

from __future__ import annotations

from typing import Any

from tfdist.launch.kubernetes.indexed_job import failure_policy
from tfdist.launch.kubernetes.job_options import JobOptions
from tfdist.launch.kubernetes.mpi_job import key_folder, launcher_container, sshd_container
from tfdist.launch.kubernetes.pods import (
    Role,
    addresses,
    deadline,
    evaluator_container,
    manifest,
    pod_template,
    present,
    worker_container,
)

_GROUP = "trainer.kubeflow.org"
_VERSION = f"{_GROUP}/v1alpha1"
# Trainer copies the TrainJob's settings into the container "node" of the job with this label.
_TRAINER = {f"{_GROUP}/trainjob-ancestor-step": "trainer"}
_RUNTIME, _CLUSTER_RUNTIME = "TrainingRuntime", "ClusterTrainingRuntime"
_FROM_TRAIN_JOB = ("image", "command", "args", "env")


def train_job(options: JobOptions) -> list[dict[str, Any]]:
    """Returns the manifests: the runtime, which must exist first, and the TrainJob.

    With --cluster-runtime it is the runtime alone, and with --runtime the TrainJob alone.
    """
    # Hostnames of a JobSet: name of the set, name of the job, number of the job, index of the pod.
    workers = addresses(options, "-node-0-")
    if options.engine == "horovod":
        launcher = launcher_container(options, "node")
        jobs = [
            # Without the label, Trainer does not change the command of this job.
            _job(options, "node", sshd_container(options, "node")),
            _job(options, "launcher", launcher, _TRAINER, after="node", role="launcher"),
        ]
    else:
        jobs = [_job(options, "node", worker_container(options, "node", workers), _TRAINER)]
    trainer = _taken_from(jobs[-1], options)
    if options.evaluator:
        evaluator = evaluator_container(options, workers)
        jobs.append(_job(options, "evaluator", evaluator, role="evaluator"))
    if options.cluster_runtime:
        return [_runtime(options, jobs)]
    job = _train_job(options, trainer)
    return [job] if options.runtime else [_runtime(options, jobs), job]


def _taken_from(job: dict[str, Any], options: JobOptions) -> dict[str, Any]:
    """Takes the settings that belong to the TrainJob out of the runtime's job."""
    (container, *_) = job["template"]["spec"]["template"]["spec"]["containers"]
    taken = {name: container.pop(name) for name in _FROM_TRAIN_JOB if name in container}
    if options.cluster_runtime:
        container["image"] = taken["image"]  # A default: each TrainJob names its own.
    return taken


def _train_job(options: JobOptions, trainer: dict[str, Any]) -> dict[str, Any]:
    spec = {
        "runtimeRef": {
            "apiGroup": _GROUP,
            "kind": _CLUSTER_RUNTIME if options.runtime else _RUNTIME,
            "name": options.runtime or options.name,
        },
        "trainer": {"numNodes": options.num_instances, **trainer},
        **deadline(options),
    }
    return manifest(options, _VERSION, "TrainJob", spec, is_queued=True)


def _runtime(options: JobOptions, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    kind = _CLUSTER_RUNTIME if options.cluster_runtime else _RUNTIME
    policy: dict[str, Any] = {"numNodes": options.num_instances}
    success: dict[str, Any] = {}
    if options.engine == "horovod":
        mpi = {
            "mpiImplementation": "OpenMPI",
            "numProcPerNode": 1,
            "runLauncherAsNode": False,
            "sshAuthMountPath": key_folder(options),
        }
        # There is one launcher. The TrainJob sets the number of nodes.
        policy = {"numNodes": 1, "mpi": mpi}
        # sshd does not end by itself.
        ending = ["launcher", *(["evaluator"] if options.evaluator else [])]
        success = {"successPolicy": {"operator": "All", "targetReplicatedJobs": ending}}
    never_again = {
        "name": "badConfiguration",
        "action": "FailJobSet",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    job_set = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        **success,
        "failurePolicy": {"maxRestarts": options.max_restarts, "rules": [never_again]},
        "replicatedJobs": jobs,
    }
    spec = {"mlPolicy": policy, "template": {"spec": job_set}}
    labels = {f"{_GROUP}/framework": "tensorflow"}
    return manifest(options, _VERSION, kind, spec, labels=labels)


def _job(
    options: JobOptions,
    name: str,
    container: dict[str, Any],
    labels: dict[str, str] | None = None,
    *,
    after: str | None = None,
    role: Role = "worker",
) -> dict[str, Any]:
    """Returns one job of the JobSet.

    A failed pod fails the job, and the JobSet then starts all jobs again.
    """
    spec = {
        "backoffLimit": 0,
        **failure_policy(options),
        "template": pod_template(options, container, role=role),
    }
    return present(
        name=name,
        replicas=1,
        dependsOn=after and [{"name": after, "status": "Ready"}],
        template=present(metadata=present(labels=labels), spec=spec),
    )
