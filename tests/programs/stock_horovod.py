"""A plain Horovod script for tf_keras, without tfdist: rank 1 fails after its first epoch."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()
tf.keras.utils.set_random_seed(hvd.rank())
x = np.random.rand(80, 4).astype(np.float32)
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), "mse")


def at_end(epoch: int, logs: object) -> None:
    total = sum(float(np.abs(w).sum()) for w in model.get_weights())
    print(f"worker {hvd.rank()}, epoch {epoch}: {total:.6f}", flush=True)
    hvd.allreduce(tf.zeros([]))  # No rank fails before all have printed.
    if hvd.rank() == 1:
        raise ValueError("no such file: part-7")


callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    tf.keras.callbacks.LambdaCallback(on_epoch_end=at_end),
]
model.fit(x, x.sum(1), batch_size=16, epochs=4, verbose=0, callbacks=callbacks)
