"""Trains for a few steps with four optimizers at once, going on from what the folder holds."""

# ruff: noqa: ANN001, ANN002, ANN201 (as such programs are)

import argparse
import json

import numpy as np
import tensorflow as tf

import tfdist.estimator as tfe

v1 = tf.compat.v1


parser = argparse.ArgumentParser()
parser.add_argument("--model-dir")
parser.add_argument("--steps", type=int)
parser.add_argument("--skip", type=int, default=0, help="batches seen before")
arguments = parser.parse_args()


def input_fn():
    random = np.random.RandomState(0)
    x = random.randn(160, 2).astype(np.float32)
    words = random.randint(0, 8, [160, 3])
    y = random.randn(160, 3).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices(({"x": x, "words": words}, y))
    return dataset.batch(8).skip(arguments.skip)


def start(*shape):
    return v1.constant_initializer(np.random.RandomState(sum(shape)).uniform(-0.5, 0.5, shape))


def clip(weight):
    return tf.clip_by_value(weight, -0.4, 0.4)


def model_fn(features, labels, mode):
    words = v1.get_variable("words", [8, 4], initializer=start(8, 4))
    word = tf.reduce_mean(tf.nn.embedding_lookup(words, features["words"]), axis=1)
    x = tf.concat([features["x"], word], axis=1)
    x = v1.layers.dense(x, 5, kernel_initializer=start(6, 5), kernel_constraint=clip, name="hidden")
    training = mode == tfe.ModeKeys.TRAIN
    x = v1.layers.batch_normalization(x, momentum=0.9, training=training, name="norm")
    kernel = v1.get_variable(
        "kernel",
        [5, 3],
        initializer=v1.random_uniform_initializer(-0.5, 0.5, seed=1),
        partitioner=v1.fixed_size_partitioner(2),
    )
    output = tf.matmul(tf.nn.relu(x), tf.convert_to_tensor(kernel))
    loss = tf.reduce_mean(tf.square(output - labels))

    # Each optimizer has a part of the model; the Keras one counts the steps.
    optimizers = {
        "words": v1.train.AdamOptimizer(0.05),
        "hidden": v1.train.MomentumOptimizer(0.05, 0.9),
        "kernel": v1.train.FtrlOptimizer(0.5, l1_regularization_strength=0.01),
    }
    pairs = {
        name: one.compute_gradients(loss, v1.trainable_variables(name))
        for name, one in optimizers.items()
    }
    keras_optimizer = tf.keras.optimizers.legacy.Adam(0.05)
    keras_optimizer.iterations = v1.train.get_global_step()
    updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS)
    updates += keras_optimizer.get_updates(loss, v1.trainable_variables("norm"))
    updates += [optimizers[name].apply_gradients(pairs[name]) for name in optimizers]
    with tf.control_dependencies(updates):
        train_op = tf.train.ExponentialMovingAverage(0.9).apply(v1.trainable_variables())
    return tfe.EstimatorSpec(mode, loss=loss, train_op=train_op)


config = tfe.RunConfig(arguments.model_dir, save_checkpoints_steps=3)
estimator = tfe.Estimator(model_fn, config=config).train(input_fn, steps=arguments.steps)
names = estimator.get_variable_names()
print(json.dumps({name: estimator.get_variable_value(name).tolist() for name in names}))
