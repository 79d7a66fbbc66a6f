"""Direct exchange between workers: the same sums as the ring's, and nothing else elsewhere."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest


def _reduce_twice(num_runs: int = 2, piece_size_bytes: int | None = None) -> dict[str, Any]:
    """Runs the same collectives directly and around the ring; returns both lists of values."""
    import numpy as np
    import tensorflow as tf
    import tensorflow.compat.v1 as v1

    from tfdist.strategies import MultiWorkerStrategy
    from tfdist.strategies.grpc import direct_exchange

    direct_exchange._LEAST_SHARE_BYTES = 16 << 10
    strategy = MultiWorkerStrategy()
    collectives = strategy.extended.collectives
    collectives.piece_size_bytes = piece_size_bytes or collectives.piece_size_bytes
    index, count = collectives.worker_index, collectives.num_workers
    random = np.random.RandomState(index)
    # Some that one worker adds, and some that are shared out; most sizes do not divide.
    shapes = [(), (0,), (5,), (16384,), (16385,), (3, 5463), (7, 1, 2345, 3)]
    floats = [np.asarray(random.randn(*shape), np.float32) for shape in shapes]
    doubles = random.randn(16387)
    integers = random.randint(-1000, 1000, 16390).astype(np.int32)
    rows = random.randn(3 * index, 2).astype(np.float32)  # Worker 0 has none.
    results: dict[str, Any] = {"own": [*floats, doubles, integers, rows]}
    for way in ("ring", "direct"):
        with tf.Graph().as_default():
            if way == "direct":
                exchange = strategy.direct_exchange()
                exchange.begin()
            step = tf.Variable(0.0, name="step")
            with tf.control_dependencies([step.assign_add(1.0)]):
                now = step.read_value()
            got = [collectives.sum([tf.constant(x) * now], "sum")[0] for x in floats]
            got += [collectives.sum([tf.constant(doubles)], "doubles")[0]]
            got += [collectives.sum([tf.constant(integers)], "integers")[0]]
            got += [collectives.gather(tf.constant(rows) * now, "rows")]
            got += [collectives.broadcast(tf.constant(floats[-1]) * now, "first")]
            got += collectives.sum([tf.constant(floats[2]), tf.constant(floats[3])], "two")
            if way == "direct":
                exchange.complete()
            requested = [tf.identity(x) for x in got]
            leave = collectives.sum([tf.constant(1.0)], "leave")
            config = strategy.update_config_proto(v1.ConfigProto())
            if way == "direct":
                config = exchange.configure(config)
            with v1.Session(strategy.master, config=config) as session:
                session.run(step.initializer)
                options = v1.RunOptions(output_partition_graphs=True)
                metadata = v1.RunMetadata()
                results[way] = [session.run(requested, options=options, run_metadata=metadata)]
                results[way] += [session.run(requested) for _ in range(num_runs - 1)]
                results[f"{way} ops"] = [n.op for g in metadata.partition_graphs for n in g.node]
                assert session.run(leave) == [count]
    return results


@pytest.mark.parametrize(("num_workers", "piece_size_bytes"), [(4, None), (2, 30_000)])
def test_workers_get_directly_what_they_get_around_the_ring(
    fake_cluster: Any, num_workers: int, piece_size_bytes: int | None
) -> None:
    options = {"num_workers": num_workers, "piece_size_bytes": piece_size_bytes}
    workers = fake_cluster.run(_reduce_twice, **options)
    for worker in workers:
        num_collectives = len([op for op in worker["ring ops"] if op.startswith("Collective")])
        assert num_collectives == {None: 13, 30_000: 37}[piece_size_bytes]
        assert not [op for op in worker["direct ops"] if op.startswith("Collective")]
        assert not [op for op in worker["ring ops"] if op.startswith("Queue")]
        for directly, around in zip(worker["direct"], worker["ring"], strict=True):
            for one, other in zip(directly, around, strict=True):
                assert one.dtype == other.dtype
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    for other_worker in workers[1:]:
        for first, other in zip(workers[0]["direct"], other_worker["direct"], strict=True):
            for ours, theirs in zip(first, other, strict=True):
                assert ours.tobytes() == theirs.tobytes()
    own = [worker["own"] for worker in workers]
    got = workers[0]["direct"][1]  # The second run: what is multiplied with the step is doubled.
    np.testing.assert_allclose(got[7], sum(values[7] for values in own), rtol=1e-12)
    np.testing.assert_array_equal(got[8], sum(values[8] for values in own))
    np.testing.assert_array_equal(got[9], 2 * np.concatenate([values[9] for values in own]))
    np.testing.assert_array_equal(got[10], 2 * own[0][6])


def _gather_with_sums() -> dict[str, Any]:
    """Sums and gathers of one step, whose small messages may be shared; returns all values."""
    import numpy as np
    import tensorflow as tf
    import tensorflow.compat.v1 as v1

    from tfdist.strategies import MultiWorkerStrategy

    strategy = MultiWorkerStrategy()
    collectives = strategy.extended.collectives
    index = collectives.worker_index
    random = np.random.RandomState(index)
    # Worker 0 has no rows of the first table; some numbers do not fit into 32 bits.
    rows = [3 * index, 5 - index]
    own = [
        random.randn(3, 5).astype(np.float32),
        random.randint(0, 2**60, rows[0]),
        random.randn(rows[0], 7).astype(np.float32),
        random.randint(0, 2**31 - 1, rows[1]).astype(np.int32),
        np.float32(random.randn()),
    ]
    with tf.Graph().as_default():
        exchange = strategy.direct_exchange()
        exchange.begin()
        given = [tf.Variable(x).read_value() for x in own]
        got = [
            collectives.sum([given[0]], "gradients")[0],
            collectives.gather(given[1], "indices_1"),
            collectives.gather(given[2], "rows_1"),
            collectives.gather(given[3], "indices_2"),
            collectives.sum([given[4]], "loss")[0],
        ]
        exchange.complete(got)
        leave = collectives.sum([tf.constant(1.0)], "leave")
        config = exchange.configure(strategy.update_config_proto(v1.ConfigProto()))
        with v1.Session(strategy.master, config=config) as session:
            session.run(v1.global_variables_initializer())
            options = v1.RunOptions(output_partition_graphs=True)
            metadata = v1.RunMetadata()
            session.run(got, options=options, run_metadata=metadata)
            values = session.run(got)
            session.run(leave)
    ops = [node.op for graph in metadata.partition_graphs for node in graph.node]
    return {"own": own, "got": values, "received": ops.count("QueueDequeueV2")}


@pytest.mark.parametrize("num_workers", [2, 3])
def test_of_two_workers_indices_travel_with_the_small_sums_and_rows_by_themselves(
    fake_cluster: Any, num_workers: int
) -> None:
    workers = fake_cluster.run(_gather_with_sums, num_workers=num_workers)
    for worker in workers:
        for i, value in enumerate(worker["got"]):
            of_all = [np.asarray(one["own"][i]) for one in workers]
            is_sum = i in (0, 4)
            expected = np.sum(of_all, axis=0) if is_sum else np.concatenate(of_all)
            assert value.dtype == expected.dtype
            if is_sum:
                np.testing.assert_allclose(value, expected, rtol=1e-6)
            else:
                np.testing.assert_array_equal(value, expected)
            assert np.asarray(value).tobytes() == np.asarray(workers[0]["got"][i]).tobytes()
    if num_workers == 2:
        assert [worker["received"] for worker in workers] == [2, 2]


@pytest.fixture
def train(collect_log: Callable[[], list[str]]) -> Callable[..., dict[str, Any]]:
    """A function that trains a few steps in a worker, and returns its ops and variables."""
    import exchanged_training

    return partial(exchanged_training.train, collect_log)


@pytest.fixture
def directly(
    fake_cluster: Any, train: Any, made_before: dict[int, list[dict[str, Any]]]
) -> Callable[[int], list[dict[str, Any]]]:
    """Returns how so many workers have trained that exchange their gradients directly."""

    def directly(num_workers: int) -> list[dict[str, Any]]:
        if num_workers not in made_before:
            made_before[num_workers] = fake_cluster.run(train, num_workers=num_workers)
        return made_before[num_workers]

    return directly


def _assert_equal_weights(workers: list[dict[str, Any]], expected: list[Any]) -> None:
    for worker in workers:
        for one, other in zip(worker["values"], expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        for first, own in zip(workers[0]["values"], worker["values"], strict=True):
            assert np.asarray(first).tobytes() == np.asarray(own).tobytes()


@pytest.mark.parametrize("num_workers", [2, 3])
def test_in_a_training_step_only_the_exchange_is_elsewhere(directly: Any, num_workers: int) -> None:
    workers = directly(num_workers)
    sizes = {2: "1 MB, bucketing threshold 0.5 MB", 3: "4 MB, bucketing threshold 1 MB"}
    between = f"Reductions: gRPC, directly between {num_workers} workers"
    line = f"{between}, bucket size {sizes[num_workers]}; freed memory kept"
    for index, worker in enumerate(workers):
        assert worker["said"] == [line]
        assert not [name for name, op, _ in worker["ops"] if op.startswith("Collective")]
        elsewhere = [one for one in worker["ops"] if f"/task:{index}/" not in one[2]]
        # The gradients and the step's agreement share a message. Of three workers the first adds
        # them up, and only its session has ops elsewhere.
        types = Counter(op for _, op, _ in elsewhere)
        assert types["QueueDequeueV2"] == {(2, 0): 1, (2, 1): 1, (3, 0): 2}.get(
            (num_workers, index), 0
        )
        assert types["QueueEnqueueV2"] == (2 if (num_workers, index) == (3, 0) else 0)
        assert types.keys() <= {
            "FIFOQueueV2", "QueueDequeueV2", "QueueEnqueueV2", "_Send", "_Recv", "Const"
        }  # fmt: skip
    _assert_equal_weights(workers, workers[0]["values"])


def _loss_after_the_update(loss: Any, train_op: Any) -> Any:
    import tensorflow as tf

    with tf.control_dependencies([train_op]):
        return tf.identity(loss)


def test_a_loss_that_is_made_of_a_sum_does_not_share_its_message(
    fake_cluster: Any, train: Any, directly: Any
) -> None:
    workers = fake_cluster.run(train, report=_loss_after_the_update)
    for worker in workers:
        dequeues = [op for _, op, device in worker["ops"] if op == "QueueDequeueV2"]
        assert len(dequeues) == 2
    _assert_equal_weights(workers, directly(2)[0]["values"])


def _in_a_branch(optimizer: Any, pairs: Any) -> Any:
    import tensorflow as tf
    import tensorflow.compat.v1 as v1

    step = v1.train.get_global_step()

    def update() -> Any:
        with tf.control_dependencies([optimizer.apply_gradients(pairs)]):
            return tf.constant(True)

    return tf.cond(step >= 0, update, lambda: tf.constant(False))


@pytest.mark.parametrize("way", ["a branch", "a loop", "sessions that share nothing"])
def test_where_it_cannot_be_the_ring_gives_the_same_numbers(
    fake_cluster: Any, train: Any, directly: Any, way: str
) -> None:
    import tensorflow.compat.v1 as v1

    options: dict[str, Any] = {
        "a branch": {"apply": _in_a_branch},
        "a loop": {"iterations": 2},
        "sessions that share nothing": {
            "session_config": v1.ConfigProto(isolate_session_state=True)
        },
    }[way]
    workers = fake_cluster.run(train, **options)
    for worker in workers:
        assert [line.split(",")[1] for line in worker["said"]] == [" in a ring of 2 workers"]
        assert [name for name, op, _ in worker["ops"] if op.startswith("Collective")]
        assert not [name for name, op, _ in worker["ops"] if op.startswith("Queue")]
    _assert_equal_weights(workers, directly(2)[0]["values"])


def test_short_trainings_follow_each_other_in_one_process(
    fake_cluster: Any, train: Any, directly: Any, tmp_path: Any
) -> None:
    again = fake_cluster.run(train, steps=1, times=2, model_dir=str(tmp_path / "model"))
    assert [worker["first_steps"] for worker in again] == [[0, 1]] * 2
    _assert_equal_weights(again, directly(2)[0]["values"])
