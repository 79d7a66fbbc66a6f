"""The server of this worker, which is started once the workers have met.

A process has one server at its address, for sessions or for TensorFlow 2, until it ends.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster import Cluster, Task, wait_for_servers
from tfdist.cluster.rendezvous.meeting import join
from tfdist.cluster.rendezvous.membership import Membership
from tfdist.cluster.rendezvous.protocol import members_of
from tfdist.cluster.rendezvous.sockets import Patience, port_taken_error
from tfdist.process.endings import print_to_stderr
from tfdist.process.progress_file import in_phase
from tfdist.strategies.grpc.containers import ServerContainers
from tfdist.strategies.grpc.step_ids import make_step_ids_first
from tfdist.strategies.private_runtime import start_eager_server


@dataclass(frozen=True, kw_only=True)
class RunningServer:
    """A server of this process, which cannot be stopped: later strategies use it as well.

    Attributes:
      target: The target for a session.
      num_cpus: The number of logical CPUs that it was started with: it cannot get more.
      server: TensorFlow's object; None if TensorFlow's own strategy has started it, in eager
        execution.
      membership: The connections to the other workers; None in that case.
    """

    target: str
    num_cpus: int
    server: tf.distribute.Server | None = None
    membership: Membership | None = None


# The server of each address.
SERVERS: dict[str, RunningServer] = {}


def start_server(
    cluster: Cluster,
    task: Task,
    config: v1.ConfigProto,
    num_cpus: int | None,
    *,
    start_timeout_s: float,
    stall_timeout_s: float | None,
) -> RunningServer:
    """Meets the other workers and starts this one's server, with a config.

    Args:
      cluster: The cluster.
      task: This worker's task.
      config: The config of the server.
      num_cpus: Logical CPUs of a server for sessions; None makes one for TensorFlow 2.
      start_timeout_s: How long to wait for the others, in seconds.
      stall_timeout_s: The limit of a wait in training, in seconds; None is no limit.

    Raises:
      RendezvousError: If a worker does not join in time, or has another cluster, or the port was
        taken.
    """
    with in_phase("waiting"):
        membership = join(cluster, task, Patience(start_timeout_s))
    membership.on_line = print_to_stderr
    membership.stall_timeout_s = stall_timeout_s
    # gRPC reads the name in small letters only.
    os.environ["no_grpc_proxy"] = _without_proxy(cluster, os.environ)  # noqa: SIM112
    # A call to a lost worker fails at once. Otherwise closing a session that has ops on that
    # worker would wait without limit.
    os.environ.setdefault("GRPC_FAIL_FAST", "true")
    jobs = {job: list(a) for job, a in cluster.jobs.items() if job != "evaluator"}
    server = None
    try:
        if num_cpus is None:
            start_eager_server(_server_def(jobs, task, config))
        else:
            server = tf.distribute.Server(
                jobs, job_name=task.type, task_index=task.index, config=config
            )
    except tf.errors.UnknownError as error:
        if "Could not start gRPC server" not in error.message:
            raise
        # Another process has taken the port since the workers met there.
        raise port_taken_error(members_of(cluster)[cluster.worker_index(task)]) from error
    with in_phase("waiting"):
        wait_for_servers(cluster, task, timeout_s=start_timeout_s)
    running = RunningServer(
        target=f"grpc://{cluster.address(task)}" if server is None else str(server.target),
        num_cpus=num_cpus or 1,
        server=server,
        membership=membership,
    )
    add_server(cluster.address(task), running)
    if cluster.worker_index(task) == 0:
        make_step_ids_first(running.target)
    return running


def add_server(address: str, running: RunningServer) -> None:
    """Adds a server that has just been started; from now on its graphs have containers."""
    SERVERS[address] = running
    ServerContainers(running.target).watch_sessions()


def find_membership(cluster: Cluster, task: Task) -> Membership | None:
    """Returns the connections of this worker, once TensorFlow's server has been started."""
    running = SERVERS.get(cluster.address(task))
    return None if running is None else running.membership


def _server_def(
    jobs: Mapping[str, Sequence[str]], task: Task, config: v1.ConfigProto
) -> tf.train.ServerDef:
    config.device_count.clear()
    return tf.train.ServerDef(
        cluster=tf.train.ClusterSpec({job: [*a] for job, a in jobs.items()}).as_cluster_def(),
        job_name=task.type,
        task_index=task.index,
        default_session_config=config,
        protocol="grpc",
    )


def device_filter(task: Task) -> str:
    """Returns the name by which a session is limited to a task's devices."""
    return f"/job:{task.type}/task:{task.index}"


def full_name(task: Task) -> str:
    """Returns the first part of the full names of a task's devices."""
    return f"/job:{task.type}/replica:0/task:{task.index}"


def _without_proxy(cluster: Cluster, environ: Mapping[str, str]) -> str:
    """Returns a value for `no_grpc_proxy` with which gRPC reaches the workers directly.

    gRPC would send the workers' messages to a proxy that is set for downloads (`http_proxy`), which
    does not know the workers, and wait without limit.
    """
    # gRPC reads the second variable only if the first is not set.
    named = environ.get("no_grpc_proxy") or environ.get("no_proxy", "")
    hosts = [address.rsplit(":", 1)[0].strip("[]") for a in cluster.jobs.values() for address in a]
    return ",".join(dict.fromkeys([*filter(None, named.split(",")), *hosts]))
