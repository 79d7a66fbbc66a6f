"""A plain Horovod script for tf_keras, without tfdist: arguments are a folder and an epoch.

Rank 1 fails after that epoch, unless there is a checkpoint to go on from.
"""

import os
import sys
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()
tf.keras.utils.set_random_seed(hvd.rank())
weights, done = Path(sys.argv[1], "weights.h5"), Path(sys.argv[1], "epochs")
first = int(done.read_text()) if done.exists() else 0
x = np.random.rand(80, 4).astype(np.float32)
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), "mse")
if first:
    model.load_weights(weights)


def at_end(epoch: int, logs: object) -> None:
    if hvd.rank() == 0:
        model.save_weights(weights)
        done.write_text(str(epoch + 1))
    hvd.allreduce(tf.zeros([]))  # No rank fails before it is saved.
    if hvd.rank() == 1 and not first and epoch == int(sys.argv[2]):
        raise ValueError("no such file: part-7")


callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    tf.keras.callbacks.LambdaCallback(on_epoch_end=at_end),
]
model.fit(
    x,
    x.sum(1),
    batch_size=16,
    initial_epoch=first,
    epochs=4,
    verbose=2 if hvd.rank() == 0 else 0,
    callbacks=callbacks,
)
total = sum(float(np.abs(w).sum()) for w in model.get_weights())
print(f"rank {hvd.rank()} of {hvd.size()} from epoch {first}: {total:.6f}")
