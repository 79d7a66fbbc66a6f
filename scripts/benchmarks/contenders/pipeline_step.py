"""`tfdist`: a network in two stages, pipelined over two cores; or plain TensorFlow on one core.

python pipeline_step.py WORK NUM_MICRO_BATCHES pipelined|plain
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import turns


def main() -> None:
    name, micro_batches, execution = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    is_pipelined = execution == "pipelined"
    if is_pipelined:
        turns.pin_to_all_cores()
    else:
        turns.pin_to_own_core(0)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import pipeline_networks as networks
    import pipeline_work as works
    import tensorflow as tf

    from tfdist.pipeline import PipelinedExecution, set_cpu_devices

    # A core for each device: an operation has one thread.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    set_cpu_devices(networks.NUM_DEVICES)
    make_network: Any = networks.Encoder
    if name == works.DENSE:
        size = works.DENSE_WIDTH, works.DENSE_BLOCKS
        make_network = functools.partial(networks.DenseNetwork, *size)
    step: Any
    if is_pipelined:
        cut = works.cut_in_two(name)
        step = networks.staged_model(make_network(), cut, micro_batches, PipelinedExecution)
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
