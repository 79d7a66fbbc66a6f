"""The ops of a worker's graph in place of a collective."""

from typing import Any

import pytest
import tensorflow as tf

from tfdist.strategies.grpc.direct_exchange import (
    Collective,
    DirectExchange,
    assign_owners,
)

MB = 1 << 20
HOSTS = tuple(f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(3))


def _exchanged(kind: str, shape: list[int | None], *, num_workers: int, index: int) -> Any:
    """Returns the ops of an exchange, and what the collective's users get."""
    with tf.Graph().as_default() as graph, tf.device("/device:CPU:0"):
        tensor = tf.compat.v1.placeholder(tf.float32, shape)
        result = tf.identity(tf.identity(tensor, "collective"), "result")
        user = tf.negative(result)
        exchange = DirectExchange(hosts=HOSTS[:num_workers], index=index)
        exchange.redirect([[Collective(kind=kind, tensor=tensor, result=result, key="7")]])
    assert user.op.inputs[0].op.inputs[0].op.name.startswith("collective_exchanged/")
    return [op for op in graph.get_operations() if op.name.startswith("collective_exchanged/")]


def _count(ops: list[tf.Operation], *types: str) -> tuple[int, ...]:
    return tuple(sum(op.type == wanted for op in ops) for wanted in types)


@pytest.mark.parametrize(
    ("num_workers", "shape", "index", "expected"),
    [
        (2, [100, 1000], 1, (1, 1)),  # Both workers add.
        (3, [], 0, (2, 2)),  # Worker 0 adds: it gets two tensors, and sends the sum twice.
        (3, [], 1, (1, 1)),
        (3, [16384], 1, (1, 1)),
        (3, [16385], 1, (4, 4)),  # Shares, then their sums: too much for one owner.
        (3, [None, 1000], 1, (2, 2)),  # All send all.
    ],
)
def test_a_sum_takes_as_many_messages_as_its_size_needs(
    num_workers: int, shape: list[int | None], index: int, expected: tuple[int, int]
) -> None:
    ops = _exchanged("sum", shape, num_workers=num_workers, index=index)
    assert _count(ops, "QueueEnqueueV2", "QueueDequeueV2") == expected


@pytest.mark.parametrize(
    ("sizes", "on_one_machine", "owners"),
    [
        # The large ones first, each to the worker with the least to add.
        ([MB, 4, MB, MB, MB, MB], True, [0, 2, 1, 2, 0, 1]),
        # A network's link would be busier at the owner: shares, but for what is small.
        ([MB, MB // 2, 4], False, [None, 0, 1]),
        ([MB, MB // 2, 4], True, [0, 1, 2]),
        ([MB] * 6, False, [0, 1, 2, 0, 1, 2]),
        # So large that a share is worth a message.
        ([MB, 9 * MB, None], True, [0, None, None]),
    ],
)
def test_all_workers_add_about_as_much(
    sizes: list[int | None], on_one_machine: bool, owners: list[int | None]
) -> None:
    by_key = dict(zip("abcdef", sizes, strict=False))
    assert list(assign_owners(by_key, 3, on_one_machine=on_one_machine).values()) == owners
    backwards = dict(reversed(by_key.items()))  # As in a worker with another order.
    assert assign_owners(backwards, 3, on_one_machine=on_one_machine) == dict(
        zip(by_key, owners, strict=True)
    )
    assert set(assign_owners(by_key, 2, on_one_machine=on_one_machine).values()) == {None}


@pytest.mark.parametrize(("index", "expected"), [(0, (2, 0)), (1, (0, 1)), (2, (0, 1))])
def test_only_the_first_worker_offers_what_all_shall_have(
    index: int, expected: tuple[int, int]
) -> None:
    ops = _exchanged("broadcast", [4], num_workers=3, index=index)
    assert _count(ops, "QueueEnqueueV2", "QueueDequeueV2") == expected


@pytest.mark.parametrize("kind", ["gather", "broadcast"])
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


def test_the_owner_puts_the_sum_into_a_queue_on_the_host_of_each_other_worker() -> None:
    def ends(index: int) -> set[tuple[str, str, str]]:
        """Returns the name of each queue's key, its host, and what is done with it."""
        queues = [
            op
            for op in _exchanged("sum", [4], num_workers=3, index=index)
            if op.type == "FIFOQueueV2"
        ]
        return {
            (queue.get_attr("shared_name").decode(), queue.device, user.type)
            for queue in queues
            for user in queue.outputs[0].consumers()
        }

    for member in (1, 2):
        tensor, total = f"tfdist_7_from_{member}_to_0", f"tfdist_7_sum_from_0_to_{member}"
        host = HOSTS[member]
        assert ends(member) == {(tensor, host, "QueueEnqueueV2"), (total, host, "QueueDequeueV2")}
        assert ends(0) > {(tensor, host, "QueueDequeueV2"), (total, host, "QueueEnqueueV2")}


def test_sums_that_share_a_message_come_back_to_their_users_in_their_shapes() -> None:
    shapes: list[list[int]] = [[3, 5], [], [7]]
    with tf.Graph().as_default() as graph, tf.device("/device:CPU:0"):
        sums, users = [], []
        for i, shape in enumerate(shapes):
            tensor = tf.compat.v1.placeholder(tf.float32, shape)
            result = tf.identity(tf.identity(tensor, f"collective_{i}"), "result")
            users.append(tf.negative(result))
            sums.append(Collective(kind="sum", tensor=tensor, result=result, key=str(i)))
        DirectExchange(hosts=HOSTS[:2], index=0).redirect([sums])
    assert _count(graph.get_operations(), "QueueEnqueueV2", "QueueDequeueV2") == (1, 1)
    for i, (user, shape) in enumerate(zip(users, shapes, strict=True)):
        value = user.op.inputs[0].op.inputs[0]
        assert value.op.name.startswith("collective_0_exchanged/")
        assert value.shape.as_list() == shape
        assert value.op.inputs[0].name.endswith(f"split:{i}")
