"""Trains tf.estimator's wide-and-deep classifier on ratings of films, with divided tables.

    python examples/recommender/wide_deep.py
    tfdist run --num-instances 2 -- python examples/recommender/wide_deep.py
    tfdist run --engine horovod --num-instances 2 -- python examples/recommender/wide_deep.py

Each worker holds its share of the rows of the embeddings and of the linear weights. The last line
of worker 0 is the evaluation of ratings that were not trained, as JSON.
"""

import argparse
import json
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Only errors of TensorFlow's C++ code.

import tensorflow as tf
from clicks import NUM_FILMS, NUM_USERS, ratings

import tfdist.estimator as tfe
from tfdist.strategies import strategy_for_run

BATCH_SIZE = 256  # Of each worker.


def main() -> None:
    parser = argparse.ArgumentParser(description="Train wide and deep on made ratings of films.")
    parser.add_argument("--steps", type=int, default=400, help="steps of training")
    parser.add_argument("--model-dir", help="folder of checkpoints (default: a new one)")
    arguments = parser.parse_args()

    # TensorFlow's own partitioner: small variables stay whole on each worker.
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=8 << 10, max_shards=1 << 20
    )
    strategy = strategy_for_run(variable_partitioner=partitioner)
    column = tf.feature_column
    user = column.categorical_column_with_identity("user", NUM_USERS)
    film = column.categorical_column_with_identity("film", NUM_FILMS)
    estimator = tfe.DNNLinearCombinedClassifier(
        model_dir=arguments.model_dir,
        linear_feature_columns=[user, film],
        dnn_feature_columns=[
            column.embedding_column(user, 16),
            column.embedding_column(film, 16),
        ],
        dnn_hidden_units=[32, 16],
        dnn_optimizer=lambda: tf.compat.v1.train.AdamOptimizer(0.005),
        config=tfe.RunConfig(tf_random_seed=1, train_distribute=strategy),
    )
    estimator.train(train_input, max_steps=arguments.steps)
    if strategy.extended.should_checkpoint:  # Worker 0.
        metrics = estimator.evaluate(test_input)
        print(json.dumps({name: float(value) for name, value in metrics.items()}), flush=True)


def train_input(input_context: Any) -> tf.data.Dataset:
    """Returns batches of this worker's ratings: int64 ids of [BATCH_SIZE], float32 labels."""
    dataset = tf.data.Dataset.from_tensor_slices(ratings(60_000, seed=1))
    if input_context is not None:
        dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return dataset.shuffle(60_000, seed=1).repeat().batch(BATCH_SIZE)


def test_input() -> tf.data.Dataset:
    """Returns batches of ratings that were not trained."""
    return tf.data.Dataset.from_tensor_slices(ratings(10_000, seed=2)).batch(1_000)


if __name__ == "__main__":
    main()
