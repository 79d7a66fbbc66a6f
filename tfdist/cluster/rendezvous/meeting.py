"""`meet` and `wait_for_servers`: the start of all workers, before and after TensorFlow's servers.

`meet` connects all workers on the ports that TensorFlow will use; `wait_for_servers` checks
afterwards that TensorFlow's servers can be reached there. Both name the workers that they wait for.
The package's docstring draws the order of events.
"""

import contextlib
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

from tfdist.cluster.rendezvous.chief import Gathering
from tfdist.cluster.rendezvous.membership import Membership
from tfdist.cluster.rendezvous.protocol import (
    LINE_MAX_BYTES,
    AbsentWorkerError,
    Hello,
    Member,
    Reply,
    encode,
    ending_error,
    hello_of,
    members_of,
    missing_error,
    name_missing,
    parse_reply,
    unreachable_error,
    waiting_line,
)
from tfdist.cluster.rendezvous.sockets import (
    HELLO_LIMIT_S,
    POLL_S,
    Patience,
    connect,
    listening,
    why_not_connected,
)
from tfdist.cluster.tasks import Cluster, Task
from tfdist.process import endings
from tfdist.process.endings import print_to_stderr

# The chief knows more than the others, so its error should come before theirs.
_GRACE_S = 1.0
# Of so many workers each asks the server of each other one.
_MOST_ALL_TO_ALL = 8


def meet(
    cluster: Cluster,
    task: Task,
    *,
    timeout_s: float = 300.0,
    report_every_s: float = 5.0,
    say: Callable[[str], None] = print_to_stderr,
) -> None:
    """Waits until all workers of the cluster have started with the same cluster.

    Every worker must call it, before TensorFlow's server takes the port; ps and evaluator tasks
    must not. If one does not come, the others name it at intervals and raise after the limit.
    Afterwards all ports are free again. Ctrl-C works at every moment, except that the system's
    look-up of an unknown host name finishes first.

    Args:
      cluster: The cluster; it must be the same for all workers.
      task: This process's task, one of `cluster.workers`.
      timeout_s: The limit of the wait, in seconds from this process's call.
      report_every_s: Seconds between two lines that name the missing workers.
      say: Called with each line for the user.

    Raises:
      RendezvousError: If this worker's port is in use, a worker is missing after the limit, a
        worker was started with another cluster, or two processes were started as one task.
      ClusterError: If the task is not a worker of the cluster.
    """
    join(cluster, task, Patience(timeout_s, report_every_s, say)).close()


def join(cluster: Cluster, task: Task, patience: Patience) -> Membership:
    """Does the same as `meet`, and keeps the connections: returns this worker's membership."""
    endings.install()
    index = cluster.worker_index(task)
    members = members_of(cluster)
    # Only the chief accepts connections, but every worker must notice here if its port is in use.
    with listening(members[index]) as listeners:
        if index == 0:
            connections = Gathering(members, listeners, patience).run()
        else:
            connections = {0: _join(members, index, patience)}
    if patience.has_reported:
        patience.say(f"All {len(members)} workers are here.")
    return Membership(members, index, connections)


def check_port(cluster: Cluster, task: Task) -> None:
    """Refuses the port of this `task` of the `cluster` if it is in use; waits for no other worker.

    Raises:
      RendezvousError: If this worker's port is in use or may not be used.
      ClusterError: If the task is not a worker of the cluster.
    """
    with listening(members_of(cluster)[cluster.worker_index(task)]):
        pass


def wait_for_servers(
    cluster: Cluster,
    task: Task,
    *,
    timeout_s: float = 300.0,
    report_every_s: float = 5.0,
    say: Callable[[str], None] = print_to_stderr,
) -> None:
    """Waits until the TensorFlow servers that this worker will send to accept connections.

    Must be called after `meet` and after this worker's own server was started. Of up to 8 workers
    each asks all others. Of more each asks the chief and its neighbours in the ring of reductions,
    so that every server is asked, and the number of connections grows with the number of workers.

    Args:
      cluster: The workers.
      task: This process's task.
      timeout_s: The limit of the wait, in seconds from this process's call.
      report_every_s: Seconds between two lines that name the missing workers.
      say: Called with each line for the user.

    Raises:
      RendezvousError: If a server cannot be reached within the limit.
      ClusterError: If the task is not a worker of the cluster.
    """
    members = members_of(cluster)
    waiting = [
        members[receiver] for receiver in _receivers(cluster.worker_index(task), len(members))
    ]
    patience = Patience(timeout_s, report_every_s, say)
    while True:
        problem, unreachable = "", []
        for member in waiting:
            try:
                connect(member.address).close()
            except OSError as error:
                unreachable.append(member)
                problem = problem or why_not_connected(error)
        if not unreachable:
            return
        waiting = unreachable
        missing = name_missing(waiting)
        if patience.is_over():
            raise AbsentWorkerError(unreachable_error(missing, patience.limit_s, problem))
        patience.report(f"the TensorFlow server of {missing}", problem)
        patience.pause()


def _receivers(own: int, num_workers: int) -> list[int]:
    """Returns the workers with the servers that a worker asks; see `wait_for_servers`."""
    if num_workers <= _MOST_ALL_TO_ALL:
        return [index for index in range(num_workers) if index != own]
    return sorted({0, (own - 1) % num_workers, (own + 1) % num_workers} - {own})


def _join(members: Sequence[Member], index: int, patience: Patience) -> socket.socket:
    """Returns the connection after the chief's "go"; connects again as often as it fails."""
    chief = str(members[0])
    hello = hello_of(members, index, process=uuid.uuid4().hex)
    while True:
        try:
            connection = connect(members[0].address)
        except OSError as error:
            problem = why_not_connected(error)
        else:
            with contextlib.ExitStack() as closing:
                closing.enter_context(connection)
                try:
                    problem = _follow(connection, hello, patience)
                except OSError as error:
                    problem = why_not_connected(error)
                if not problem:
                    closing.pop_all()
                    return connection
        if patience.is_over():
            raise AbsentWorkerError(missing_error(chief, patience.limit_s, problem))
        patience.report(chief, problem)
        patience.pause()


def _follow(connection: socket.socket, hello: Hello, patience: Patience) -> str:
    """Sends the hello and follows the chief's replies; returns "" after "go", else a problem."""
    connection.sendall(encode(replace(hello, members=())))
    connection.settimeout(POLL_S)
    received, heard, heard_at = b"", None, 0.0
    while True:
        with contextlib.suppress(TimeoutError):
            data = connection.recv(1 << 16)
            if not data:
                return "it went away" if heard else "it closed the connection"
            received += data
        if len(received) > LINE_MAX_BYTES:
            return "another program answers there"
        *lines, received = received.split(b"\n")
        for line in lines:
            reply = parse_reply(line)
            if reply is None:
                return "another program answers there"
            if reply.event == "go":
                return ""
            if reply.event == "end":
                raise ending_error(reply)
            if reply.event == "list":
                _send_list(connection, hello)
            heard, heard_at = reply, time.monotonic()
        if heard is None and patience.is_over():
            return "it does not answer"
        if heard and patience.is_over(_GRACE_S):
            missing = heard.missing or str(hello.members[0])
            raise AbsentWorkerError(missing_error(missing, patience.limit_s))
        if patience.report_is_due():
            silent_s = time.monotonic() - heard_at
            patience.say(_line_while_connected(str(hello.members[0]), heard, silent_s, patience))


def _send_list(connection: socket.socket, hello: Hello) -> None:
    """Sends the hello with the list of the cluster, which may take longer than a short line."""
    connection.settimeout(HELLO_LIMIT_S)
    connection.sendall(encode(hello))
    connection.settimeout(POLL_S)


def _line_while_connected(
    chief: str, heard: Reply | None, silent_s: float, patience: Patience
) -> str:
    if heard is None or not heard.missing:
        return waiting_line(chief, patience.waited_s, patience.limit_s, "it does not answer")
    # Both this process and the chief have a limit; the line shows the one that ends first.
    chief_waited_s = heard.waited_s + silent_s
    if heard.limit_s - chief_waited_s < patience.limit_s - patience.waited_s:
        return waiting_line(heard.missing, chief_waited_s, heard.limit_s)
    return waiting_line(heard.missing, patience.waited_s, patience.limit_s)
