"""Look-ups in a table by a loop in a tf.function.

python tables.py TABLE WORKER_INDEX divided-grpc|divided-horovod|grpc|horovod|mirrored|tape|none

"divided" is tfdist with a share of the rows on each worker; "tape" is Horovod's own; "none" is a
worker by itself, which reduces nothing.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import tables_work as works
import turns

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def main() -> None:
    name, index, way = sys.argv[1:4]
    worker_index = int(os.environ.get("OMPI_COMM_WORLD_RANK", index))
    turns.pin_to_own_core(worker_index)
    import tensorflow as tf

    strategy = make_strategy(way)
    table = works.TABLES[name]
    with strategy.scope():
        # A function, of which a worker with a share of the rows makes only its own.
        weights = tf.Variable(lambda: tf.ones([table.rows, table.width]), name="table")
        kernel = tf.Variable(tf.ones([table.width]), name="kernel")
        optimizer = tf.keras.optimizers.Adagrad(works.LEARNING_RATE)
        optimizer.build([weights, kernel])
    train_step = make_step(strategy, weights, kernel, optimizer, is_tape=way == "tape")
    ids = tf.data.Dataset.from_tensor_slices(works.make_ids(table, worker_index)).repeat()
    iterator = iter(strategy.distribute_datasets_from_function(lambda _: ids))
    my_turns = turns.Turns(worker_index)
    while my_turns.goes_on():
        train_step(iterator)
    os._exit(0)  # At a normal exit the strategy's workers may wait for one that has left already.


def make_strategy(way: str) -> Any:
    """Returns the strategy of a way to train."""
    import tensorflow as tf

    if way == "tape":
        import horovod.tensorflow as hvd

        hvd.init()
    if way in ("none", "tape"):
        return tf.distribute.get_strategy()
    if way == "mirrored":
        from mirrored_strategy import make_strategy as mirrored

        return mirrored()
    from tfdist.strategies import HorovodStrategy, MultiWorkerStrategy

    partitioner = None
    if way.startswith("divided"):
        partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
            min_shard_bytes=1 << 20, max_shards=1 << 20
        )
    kind = HorovodStrategy if way.endswith("horovod") else MultiWorkerStrategy
    return kind(variable_partitioner=partitioner)


def make_step(strategy: Any, weights: Any, kernel: Any, optimizer: Any, *, is_tape: bool) -> Any:
    """Returns a step of training, which takes an iterator of ids, int64 [look_ups]."""
    import tensorflow as tf

    def step(ids: Any) -> None:
        with tf.GradientTape() as tape:
            rows = tf.nn.embedding_lookup(weights, ids)  # [look_ups, width]
            loss = tf.reduce_mean(tf.square(tf.linalg.matvec(rows, kernel) - 1.0))
            loss /= strategy.num_replicas_in_sync
        if is_tape:
            import horovod.tensorflow as hvd

            tape = hvd.DistributedGradientTape(tape)
        variables = [weights, kernel]
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(iterator: Any) -> None:
        strategy.run(step, args=(next(iterator),))

    return train_step


if __name__ == "__main__":
    main()
