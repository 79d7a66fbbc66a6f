"""One worker of a run that tests whether workers can be joined on this machine.

    tfdist run --num-instances 2 -- python -m tfdist.strategies.self_test grpc
    mpirun -np 2 python -m tfdist.strategies.self_test horovod fit

Each worker has its own target and trains one weight in a single step, in a graph or by the `fit` of
Keras 3. Workers that are joined end with the mean of the targets.
"""

from __future__ import annotations

import faulthandler
import json
import sys

import tensorflow as tf
import tensorflow.compat.v1 as v1

from tfdist.cluster import ClusterError, RendezvousError
from tfdist.strategies.base import BaseStrategy
from tfdist.strategies.grpc.strategy import MultiWorkerStrategy
from tfdist.strategies.horovod.strategy import HorovodNotFoundError, HorovodStrategy
from tfdist.strategies.placement import DeviceError

# The worker ends by itself if the process that started it is gone.
_LIMIT_S = 120.0


def main(engine: str = "grpc", dialect: str = "graph") -> None:
    """Trains over an engine, and prints the result as JSON on the last line.

    The dialect is "graph", or "fit" for Keras 3.
    """
    faulthandler.dump_traceback_later(_LIMIT_S, exit=True)
    try:
        strategy = {"grpc": MultiWorkerStrategy, "horovod": HorovodStrategy}[engine]()
        train = {"graph": train_one_step, "fit": fit_one_step}[dialect]
        result = {
            "weight": train(strategy),
            "expected": (strategy.extended.collectives.num_workers - 1) / 2,
            "num_workers": strategy.extended.collectives.num_workers,
            "device": strategy.extended.placement.device,
        }
    except (ClusterError, RendezvousError, HorovodNotFoundError, DeviceError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    sys.stdout.write(f"\n{json.dumps(result)}\n")
    if result["weight"] != result["expected"]:
        sys.exit("the workers did not train together")


def train_one_step(strategy: BaseStrategy) -> float:
    """Makes one gradient step in a graph and returns the weight; every worker must call it."""
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
            return float(session.run(weight))


def fit_one_step(strategy: BaseStrategy) -> float:
    """Trains one step by Keras' `fit` and returns the weight; every worker must call it."""
    import keras

    num_workers = strategy.extended.collectives.num_workers
    with strategy.scope():
        bias = keras.initializers.Constant(num_workers)
        layer = keras.layers.Dense(1, kernel_initializer="zeros", bias_initializer=bias)
        model = keras.Sequential([keras.Input([1]), layer])
        model.compile(keras.optimizers.SGD(0.5), "mse")
    targets = tf.range(num_workers, dtype=tf.float32)[:, None]  # [workers, 1]
    model.fit(tf.data.Dataset.from_tensors((tf.zeros_like(targets), targets)), verbose=0)
    return float(layer.bias.numpy()[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
