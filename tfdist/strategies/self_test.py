"""One worker of a run that tests whether workers can be joined on this machine.

    tfdist run --num-instances 2 -- python -m tfdist.strategies.self_test grpc
    mpirun -np 2 python -m tfdist.strategies.self_test horovod

Each worker has its own target and trains one weight in a single step. Workers that are joined end
with the mean of the targets.
"""

from __future__ import annotations

import faulthandler
import json
import sys

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster import ClusterError, RendezvousError
from tfdist.strategies.horovod.strategy import HorovodNotFoundError, HorovodStrategy
from tfdist.strategies.multi_worker import MultiWorkerStrategy
from tfdist.strategies.placement import DeviceError

# The worker ends by itself if the process that started it is gone.
_LIMIT_S = 120.0


def main(engine: str = "grpc") -> None:
    """Trains, and prints the result as JSON on the last line.

    Args:
      engine: "grpc" or "horovod".
    """
    faulthandler.dump_traceback_later(_LIMIT_S, exit=True)
    try:
        result = train_one_step(engine)
    except (ClusterError, RendezvousError, HorovodNotFoundError, DeviceError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    sys.stdout.write(f"\n{json.dumps(result)}\n")
    if result["weight"] != result["expected"]:
        sys.exit("the workers did not train together")


def train_one_step(engine: str) -> dict[str, float]:
    """Makes the strategy and one gradient step; every worker must call it.

    Returns:
      The weight, what it should be, the number of workers and the device that computed.
    """
    strategy = {"grpc": MultiWorkerStrategy, "horovod": HorovodStrategy}[engine]()
    collectives = strategy.extended.collectives
    num_workers = collectives.num_workers
    target = float(collectives.worker_index)
    with tf.Graph().as_default(), strategy.scope():
        weight = v1.get_variable("weight", initializer=float(num_workers))
        optimizer = v1.train.GradientDescentOptimizer(1.0)

        def step() -> tf.Operation:
            loss = 0.5 * tf.square(weight - target) / num_workers
            return optimizer.apply_gradients(optimizer.compute_gradients(loss, [weight]))

        train_op = strategy.run(step)
        config = strategy.update_config_proto(v1.ConfigProto())
        with v1.Session(strategy.master, config=config) as session:
            session.run(v1.global_variables_initializer())
            session.run(train_op)
            return {
                "weight": float(session.run(weight)),
                "expected": (num_workers - 1) / 2,
                "num_workers": num_workers,
                "device": strategy.extended.placement.device,
            }


if __name__ == "__main__":
    main(*sys.argv[1:])
