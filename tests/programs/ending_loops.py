"""A loop of one's own that ends in another way than by its last step.

    ending_loops.py WAY ENDING [WORKER]

WAY is how it calls `strategy.run`: "function" or "eager". ENDING is what comes to WORKER, or is
different there: "a step more", "SIGTERM", "SIGUSR1" or "pause", in its fourth step.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import tensorflow as tf

from tfdist.cluster.instances import find_instance
from tfdist.cluster.rendezvous import collective_calls
from tfdist.strategies import stop_signals, strategy_for_run

way, ending, worker = sys.argv[1], sys.argv[2], int(sys.argv[3])
collective_calls._SETTLED_S = 1.0  # of 3
if ending == "pause":
    stop_signals._STEP_GRACE_S = 1.0  # of 10
strategy = strategy_for_run()
is_own = find_instance().index == worker
with strategy.scope():
    weight = tf.Variable(1.0, aggregation=tf.VariableAggregation.MEAN)


def replica_step(rows: tf.Tensor) -> tf.Tensor:
    gradient = tf.distribute.get_replica_context().all_reduce("SUM", tf.reduce_mean(rows))
    weight.assign_sub(0.1 * gradient)
    return gradient


@tf.function
def train_step(rows: tf.Tensor) -> Any:
    return strategy.run(replica_step, args=(rows,))


number = 5 + (is_own and ending == "a step more") if not ending.startswith("SIG") else 10_000
steps = 0
try:
    for _ in range(number):
        if steps == 3 and is_own:
            if ending.startswith("SIG"):
                os.kill(os.getpid(), getattr(signal, ending))
            elif ending == "pause":
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(100)
        if way == "function":
            train_step(tf.ones([4]))
        else:
            strategy.run(replica_step, args=(tf.ones([4]),))
        steps += 1
except SystemExit as end:
    print(f"saved after step {steps}, {weight.numpy():.4f}, {end.code}", flush=True)
    raise
print("trained to the end", flush=True)
