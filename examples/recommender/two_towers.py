"""Trains a model of two towers, users and films, with Keras' `fit` and divided tables.

    python examples/recommender/two_towers.py
    tfdist run --num-instances 2 -- python examples/recommender/two_towers.py
    tfdist run --engine horovod --num-instances 2 -- python examples/recommender/two_towers.py

Each worker holds its share of the rows of both tables. The last line of worker 0 is the evaluation
of ratings that were not trained, as JSON.
"""

import argparse
import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Only errors of TensorFlow's C++ code.

import keras
import tensorflow as tf
from clicks import NUM_FILMS, NUM_USERS, ratings

from tfdist.strategies import strategy_for_run


def main() -> None:
    parser = argparse.ArgumentParser(description="Train two towers on made ratings of films.")
    parser.add_argument("--epochs", type=int, default=3, help="passes over the 60,000 ratings")
    parser.add_argument("--batch-size", type=int, default=512, help="ratings of all workers a step")
    parser.add_argument(
        "--min-shard-bytes", type=int, default=64 << 10, help="divide tables of twice this size"
    )
    arguments = parser.parse_args()

    # TensorFlow's own partitioner: small variables stay whole on each worker.
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=arguments.min_shard_bytes, max_shards=1 << 20
    )
    strategy = strategy_for_run(variable_partitioner=partitioner)
    keras.utils.set_random_seed(1)  # The same initial weights in every run.
    with strategy.scope():
        model = two_towers()
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        auc = keras.metrics.AUC(from_logits=True, name="auc")
        model.compile(keras.optimizers.Adam(0.005), loss, metrics=[auc])
    slices = tf.data.Dataset.from_tensor_slices
    train, test = slices(ratings(60_000, seed=1)), slices(ratings(10_000, seed=2))
    dataset = train.shuffle(60_000, seed=1).batch(arguments.batch_size)
    model.fit(dataset, epochs=arguments.epochs, verbose=2)
    metrics = model.evaluate(test.batch(1_000), verbose=0, return_dict=True)
    if strategy.extended.should_checkpoint:  # Worker 0.
        print(json.dumps(metrics), flush=True)


def two_towers() -> keras.Model:
    """Returns a model of `user` and `film`, int64 [batch], that gives logits of [batch, 1]."""
    user = keras.Input([], dtype="int64", name="user")
    film = keras.Input([], dtype="int64", name="film")
    of_user = keras.layers.Embedding(NUM_USERS, 16, name="users")(user)  # [batch, 16]
    of_film = keras.layers.Embedding(NUM_FILMS, 16, name="films")(film)  # [batch, 16]
    of_user = keras.layers.Dense(16)(keras.layers.Dense(32, activation="relu")(of_user))
    of_film = keras.layers.Dense(16)(keras.layers.Dense(32, activation="relu")(of_film))
    logits = keras.layers.Dot(1)([of_user, of_film])  # [batch, 1]
    return keras.Model({"user": user, "film": film}, logits)


if __name__ == "__main__":
    main()
