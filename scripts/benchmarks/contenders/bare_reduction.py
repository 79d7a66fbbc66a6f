"""The bare reduction of a work's gradients by an engine as it comes, and nothing else.

python bare_reduction.py WORK WORKER_INDEX grpc|horovod|tuned-horovod, with TF_CONFIG or under
mpirun; tuned-horovod is Horovod with the settings that tfdist makes for itself

A step reduces all gradients once. The slices of an embedding's gradient are gathered, as both
engines do with them.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import turns

# TensorFlow's ring is faster with such packs than with one for all, or with one a tensor.
PACK_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """The tensors that a step reduces."""

    sizes: tuple[int, ...]  # Elements (float32) of each dense gradient, the last layer's first.
    slices: tuple[tuple[int, int], ...]  # (rows, columns) of each gradient that comes in slices.


def gradients_of(name: str) -> Gradients:
    """Builds the model once, and looks at its weights."""
    import keras_models as models
    import tensorflow as tf
    import work as works

    work = works.WORKS[name]
    with tf.Graph().as_default():
        model = models.make_model(name)
        model.build((works.BATCH_SIZE, *work.feature_shape))
        shapes = [tuple(weight.shape) for weight in reversed(model.trainable_weights)]
    rows = works.BATCH_SIZE * math.prod(work.feature_shape)
    return Gradients(
        sizes=tuple(math.prod(shape) for shape in shapes if shape[0] != work.vocabulary),
        slices=tuple((rows, shape[1]) for shape in shapes if shape[0] == work.vocabulary),
    )


def packs(sizes: Sequence[int], pack_bytes: int = PACK_BYTES) -> list[int]:
    """Returns how many elements each pack has; a gradient is never split over two."""
    filled: list[int] = []
    for size in sizes:
        if filled and 4 * (filled[-1] + size) <= pack_bytes:
            filled[-1] += size
        else:
            filled.append(size)
    return filled


def make_tensors(sizes: Sequence[int], slices: Sequence[tuple[int, int]]) -> tuple[Any, Any]:
    """Makes tensors to reduce, and (values, indices) to gather, all in variables.

    TensorFlow would do what it does with constants once and for all.
    """
    import tensorflow as tf

    def held(value: tf.Tensor) -> tf.Tensor:
        return tf.compat.v1.Variable(value, use_resource=True).read_value()

    dense = [held(tf.ones([size])) for size in sizes]
    return dense, [
        (held(tf.ones([rows, columns])), held(tf.range(rows, dtype=tf.int64)))
        for rows, columns in slices
    ]


def start_server(worker_index: int) -> tuple[Any, Any]:
    """Starts TensorFlow's gRPC server; returns it, and the configuration of its sessions."""
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto()
    config.experimental.collective_group_leader = "/job:worker/replica:0/task:0"
    config.device_filters.append(f"/job:worker/task:{worker_index}")
    cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
    return tf.distribute.Server(cluster, "worker", worker_index, config=config), config


def reduce_over_grpc(gradients: Gradients) -> Any:
    """Returns what to fetch from a session, which reduces once."""
    import tensorflow as tf

    num_workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
    group = {"group_size": num_workers, "group_key": 1}
    dense, slices = make_tensors(packs(gradients.sizes), gradients.slices)
    results = [
        tf.raw_ops.CollectiveReduce(
            input=tensor,
            **group,
            instance_key=key,
            merge_op="Add",
            final_op="Id",
            subdiv_offsets=[0],
        )
        for key, tensor in enumerate(dense, 1)
    ]
    parts = [part for pair in slices for part in pair]
    results += [
        tf.raw_ops.CollectiveGather(
            input=part,
            **group,
            instance_key=key,
            shape=[num_workers * part.shape[0], *part.shape[1:]],
        )
        for key, part in enumerate(parts, len(dense) + 1)
    ]
    return [result.op for result in results]


def reduce_over_horovod(gradients: Gradients) -> Any:
    """Returns what to fetch from a session, which reduces once."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    dense, slices = make_tensors(gradients.sizes, gradients.slices)
    results = list(hvd.grouped_allreduce(dense, op=hvd.Sum))
    results += [hvd.allgather(part) for pair in slices for part in pair]
    # An element of each is fetched: TensorFlow leaves out a reduction whose result is not used.
    return tf.add_n([tf.cast(tf.reshape(result, [-1])[0], tf.float32) for result in results])


def main() -> None:
    name, engine = sys.argv[1], sys.argv[3]
    worker_index = int(os.environ.get("OMPI_COMM_WORLD_RANK", sys.argv[2]))
    turns.pin_to_own_core(worker_index)
    import tensorflow as tf

    if engine == "tuned-horovod":
        from tfdist.strategies.horovod.settings import missing_settings

        os.environ.update(missing_settings(os.environ))
    gradients = gradients_of(name)
    server, config = start_server(worker_index) if engine == "grpc" else (None, None)
    with tf.Graph().as_default(), tf.device("/cpu:0"):
        fetches = (reduce_over_grpc if server else reduce_over_horovod)(gradients)
        with tf.compat.v1.Session(server.target if server else "", config=config) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            step = session.make_callable(fetches)
            my_turns = turns.Turns(worker_index)
            while my_turns.goes_on():
                step()


if __name__ == "__main__":
    main()
