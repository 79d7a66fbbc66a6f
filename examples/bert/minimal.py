"""Pretrains a small BERT on English text: masked words and next sentences. A file to copy.

    tfdist run --num-instances 2 -- python examples/bert/minimal.py

Without `tfdist run` it trains alone. The text is Python's language reference, which every Python
has; its last tenth is held out. The last line of worker 0 is the evaluation there, as JSON.
"""

import argparse
import json
import os
import re
from collections import Counter

import numpy as np

from tfdist.cluster.instances import find_instance

PAD, CLS, SEP, MASK, UNKNOWN = range(5)  # ids of the special words
NUM_WORDS = 3000  # in the vocabulary, with the special ones
SEQUENCE, MASKS = 64, 10  # words in a sequence, and how many of them are to be predicted
WIDTH, LAYERS, HEADS = 128, 2, 2
NUM_SAMPLES = {"train": 8192, "test": 640}


def main() -> None:
    parser = argparse.ArgumentParser(description="Pretrain a small BERT, alone or with others.")
    parser.add_argument("--num-steps", type=int, default=700, help="training steps")
    parser.add_argument("--batch-size", type=int, default=32, help="sequences in each worker")
    parser.add_argument("--learning-rate", type=float, default=0.002, help="learning rate")
    parser.add_argument("--model-dir", help="folder of checkpoints (default: a temporary one)")
    arguments = parser.parse_args()
    find_instance()  # Reports a wrong TF_CONFIG before TensorFlow is imported.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Only errors of TensorFlow's C++ code.
    train(arguments)


def read_words() -> np.ndarray:
    """Returns the text as ids of words; the most frequent ones have ids of their own."""
    from pydoc_data.topics import topics

    words = re.findall(r"[a-z]+|[.]", " ".join(topics.values()).lower())
    frequent = [word for word, _ in Counter(words).most_common(NUM_WORDS - UNKNOWN - 1)]
    ids = {word: UNKNOWN + 1 + index for index, word in enumerate(frequent)}
    return np.array([ids.get(word, UNKNOWN) for word in words], np.int32)


def make_samples(words: np.ndarray, number: int, seed: int) -> dict[str, np.ndarray]:
    """Returns samples: [CLS] a segment [SEP] another one, which follows in half of the samples.

    Of the words to predict, 80 % are replaced by [MASK], 10 % by a random word, and 10 % stay
    (Devlin et al., "BERT", 2018, section 3.1).
    """
    random = np.random.default_rng(seed)
    half = (SEQUENCE - 2) // 2
    starts = random.integers(len(words) - 2 * half, size=number)
    follows = random.integers(2, size=number)
    seconds = np.where(follows, starts + half, random.integers(len(words) - half, size=number))
    ids = np.full([number, SEQUENCE], SEP, np.int32)
    ids[:, 0] = CLS
    ids[:, 1 : half + 1] = words[starts[:, None] + np.arange(half)]
    ids[:, half + 2 :] = words[seconds[:, None] + np.arange(half)]
    places = np.argsort(random.random([number, 2 * half]), axis=1)[:, :MASKS] + 1
    places += places > half  # Neither [CLS] nor [SEP] is to be predicted.
    right = np.take_along_axis(ids, places, axis=1)
    chance = random.random([number, MASKS])
    other = random.integers(UNKNOWN + 1, NUM_WORDS, size=[number, MASKS])
    np.put_along_axis(
        ids, places, np.where(chance < 0.8, MASK, np.where(chance < 0.9, other, right)), axis=1
    )
    return {
        "ids": ids,  # [samples, SEQUENCE]
        "places": places.astype(np.int32),  # [samples, MASKS]
        "words": right,  # [samples, MASKS]
        "follows": follows.astype(np.int32),  # [samples]
    }


def train(arguments: argparse.Namespace) -> None:
    """Trains, evaluates on the text that is held out, and prints the metrics."""
    import tensorflow as tf

    import tfdist.estimator as tfe
    from tfdist import training
    from tfdist.strategies import strategy_for_run

    v1, layers = tf.compat.v1, tf.keras.layers
    v1.logging.set_verbosity(v1.logging.INFO)
    tf.keras.utils.set_random_seed(5)  # The same first weights in all workers.
    words = read_words()
    held_out = len(words) // 10
    samples = make_samples(words[:-held_out], NUM_SAMPLES["train"], seed=5)
    test_samples = make_samples(words[-held_out:], NUM_SAMPLES["test"], seed=6)

    def train_input_fn(input_context: tf.distribute.InputContext | None = None) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(samples)
        dataset = dataset.shuffle(len(samples["ids"]), seed=5).repeat()
        if input_context is not None:
            # Each worker takes its part of the same order: together they see what one would.
            dataset = dataset.shard(
                input_context.num_input_pipelines, input_context.input_pipeline_id
            )
        return dataset.batch(arguments.batch_size, drop_remainder=True)

    def test_input_fn() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(test_samples).batch(32)

    def bert(features: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the logits of the masked words, and whether the second segment follows."""
        normal = tf.keras.initializers.TruncatedNormal(stddev=0.06)

        def dense(units: int, activation: object = None) -> object:
            return layers.Dense(units, activation, kernel_initializer=normal)

        words = layers.Embedding(NUM_WORDS, WIDTH, embeddings_initializer=normal)
        places = layers.Embedding(SEQUENCE, WIDTH, embeddings_initializer=normal)
        hidden = words(features["ids"]) + places(tf.range(SEQUENCE))  # [batch, SEQUENCE, WIDTH]
        hidden = layers.LayerNormalization()(hidden)
        for _ in range(LAYERS):
            attention = layers.MultiHeadAttention(HEADS, WIDTH // HEADS, kernel_initializer=normal)
            hidden = layers.LayerNormalization()(hidden + attention(hidden, hidden))
            inner = dense(4 * WIDTH, tf.nn.gelu)(hidden)  # [batch, SEQUENCE, 4 WIDTH]
            hidden = layers.LayerNormalization()(hidden + dense(WIDTH)(inner))
        masked = tf.gather(hidden, features["places"], batch_dims=1)  # [batch, MASKS, WIDTH]
        masked = layers.LayerNormalization()(dense(WIDTH, tf.nn.gelu)(masked))
        pooled = dense(WIDTH, "tanh")(hidden[:, 0])  # [batch, WIDTH], made of the first word
        return dense(NUM_WORDS)(masked), dense(2)(pooled)

    def model_fn(features: dict[str, tf.Tensor], mode: str) -> tfe.EstimatorSpec:
        word_logits, follow_logits = bert(features)
        cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits
        # Means over this worker's batch; the optimizer divides by the number of workers.
        mlm_loss = tf.reduce_mean(cross_entropy(features["words"], word_logits))
        nsp_loss = tf.reduce_mean(cross_entropy(features["follows"], follow_logits))
        loss = mlm_loss + nsp_loss
        if mode == tfe.ModeKeys.EVAL:
            guesses = tf.argmax(word_logits, axis=-1)
            metrics = {
                "mlm_loss": v1.metrics.mean(mlm_loss),
                "nsp_loss": v1.metrics.mean(nsp_loss),
                "mlm_acc": v1.metrics.accuracy(features["words"], guesses),
            }
            return tfe.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)

        optimizer = training.AdamW(
            arguments.learning_rate,
            weight_decay=0.01,
            exclude_from_weight_decay=["bias", "beta", "gamma"],
        )
        gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)

        def apply_on_host(*host_gradients: tf.Tensor) -> tf.Operation:
            # Sums each gradient over the workers and updates the weights, on the host.
            return optimizer.apply_gradients(zip(host_gradients, variables, strict=True))

        return tfe.EstimatorSpec(mode, loss=loss, host_call=(apply_on_host, gradients))

    config = tfe.RunConfig(train_distribute=strategy_for_run())
    estimator = tfe.Estimator(model_fn, arguments.model_dir, config)
    metrics, _ = tfe.train_and_evaluate(
        estimator,
        tfe.TrainSpec(train_input_fn, max_steps=arguments.num_steps),
        tfe.EvalSpec(test_input_fn, steps=None),
    )
    if metrics is not None and estimator.config.is_chief:
        print(json.dumps({name: float(value) for name, value in metrics.items()}), flush=True)


if __name__ == "__main__":
    main()
