"""`tfdist`: a network in stages, pipelined over two cores; or plain TensorFlow on one core.

python pipeline_step.py WORK NUM_MICRO_BATCHES NUM_STAGES

Each stage has a device of its own; 1 is plain TensorFlow.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import turns


def main() -> None:
    name, micro_batches, num_stages = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if num_stages > 1:
        turns.pin_to_all_cores()
    else:
        turns.pin_to_own_core(0)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import pipeline_networks as networks
    import pipeline_work as works
    import tensorflow as tf

    from tfdist.pipeline import set_cpu_devices

    # A core for each device: an operation has one thread.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    set_cpu_devices(networks.NUM_DEVICES)
    make_network: Any = networks.Encoder
    if name == works.DENSE:
        size = works.DENSE_WIDTH, works.DENSE_BLOCKS
        make_network = functools.partial(networks.DenseNetwork, *size)
    step: Any
    if num_stages > 1:
        cut = works.cut(name, num_stages)
        step = networks.staged_model(make_network(), cut, micro_batches)
    else:
        step = networks.plain_step(make_network, micro_batches)
    samples = works.make_samples(name, micro_batches * works.MICRO_BATCH_SIZES[name])
    data = [tf.constant(one) for one in samples]
    num_parameters = sum(one.shape.num_elements() for one in make_network().trainable_variables)

    my_turns = turns.Turns(0, num_parameters)
    while my_turns.goes_on():
        step(*data).numpy()


if __name__ == "__main__":
    main()
