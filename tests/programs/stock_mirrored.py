"""TensorFlow's own MultiWorkerMirroredStrategy with tf_keras, without tfdist: worker 1 fails."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
worker = strategy.cluster_resolver.task_id
x = np.random.RandomState(0).rand(160, 4).astype(np.float32)
dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(1))).batch(32)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.SGD(0.1), "mse")


def at_end(epoch: int, logs: object) -> None:
    total = sum(float(np.abs(w).sum()) for w in model.get_weights())
    print(f"worker {worker}, epoch {epoch}: {total:.6f}", flush=True)
    if worker == 1 and epoch == 1:
        raise ValueError("no such file: part-7")


model.fit(
    dataset,
    epochs=4,
    verbose=0,
    callbacks=[tf.keras.callbacks.LambdaCallback(on_epoch_end=at_end)],
)
