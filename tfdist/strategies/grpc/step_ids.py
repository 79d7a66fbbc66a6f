"""Step ids: worker 0's server has the one of each call before any worker can ask for it.

TensorFlow gives a session call with collectives the same step id on all workers. The ids of calls
with the same collectives are counted up. Worker 0's server makes the first one:

    worker 1    asks worker 0's server, which makes an id if there is none
    worker 0    1. looks whether its server has an id    2. makes one if it had none

If worker 1 asks between 1 and 2, worker 0 replaces the id that worker 1 got, and both wait without
end (`RefreshStepIdSequenceAsync` in TensorFlow's `rpc_collective_executor_mgr.cc`). Of 13,000 first
calls, most of them by three workers, one never ended. So worker 0 asks its server as worker 1 does,
before each new call.
"""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from tfdist.strategies.graph_walks import ancestors
from tfdist.strategies.grpc.questions import ask
from tfdist.strategies.private_tensorflow import announce_calls, nodes_in_functions

_COLLECTIVES = {
    "CollectiveReduce",
    "CollectiveGather",
    "CollectiveBcastSend",
    "CollectiveBcastRecv",
}
_CALLS = {"Case", "If", "PartitionedCall", "StatefulPartitionedCall", "While"}
_BITS = (1 << 64) - 1


def make_step_ids_first(target: str) -> None:
    """From now on worker 0 asks its server for the step id of each new call; for worker 0.

    Args:
      target: The target of the sessions of its server, "grpc://host:port".
    """

    def announce(ops: Iterable[tf.Operation]) -> None:
        keys = instance_keys(ops)
        if keys:
            ask_for_step_id(target, graph_key(keys))

    announce_calls(target, announce)


def instance_keys(ops: Iterable[tf.Operation]) -> set[int]:
    """Returns the keys of the collectives that a call runs, also in loops and branches.

    Args:
      ops: The operations that it fetches or runs.
    """
    needed = ancestors(ops, control_inputs=True)
    keys = {int(op.get_attr("instance_key")) for op in needed if op.type in _COLLECTIVES}
    for op in needed:
        if op.type in _CALLS:
            nodes = nodes_in_functions(op)
            keys.update(node.attr["instance_key"].i for node in nodes if node.op in _COLLECTIVES)
    return keys


def graph_key(keys: Iterable[int]) -> int:
    """Returns the number by which TensorFlow knows some collectives: `graph_execution_state.cc`."""
    number = 0x8774AA605C729C72
    for key in sorted(keys):
        number = key ^ (number + 0x9E3779B97F4A7800 + (key << 10) + (key >> 4)) & _BITS
    return number


def ask_for_step_id(target: str, number: int) -> bytes:
    """Returns the answer of worker 0's server, a GetStepSequenceResponse; empty without one.

    A server that does not know the question gives none: then a call is as it was without it.
    """
    # A GetStepSequenceRequest has the bytes of an Int64List: a list of int64 as its field 1.
    signed = number - (1 << 64) if number >> 63 else number
    return ask(target, "GetStepSequence", tf.train.Int64List(value=[signed]).SerializeToString())
