"""Trains a text classifier, then goes on with a larger vocabulary, warm-started from the first.

    python examples/estimator/reviews_warm_start.py

The words that both vocabularies have keep their embeddings, wherever they stand; new ones begin at
zero. The last line is both evaluations as JSON. With `import tensorflow.estimator as tfe` the same
program runs in TensorFlow 2.15.
"""

import argparse
import json
import os
import random
import tempfile
from collections.abc import Callable
from typing import Any

import tensorflow as tf

import tfdist.estimator as tfe

v1 = tf.compat.v1
GOOD = ["lovely", "great", "funny", "brilliant", "touching", "delightful", "superb", "clever"]
BAD = ["boring", "awful", "clumsy", "dull", "noisy", "dreadful", "flat", "tedious"]
OTHER = ["the", "film", "was", "plot", "and", "actors", "a", "story"]

Reviews = tuple[list[str], list[list[float]]]


def write_reviews(count: int, words: int, seed: int) -> Reviews:
    """Returns texts and labels; a good review has more good words than bad ones."""
    source = random.Random(seed)
    texts, labels = [], []
    for i in range(count):
        label = i % 2
        mostly, rarely = (GOOD, BAD) if label else (BAD, GOOD)
        text = source.choices(mostly[:words], k=3) + source.choices(rarely[:words], k=1)
        text += source.choices(OTHER, k=source.randint(2, 6))
        source.shuffle(text)
        texts.append(" ".join(text))
        labels.append([float(label)])
    return texts, labels


def make_input_fn(reviews: Reviews, *, epochs: int | None) -> Callable[[], tf.data.Dataset]:
    def input_fn() -> tf.data.Dataset:
        texts, labels = reviews
        dataset = tf.data.Dataset.from_tensor_slices(({"text": texts}, labels))
        return dataset.repeat(epochs).batch(16)

    return input_fn


def model_fn(
    features: dict[str, tf.Tensor], labels: tf.Tensor | None, mode: str, params: dict[str, Any]
) -> tfe.EstimatorSpec:
    with open(params["vocabulary"]) as file:
        size = len(file.read().split())
    table = tf.lookup.StaticVocabularyTable(
        tf.lookup.TextFileInitializer(
            params["vocabulary"],
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
        ),
        num_oov_buckets=2,
    )
    ids = table.lookup(v1.string_split(features["text"]))  # sparse [batch, words]
    embeddings = v1.get_variable("embeddings", [size + 2, 4])
    text = v1.nn.embedding_lookup_sparse(embeddings, ids, None, combiner="mean")  # [batch, 4]
    hidden = v1.layers.dense(text, 8, activation=tf.nn.tanh, name="hidden")
    logits = v1.layers.dense(hidden, 1, name="logits")
    # The head makes loss, metrics and predictions from the logits.
    head = tfe.BinaryClassHead()
    if mode != tfe.ModeKeys.TRAIN:
        return head.create_estimator_spec(features, mode, logits, labels=labels)
    optimizer = v1.train.MomentumOptimizer(0.5, 0.9)

    def train_op_fn(loss: tf.Tensor) -> tf.Operation:
        return optimizer.minimize(loss, global_step=v1.train.get_global_step())

    return head.create_estimator_spec(features, mode, logits, labels, train_op_fn=train_op_fn)


def main() -> None:
    parser = argparse.ArgumentParser(description="Tell good reviews from bad ones.")
    parser.add_argument("--model-dir", default=None, help="where checkpoints go")
    parser.add_argument("--num-steps", type=int, default=60, help="steps of each training")
    arguments = parser.parse_args()
    v1.logging.set_verbosity(v1.logging.INFO)
    model_dir = arguments.model_dir or tempfile.mkdtemp()
    config = tfe.RunConfig(tf_random_seed=1)
    few, many = write_reviews(200, 4, seed=1), write_reviews(200, 8, seed=2)

    with tempfile.TemporaryDirectory() as folder:
        old_words, new_words = (os.path.join(folder, f"{name}.txt") for name in ("old", "new"))
        with open(old_words, "w") as old, open(new_words, "w") as new:
            old.write("\n".join([*OTHER, *GOOD[:4], *BAD[:4]]))
            new.write("\n".join([*BAD, *GOOD, *OTHER]))

        first = tfe.Estimator(
            model_fn, os.path.join(model_dir, "first"), config, params={"vocabulary": old_words}
        )
        first.train(make_input_fn(few, epochs=None), max_steps=arguments.num_steps)
        first_metrics = first.evaluate(make_input_fn(many, epochs=1))

        vocabulary = tfe.VocabInfo(
            new_vocab=new_words,
            new_vocab_size=24,
            num_oov_buckets=2,
            old_vocab=old_words,
            backup_initializer=v1.zeros_initializer(),
        )
        second = tfe.Estimator(
            model_fn,
            os.path.join(model_dir, "second"),
            config,
            params={"vocabulary": new_words},
            warm_start_from=tfe.WarmStartSettings(
                first.model_dir, var_name_to_vocab_info={"embeddings": vocabulary}
            ),
        )
        second.train(make_input_fn(many, epochs=None), max_steps=arguments.num_steps)
        second_metrics = second.evaluate(make_input_fn(many, epochs=1))
        texts = ["the story was superb and clever", "tedious and flat film"]
        good, bad = second.predict(make_input_fn((texts, [[1.0], [0.0]]), epochs=1))
    result = {
        "old_vocabulary": {name: float(value) for name, value in first_metrics.items()},
        "new_vocabulary": {name: float(value) for name, value in second_metrics.items()},
        "good": float(good["logistic"][0]),
        "bad": float(bad["logistic"][0]),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
