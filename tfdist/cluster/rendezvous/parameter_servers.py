"""The wait of a task of type ps that holds no variables: it ends when the chief has ended.

The workers hold the variables, so such a task has nothing to do. A job that was written for
parameter servers starts it all the same, and expects it to run as long as the chief:

    ps 0                                  the chief
    listens on its address
      <--------------------- Hello ------ trains: connects, again as often as it fails
    waits                                 (trains, evaluates, exports)
      <--------------------- "done" ----- its program ends without an error
    ends with exit code 0

A connection that ends without "done" is a chief that was lost. It may be started again, so the task
waits for the next one, with the limit of the first wait.
"""

from __future__ import annotations

import atexit
import contextlib
import socket
import threading
import uuid
from collections.abc import Callable, Sequence

from tfdist.cluster.rendezvous.newcomers import Admitted, Newcomers, Unfinished
from tfdist.cluster.rendezvous.protocol import (
    LINE_MAX_BYTES,
    AbsentWorkerError,
    Hello,
    Member,
    RendezvousError,
    Reply,
    encode,
    hello_of,
    members_of,
    missing_error,
    parse_hello,
    parse_reply,
    refusal,
)
from tfdist.cluster.rendezvous.sockets import (
    HELLO_LIMIT_S,
    POLL_S,
    Patience,
    connect,
    end_with_host,
    has_ended,
    listening,
)
from tfdist.cluster.tasks import Cluster, Task
from tfdist.process import endings
from tfdist.process.endings import print_to_stderr

_RETRY_S = 1.0
_DONE = "done"
# Newcomers at once: one chief is expected, and its hello has the list of the cluster.
_MOST_AT_ONCE = 16


def wait_for_chief(
    cluster: Cluster,
    task: Task,
    *,
    timeout_s: float = 300.0,
    report_every_s: float = 30.0,
    say: Callable[[str], None] = print_to_stderr,
) -> None:
    """Waits in a task of type ps until the chief's program has ended without an error.

    The arguments are as in `meet`, for a task of type ps. `timeout_s` limits the wait for the first
    chief to connect, and again the wait after a chief was lost.

    Raises:
      AbsentWorkerError: If no chief connects within the limit.
      RendezvousError: If this task's port is in use, or the chief has another cluster.
    """
    own = Member(name=task.name, address=cluster.address(task))
    members = members_of(cluster)
    with listening(own) as listeners:
        say(f"{own} holds no variables, the workers do. It waits until {members[0]} is done.")
        while True:
            patience = Patience(timeout_s, report_every_s, say)
            chief = _accept_chief(listeners, members, patience)
            with chief.connection:
                is_done = _follow(chief)
            if is_done:
                say(f"{members[0]} is done: {own.name} ends.")
                return
            say(f"Lost {members[0]}. See its output for the cause. {own.name} waits for another.")


def _accept_chief(
    listeners: Sequence[socket.socket], members: Sequence[Member], patience: Patience
) -> Admitted[Hello]:
    """Returns the chief's connection, after its hello; those of other programs are dropped.

    Raises:
      RendezvousError: If the chief has another cluster, or none comes within the limit.
    """
    newcomers = Newcomers(
        listeners, _read_chief, limit_s=HELLO_LIMIT_S, most_bytes=LINE_MAX_BYTES, most=_MOST_AT_ONCE
    )
    with contextlib.closing(newcomers):
        while not patience.is_over():
            patience.report(str(members[0]))
            admitted = newcomers.look(POLL_S)
            for earlier in admitted[:-1]:
                earlier.connection.close()
            for chief in admitted[-1:]:
                problem = refusal(chief.message, hello_of(members, 0, process=""))
                if problem is None:
                    return chief
                chief.connection.close()
                raise RendezvousError(problem)
    raise AbsentWorkerError(missing_error(str(members[0]), patience.limit_s))


def _read_chief(received: bytes) -> Hello | Unfinished | None:
    """Returns the chief's hello in what a newcomer has sent; what follows is for `_follow`."""
    line, newline, _ = received.partition(b"\n")
    if not newline:
        return Unfinished()
    hello = parse_hello(line)
    return hello if hello is not None and hello.index == 0 else None


def _follow(chief: Admitted[Hello]) -> bool:
    """Waits for the end of the chief's connection; returns whether it has said that it is done."""
    connection = chief.connection
    connection.setblocking(True)
    end_with_host(connection)
    _, _, received = chief.received.partition(b"\n")
    with contextlib.suppress(OSError):  # Its host does not answer any more.
        while b"\n" not in received and len(received) <= LINE_MAX_BYTES:
            data = connection.recv(1 << 16)
            if not data:
                break
            received += data
    reply = parse_reply(received.partition(b"\n")[0])
    return reply is not None and reply.event == _DONE


class ChiefNotice:
    """The chief's connections to the ps tasks, kept until its program ends.

    A thread makes them, and makes them again if a ps task is started again. A ps task that cannot
    be reached delays nothing.
    """

    def __init__(self, cluster: Cluster, addresses: Sequence[str]) -> None:
        self._hello = encode(hello_of(members_of(cluster), 0, process=uuid.uuid4().hex))
        self._connections: dict[str, socket.socket | None] = dict.fromkeys(addresses)
        self._is_over = threading.Event()
        self._is_changing = threading.Lock()
        endings.install()  # It knows whether an error ends the program.
        atexit.register(self.close)
        threading.Thread(target=self._keep, name="tfdist-chief-notice", daemon=True).start()

    def close(self) -> None:
        """Ends the connections; "done" goes first unless an error is ending the program."""
        atexit.unregister(self.close)
        self._is_over.set()
        with self._is_changing:
            for address, connection in self._connections.items():
                with contextlib.suppress(OSError), connection or self._greet(address) as open_one:
                    if endings.ending_error() is None:
                        open_one.sendall(encode(Reply(event=_DONE)))

    def _keep(self) -> None:
        while not self._is_over.is_set():
            for address, connection in self._connections.items():
                if connection is None or has_ended(connection):
                    with self._is_changing, contextlib.suppress(OSError):
                        if not self._is_over.is_set():
                            self._connections[address] = self._greet(address)
            self._is_over.wait(_RETRY_S)

    def _greet(self, address: str) -> socket.socket:
        connection = connect(address)
        connection.sendall(self._hello)
        return connection
