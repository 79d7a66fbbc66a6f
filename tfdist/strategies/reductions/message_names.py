"""Names of messages in TensorFlow 2, where names of variables and operations are not unique.

Workers pair messages by name. A name must be equal on all workers, and two messages that may be on
their way at once must have different names. In a v1 graph the names of operations are like this. In
a tf.function messages of one name are numbered in the order of tracing:

    train_step/1/dense/kernel_and_3_more_8c2e1f04
    train_step/1/dense/kernel

A worker whose last batch has another shape traces the function once more than the others. It gets
the same names again.
"""

from __future__ import annotations

import re
from collections import Counter
from weakref import WeakKeyDictionary

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.strategies.dialect import is_tensorflow_2
from tfdist.strategies.reductions.contents import note_contents
from tfdist.strategies.reductions.engine import executing_instances

# How often each message's name occurs in each function that is traced from Python.
_occurrences: WeakKeyDictionary[tf.Graph, Counter[str]] = WeakKeyDictionary()


def message_name(name: str) -> str:
    """Returns the name of a message that is about to be sent, or added to the current function.

    All workers get the same name: it is made from `name`, the function that is traced, and how
    often `name` was used in it.
    """
    if not is_tensorflow_2():
        return name
    name = re.sub(r"[^A-Za-z0-9_./-]", "_", name)  # What a name scope may contain.
    if tf.executing_eagerly():
        return name  # Eager messages are sent one after the other.
    if executing_instances() is None:
        note_contents(messages=1)
    function = v1.get_default_graph()
    while hasattr(function.outer_graph, "outer_graph"):
        function = function.outer_graph
    counts = _occurrences.setdefault(function, Counter())
    counts[name] += 1
    # Such as "step" of "__step_12", and "lambda" of "<lambda>": a name scope begins with a letter.
    base = re.sub(r"_\d+$|[^A-Za-z0-9_.-]", "", function.name).lstrip("_-")
    return f"{base}/{counts[name]}/{name}"
