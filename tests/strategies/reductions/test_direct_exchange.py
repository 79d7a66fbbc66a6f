"""The ops of a worker's graph in place of a collective."""

from typing import Any

import pytest
import tensorflow as tf

from tfdist.strategies.reductions.direct_exchange import Collective, DirectExchange

HOSTS = tuple(f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(3))


def _exchanged(kind: str, shape: list[int | None], *, num_workers: int, index: int) -> Any:
    """Returns the ops of an exchange, and what the collective's users get."""
    with tf.Graph().as_default() as graph, tf.device("/device:CPU:0"):
        tensor = tf.compat.v1.placeholder(tf.float32, shape)
        result = tf.identity(tf.identity(tensor, "collective"), "result")
        user = tf.negative(result)
        exchange = DirectExchange(hosts=HOSTS[:num_workers], index=index)
        exchange.redirect(Collective(kind=kind, tensor=tensor, result=result, key="7"))
    assert user.op.inputs[0].op.inputs[0].op.name.startswith("collective_exchanged/")
    return [op for op in graph.get_operations() if op.name.startswith("collective_exchanged/")]


def _count(ops: list[tf.Operation], *types: str) -> tuple[int, ...]:
    return tuple(sum(op.type == wanted for op in ops) for wanted in types)


@pytest.mark.parametrize(
    ("num_workers", "shape", "swaps"),
    [
        (2, [100, 1000], 1),
        (3, [], 1),
        (3, [16384], 1),
        (3, [None, 1000], 1),
        (3, [16385], 2),  # Shares, then their sums.
    ],
)
def test_large_tensors_of_several_workers_are_summed_in_shares(
    num_workers: int, shape: list[int | None], swaps: int
) -> None:
    ops = _exchanged("sum", shape, num_workers=num_workers, index=1)
    others = num_workers - 1
    counts = _count(ops, "QueueEnqueueV2", "QueueDequeueV2")
    assert counts == (swaps * others, swaps * others)


@pytest.mark.parametrize(("index", "expected"), [(0, (2, 0)), (1, (0, 1)), (2, (0, 1))])
def test_only_the_first_worker_offers_what_all_shall_have(
    index: int, expected: tuple[int, int]
) -> None:
    ops = _exchanged("broadcast", [4], num_workers=3, index=index)
    assert _count(ops, "QueueEnqueueV2", "QueueDequeueV2") == expected


@pytest.mark.parametrize("kind", ["sum", "gather", "broadcast"])
def test_workers_name_the_same_queues_in_the_same_places(kind: str) -> None:
    for source in range(3):
        for target in range(3):
            if source == target or (kind == "broadcast" and source > 0):
                continue
            ends = []
            for index in (source, target):
                ops = _exchanged(kind, [4], num_workers=3, index=index)
                wanted = f"tfdist_7_from_{source}_to_{target}"
                queues = [op for op in ops if op.type == "FIFOQueueV2"]
                (queue,) = [op for op in queues if op.get_attr("shared_name").decode() == wanted]
                assert queue.device == HOSTS[source]
                ends += [(op.type, op.device) for op in queue.outputs[0].consumers()]
            assert [kind for kind, _ in ends] == ["QueueEnqueueV2", "QueueDequeueV2"]
            assert ends[0][1] == HOSTS[source]


def test_sums_that_share_a_message_come_back_to_their_users_in_their_shapes() -> None:
    shapes: list[list[int]] = [[3, 5], [], [7]]
    with tf.Graph().as_default() as graph, tf.device("/device:CPU:0"):
        sums, users = [], []
        for i, shape in enumerate(shapes):
            tensor = tf.compat.v1.placeholder(tf.float32, shape)
            result = tf.identity(tf.identity(tensor, f"collective_{i}"), "result")
            users.append(tf.negative(result))
            sums.append(Collective(kind="sum", tensor=tensor, result=result, key=str(i)))
        DirectExchange(hosts=HOSTS[:2], index=0).redirect_sums(sums)
    assert _count(graph.get_operations(), "QueueEnqueueV2", "QueueDequeueV2") == (1, 1)
    for i, (user, shape) in enumerate(zip(users, shapes, strict=True)):
        value = user.op.inputs[0].op.inputs[0]
        assert value.op.name.startswith("collective_0_exchanged/")
        assert value.shape.as_list() == shape
        assert value.op.inputs[0].name.endswith(f"split:{i}")
