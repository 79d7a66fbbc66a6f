"""A run over Horovod as an MPIJob of Kubeflow's MPI Operator (v2beta1).

All settings of sshd and ssh are on their command lines, so that the image needs no configuration of
them. The operator makes a key for the run and mounts it in all pods. The launcher authenticates to
the workers with this key. It is also the host key of the workers' sshd.
"""

from __future__ import annotations

from typing import Any

from tfdist.launch.kubernetes.indexed_job import evaluator_job
from tfdist.launch.kubernetes.job_options import JobOptions
from tfdist.launch.kubernetes.pods import (
    addresses,
    escaped,
    manifest,
    pod_container,
    pod_template,
    program_variables,
    replica_variables,
    run_policy,
)
from tfdist.launch.machine.mpi import mpirun_options

# Above 1024, so that sshd needs no privilege to listen on it.
SSH_PORT = 2222
# Capabilities that sshd needs as root. It starts a child process without rights in an empty folder.
_ROOT_SSHD_CAPABILITIES = ("SETGID", "SETUID", "SYS_CHROOT")


def mpi_job(options: JobOptions) -> list[dict[str, Any]]:
    """Returns the manifests: the MPIJob and the evaluator's Job."""
    launcher, worker = launcher_container(options, "launcher"), sshd_container(options, "worker")
    replicas = {
        "Launcher": {
            "replicas": 1,
            "restartPolicy": "Never",
            "template": pod_template(options, launcher, restart=None, role="launcher"),
        },
        "Worker": {
            "replicas": options.num_instances,
            # The operator replaces the launcher's pod, but not a worker's pod. So the container of
            # a worker must be started again in its pod.
            "restartPolicy": "OnFailure" if options.max_restarts else "Never",
            "template": pod_template(options, worker, restart=None),
        },
    }
    spec = {
        "mpiImplementation": "OpenMPI",
        "slotsPerWorker": 1,
        "sshAuthMountPath": key_folder(options),
        "launcherCreationPolicy": "WaitForWorkersReady",
        **run_policy(options),
        "mpiReplicaSpecs": replicas,
    }
    job = manifest(options, "kubeflow.org/v2beta1", "MPIJob", spec, is_queued=True)
    if not options.evaluator:
        return [job]
    return [job, evaluator_job(options, addresses(options, "-worker-"))]


def key_folder(options: JobOptions) -> str:
    """Returns the folder in which the operator mounts the key.

    If the containers run as root, it is the folder for which the operator sets root's permissions.
    """
    return "/etc/tfdist/ssh" if options.user_id else "/root/.ssh"


def launcher_container(options: JobOptions, name: str) -> dict[str, Any]:
    """Returns the container that runs mpirun."""
    env = [*replica_variables(options), *program_variables(options)]
    command = _mpirun_command(options, [variable["name"] for variable in env])
    return pod_container(options, "launcher", name, command=command, env=env)


def sshd_container(options: JobOptions, name: str) -> dict[str, Any]:
    """Returns a worker's container: an SSH server that accepts the run's key."""
    container = pod_container(
        options,
        "worker",
        name,
        command=_sshd_command(options),
        capabilities=() if options.user_id else _ROOT_SSHD_CAPABILITIES,
    )
    # mpirun waits until all workers answer.
    probe = {"tcpSocket": {"port": SSH_PORT}, "initialDelaySeconds": 2, "periodSeconds": 10}
    return container | {"readinessProbe": probe}


def _sshd_command(options: JobOptions) -> list[str]:
    folder = key_folder(options)
    settings = (
        f"HostKey={folder}/id_rsa",
        f"AuthorizedKeysFile={folder}/authorized_keys",
        "AuthenticationMethods=publickey",
        "AllowAgentForwarding=no",
        "AllowTcpForwarding=no",
        "PermitRootLogin=prohibit-password",
        "PidFile=none",
        "PrintMotd=no",
        # The key's folder belongs to root, even if another user runs sshd.
        "StrictModes=no",
        "UsePAM=no",
        "X11Forwarding=no",
    )
    command = ["/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null", "-p", str(SSH_PORT)]
    return [*command, *(word for setting in settings for word in ("-o", setting))]


def _mpirun_command(options: JobOptions, variables: list[str]) -> list[str]:
    """Returns the launcher's command; the operator's variables name the hosts."""
    ssh = (
        f"-p {SSH_PORT} -i {key_folder(options)}/id_rsa -o BatchMode=yes -o ConnectTimeout=10 "
        "-o ConnectionAttempts=10 -o LogLevel=ERROR -o StrictHostKeyChecking=no "
        "-o UserKnownHostsFile=/dev/null"
    )
    # After SIGTERM the ranks have time to save and exit before mpirun sends SIGKILL. All of this
    # must end before Kubernetes sends SIGKILL to the pod.
    kill_after_s = max(1, options.grace_s - 2)
    return [
        escaped(options.mpirun),
        *mpirun_options(options.mpirun, is_local=False, subnet=None, kill_after_s=kill_after_s),
        *("--mca", "plm_rsh_args", ssh),
        *([] if options.user_id else ["--allow-run-as-root"]),
        *("--tag-output", "-np", str(options.num_instances)),
        # sshd starts programs without the container's variables, so mpirun passes them on.
        *(word for name in ["PATH", *variables] for word in ("-x", name)),
        *(escaped(word) for word in options.command),
    ]
