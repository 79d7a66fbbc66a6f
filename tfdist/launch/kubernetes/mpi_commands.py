"""What the pods of a Horovod run execute: sshd in each worker, mpirun in the launcher.

All settings of sshd and ssh are on their command lines, so that the image needs none. The operator
makes a key for the run and mounts it in all pods; it is what the launcher shows to the workers, and
by which the workers' sshd shows itself.
"""

from __future__ import annotations

from typing import Any

from tfdist.launch.kubernetes.options import JobOptions
from tfdist.launch.kubernetes.variables import escaped, program_variables, replica_variables
from tfdist.launch.mpi import mpirun_options

# Above 1024: sshd needs no right for it.
SSH_PORT = 2222
# What sshd needs to serve root: a child of its own without rights, in an empty folder.
_ROOT_SSHD_CAPABILITIES = ("SETGID", "SETUID", "SYS_CHROOT")


def key_folder(options: JobOptions) -> str:
    """Returns where the operator mounts the key: for root where it then protects it for root."""
    return "/etc/tfdist/ssh" if options.user_id else "/root/.ssh"


def sshd_command(options: JobOptions) -> list[str]:
    """Returns the command of a worker's pod: an SSH server that lets in whoever has the key."""
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
        # The key's folder belongs to root, whoever runs sshd.
        "StrictModes=no",
        "UsePAM=no",
        "X11Forwarding=no",
    )
    command = ["/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null", "-p", str(SSH_PORT)]
    return [*command, *(word for setting in settings for word in ("-o", setting))]


def sshd_capabilities(options: JobOptions) -> tuple[str, ...]:
    """Returns the capabilities that sshd needs: none, unless it is root's."""
    return () if options.user_id else _ROOT_SSHD_CAPABILITIES


def sshd_probe() -> dict[str, Any]:
    """Returns the container's readiness probe: mpirun waits until all workers answer."""
    probe = {"tcpSocket": {"port": SSH_PORT}, "initialDelaySeconds": 2, "periodSeconds": 10}
    return {"readinessProbe": probe}


def mpirun_command(options: JobOptions) -> list[str]:
    """Returns the launcher's command. The operator's variables name the hosts."""
    ssh = (
        f"-p {SSH_PORT} -i {key_folder(options)}/id_rsa -o BatchMode=yes -o ConnectTimeout=10 "
        "-o ConnectionAttempts=10 -o LogLevel=ERROR -o StrictHostKeyChecking=no "
        "-o UserKnownHostsFile=/dev/null"
    )
    # After TERM the ranks may save and leave before KILL, and all that before the pod gets KILL.
    kill_after_s = max(1, options.grace_s - 2)
    # sshd starts programs without the container's variables.
    names = [variable["name"] for variable in launcher_variables(options)]
    return [
        escaped(options.mpirun),
        *mpirun_options(options.mpirun, is_local=False, subnet=None, kill_after_s=kill_after_s),
        *("--mca", "plm_rsh_args", ssh),
        *([] if options.user_id else ["--allow-run-as-root"]),
        *("--tag-output", "-np", str(options.num_instances)),
        *(word for name in ["PATH", *names] for word in ("-x", name)),
        *(escaped(word) for word in options.command),
    ]


def launcher_variables(options: JobOptions) -> list[dict[str, Any]]:
    """Returns the launcher's variables, which mpirun hands on to all ranks."""
    return [*replica_variables(options), *program_variables(options)]
