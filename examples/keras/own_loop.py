"""Trains a small network on MNIST digits in a loop of its own, alone or on several workers.

    python examples/keras/own_loop.py
    tfdist run --num-instances 2 -- python examples/keras/own_loop.py

`strategy.run` calls the step in each replica, with its part of a batch. The optimizer adds the
gradients of all replicas. The last line of worker 0 is the mean loss of the last epoch, as JSON.
"""

import json
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Only errors of TensorFlow's C++ code.

import keras
import tensorflow as tf
from mnist import load_digits

from tfdist.strategies import strategy_for_run

BATCH_SIZE, EPOCHS = 80, 3


def main() -> None:
    strategy = strategy_for_run()  # First: before datasets and tensors.
    keras.utils.set_random_seed(1)
    train, _ = load_digits()
    with strategy.scope():
        layers = [keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
        model = keras.Sequential([keras.Input([28, 28, 1]), *layers])
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)
    dataset = train.shuffle(4000, seed=1).batch(BATCH_SIZE, drop_remainder=True)
    batches = strategy.experimental_distribute_dataset(dataset)

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Makes one step in one replica: images [batch, 28, 28, 1], labels [batch]."""
        with tf.GradientTape() as tape:
            logits = model(images, training=True)  # [batch, 10]
            losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            # The sum over the replicas is the mean over the global batch.
            loss = tf.reduce_sum(losses) / BATCH_SIZE
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(batch: Any) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(step, args=batch), axis=None)

    for epoch in range(EPOCHS):
        losses = [float(train_step(batch)) for batch in batches]
        mean = sum(losses) / len(losses)
        if strategy.extended.should_checkpoint:  # Worker 0.
            print(f"epoch {epoch + 1}: loss {mean:.4f}", flush=True)
    if strategy.extended.should_checkpoint:
        print(json.dumps({"loss": mean}), flush=True)


if __name__ == "__main__":
    main()
