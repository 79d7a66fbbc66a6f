"""Containers: each graph has its own variables on TensorFlow's server, and they do not stay there.

A server keeps variables, slots, tables, iterators and queues under their names, beyond the session
that has made them. A second training in the process would find those of the first one: an average
begins at old weights, a table has the old vocabulary. So each graph has a container of its own:

    graph 1    session opens ...... closes
               container tfdist-graph-1: w, b, w/Adam
    graph 2                                    session opens ...
                                               container tfdist-graph-2: w, b, w/Adam
                                               tfdist-graph-1 is removed

A later session of the same graph goes on with its values, as TensorFlow's sessions do, until one of
another graph is opened; graphs with an open session keep theirs. What a program has put into a
container by its name (`tf.Graph.container`) stays, and is shared.
"""

from __future__ import annotations

import itertools
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary, WeakSet

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.grpc.questions import ask
from tfdist.strategies.private_tensorflow import announce_sessions, is_closed, put_into_container

_OF_GRAPH = "tfdist-graph-"
_OF_EXCHANGE = "tfdist-exchange-"

_numbers = itertools.count(1)


def exchange_container(graph: tf.Graph, key: int | str) -> AbstractContextManager[str]:
    """Puts the resources made in the `with` block into one that is removed with the graph's own.

    All workers use it, and give it the same key, which no other graph has.
    """
    entered: AbstractContextManager[str] = graph.container(f"{_OF_EXCHANGE}{key}")
    return entered


class ServerContainers:
    """The containers of the graphs that have had a session on one server of this process.

    Args:
      target: The target of the server's sessions, "grpc://host:port".
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._graphs: WeakKeyDictionary[tf.Graph, _OfGraph] = WeakKeyDictionary()
        self._in_use: list[_OfGraph] = []

    def watch_sessions(self) -> None:
        """From now on each graph gets a container when its first session is opened."""
        announce_sessions(self._target, self.add_session)

    def add_session(self, session: v1.Session) -> None:
        """Gives the graph of a new session its container, and removes those without a session."""
        with self._lock:
            added = self._graphs.get(session.graph)
            if added is None:
                added = self._graphs[session.graph] = _OfGraph(name=f"{_OF_GRAPH}{next(_numbers)}")
            found = put_into_container(session.graph, added.name, instead_of=_OF_GRAPH)
            added.sessions.add(session)
            if not found:  # Of what one graph keeps, a graph without resources needs nothing.
                return
            added.names |= {name for name in found if name.startswith(_OF_EXCHANGE)}
            unused = [
                container
                for container in self._in_use
                if container is not added and not container.is_open()
            ]
            self._in_use = [
                container for container in [*self._in_use, added] if container not in unused
            ]
        names = sorted(name for container in unused for name in container.names)
        if names:
            # A CleanupAllRequest has the bytes of a BytesList: a list of names as its field 1.
            request = tf.train.BytesList(value=[name.encode() for name in names])
            ask(self._target, "CleanupAll", request.SerializeToString())


@dataclass(eq=False)
class _OfGraph:
    """The containers of a graph: its own, and that of its exchange; and its sessions."""

    name: str
    names: set[str] = field(init=False)
    sessions: WeakSet[v1.Session] = field(default_factory=WeakSet)

    def __post_init__(self) -> None:
        self.names = {self.name}

    def is_open(self) -> bool:
        return any(not is_closed(session) for session in self.sessions)
