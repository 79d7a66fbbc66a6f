"""Contents of functions: the messages, reductions and steps that a tf.function was traced with.

A function's Python code runs when it is traced, and not when it is called. What a call of it does
is noted here while it is traced, for its graph and each graph around that:

    traced            strategy.run, reductions  ->  Contents of the function's graph
    called eagerly    Contents                  ->  a step, a call that needs all, or none
    called in trace   Contents                  ->  those of the function that is being traced
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import tensorflow as tf
import tensorflow.compat.v1 as v1


@dataclass
class Contents:
    """The contents of a function, or of all that was done eagerly so far.

    Attributes:
      messages: The messages between all workers.
      reductions: The values that replicas or workers combine.
      runs: The calls of `strategy.run`.
      steps: Those of them whose replicas combine values, outside of loops and branches.
      rows: The rows of this worker's batches in those, as far as the trace knows them.
      counts: The places that count steps or rows when the function runs.
    """

    messages: int = 0
    reductions: int = 0
    runs: int = 0
    steps: int = 0
    rows: int = 0
    counts: int = 0

    def add(self, other: Contents) -> None:
        for name, number in vars(other).items():
            setattr(self, name, getattr(self, name) + number)


_contents: WeakKeyDictionary[tf.Graph, Contents] = WeakKeyDictionary()
_eager = Contents()


def contents_of(graph: tf.Graph) -> Contents | None:
    """Returns the contents of a traced function; None if it has none."""
    return _contents.get(graph)


def contents_here() -> Contents:
    """Returns the contents of the function that is being traced, or what was done eagerly."""
    if tf.executing_eagerly():
        return _eager
    return _contents.setdefault(v1.get_default_graph(), Contents())


def note_contents(**numbers: int) -> None:
    """Adds to the contents of the function that is being traced, and of those around it."""
    _add(Contents(**numbers), None)


def note_call(graph: tf.Graph) -> None:
    """Notes the call of a traced function, eagerly or in the function that is being traced.

    What was traced within the latter is part of its contents already.
    """
    contents = _contents.get(graph)
    if contents is not None:
        _add(contents, graph)


def _add(contents: Contents, called: tf.Graph | None) -> None:
    if tf.executing_eagerly():
        _eager.add(contents)
        return
    within = set() if called is None else {id(graph) for graph in graphs_around(called)}
    for graph in graphs_around(v1.get_default_graph()):
        if id(graph) not in within:
            _contents.setdefault(graph, Contents()).add(contents)


def graphs_around(graph: tf.Graph | None) -> Iterator[tf.Graph]:
    """Yields a graph and those around it, up to the outermost function."""
    while graph is not None and hasattr(graph, "outer_graph"):
        yield graph
        graph = graph.outer_graph


def is_outermost(graph: tf.Graph) -> bool:
    """Returns whether a graph is that of a function that Python code calls eagerly.

    Others are loops, branches and functions within it, which may run more than once or not at all.
    """
    return len([*graphs_around(graph)]) == 1
