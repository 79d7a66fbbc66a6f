"""The features of tf.estimator's guides, each used twice in one process."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as v1

import tfdist.estimator as tfe
from tfdist.strategies import strategy_for_run

Found = dict[str, Any]
_GLOBAL_BATCH, _STEPS = 16, 4
_COLUMN = tf.feature_column
_EMBEDDING = "dnn/input_from_feature_columns/input_layer/word_embedding/embedding_weights"


def run_twice(folder: str) -> list[Found] | None:
    """Returns the numbers of both rounds on the chief; None on other workers.

    The second round begins with a canned model that starts from that of the first one, with another
    vocabulary, before all is done again.
    """
    strategy = strategy_for_run()
    own = Path(folder) / f"words-{strategy.extended.collectives.worker_index}"
    _write_words(own, "old", "a b c")
    _write_words(own, "new", "b a c d")

    def config(name: str) -> tfe.RunConfig:
        return tfe.RunConfig(
            model_dir=f"{folder}/{name}",
            train_distribute=strategy,
            tf_random_seed=1,
            save_checkpoints_steps=_STEPS,
        )

    first = _run(config, "first", own)
    info = tfe.VocabInfo(f"{own}/new.txt", 4, 0, f"{own}/old.txt", 3)
    warm = _canned(
        config("warm"),
        own / "new.txt",
        4,
        tfe.WarmStartSettings(f"{folder}/first-canned", var_name_to_vocab_info={_EMBEDDING: info}),
    )
    in_memory = tfe.experimental.InMemoryEvaluatorHook(warm, _input_fn, steps=1, every_n_iter=2)
    warm.train(_input_fn, hooks=[in_memory], max_steps=1)
    second = _run(config, "second", own)
    if not strategy.extended.should_checkpoint:
        return None
    return [{**first, **_weights(warm)}, second]


def _run(config: Any, folder: str, words: Path) -> Found:
    """Trains a canned model, and one with heads and a table; returns weights and metrics."""
    canned = _canned(config(f"{folder}-canned"), words / "old.txt", 3)
    stop = tfe.experimental.stop_if_no_decrease_hook(canned, "loss", 1000)
    metrics, exported = tfe.train_and_evaluate(
        canned,
        tfe.TrainSpec(_input_fn, max_steps=_STEPS, hooks=[stop]),
        tfe.EvalSpec(
            _input_fn, steps=2, exporters=[tfe.FinalExporter("final", _receiver)], throttle_secs=0
        ),
    )
    own = _with_table(config(f"{folder}-own"), words).train(_input_fn, max_steps=_STEPS)
    found = {f"metric {name}": value for name, value in metrics.items()}
    if not canned.config.is_chief:
        return found
    found["exported"] = len([path for path in exported if path])
    for estimator, kind in ((canned, "canned"), (own, "own")):
        found.update({f"{kind} {name}": one for name, one in _weights(estimator).items()})
    return found


def _weights(estimator: tfe.Estimator) -> Found:
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


def _write_words(folder: Path, name: str, words: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.txt").write_text("\n".join(words.split()) + "\n")


def _input_fn(mode: str, input_context: Any = None) -> tf.data.Dataset:
    random = np.random.RandomState(0)
    number = np.arange(4 * _GLOBAL_BATCH)
    words = np.array(["a", "b", "c", "d"])
    features = {
        "age": random.rand(len(number), 1).astype(np.float32),
        "word": words[number % 4],
        "town": words[number % 3],
        "street": words[number % 2],
        "id": number % 7,
    }
    dataset = tf.data.Dataset.from_tensor_slices((features, number[:, None] % 2))
    if input_context is None:
        return dataset.batch(_GLOBAL_BATCH)
    workers = input_context.num_input_pipelines
    return (
        dataset.batch(_GLOBAL_BATCH // workers)
        .shard(workers, input_context.input_pipeline_id)
        .repeat()
    )


def _columns(vocabulary: Path, size: int) -> tuple[list[Any], list[Any]]:
    """Returns the wide and the deep columns: each kind of the guide."""
    age = _COLUMN.numeric_column("age")
    ages = _COLUMN.bucketized_column(age, [0.3, 0.6])
    word = _COLUMN.categorical_column_with_vocabulary_file("word", str(vocabulary), size)
    number = _COLUMN.categorical_column_with_identity("id", 7)
    hashed = _COLUMN.categorical_column_with_hash_bucket("street", 5)
    listed = _COLUMN.categorical_column_with_vocabulary_list("town", ["a", "c"], num_oov_buckets=1)
    wide = [ages, number, _COLUMN.crossed_column([ages, "word"], 8)]
    deep = [
        age,
        _COLUMN.embedding_column(word, 3),
        *map(_COLUMN.indicator_column, (hashed, listed)),
    ]
    return wide, deep


def _canned(
    config: tfe.RunConfig, vocabulary: Path, size: int, warm_start: Any = None
) -> tfe.Estimator:
    wide, deep = _columns(vocabulary, size)
    return tfe.DNNLinearCombinedClassifier(
        linear_feature_columns=wide,
        dnn_feature_columns=deep,
        dnn_hidden_units=[4],
        config=config,
        warm_start_from=warm_start,
    )


def _with_table(config: tfe.RunConfig, words: Path) -> tfe.Estimator:
    """Returns a model with two heads, a table of words, and averages of its weights."""
    head = tfe.MultiHead([tfe.BinaryClassHead(name="class"), tfe.RegressionHead(name="number")])

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        whole, line = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
        initializer = tf.lookup.TextFileInitializer(
            f"{words}/old.txt", tf.string, whole, tf.int64, line
        )
        ids = tf.lookup.StaticVocabularyTable(initializer, 1).lookup(features["word"])  # [batch]
        weight = v1.get_variable("weight", [4, 1], initializer=v1.ones_initializer())
        logits = tf.gather(weight, ids)  # [batch, 1]
        optimizer = v1.train.AdamOptimizer(0.1)

        def train_op_fn(loss: Any) -> Any:
            train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
            with tf.control_dependencies([train_op]):
                return v1.train.ExponentialMovingAverage(0.5).apply([weight])

        return head.create_estimator_spec(
            features,
            mode,
            {"class": logits, "number": logits},
            {"class": labels, "number": tf.cast(labels, tf.float32)},
            train_op_fn=train_op_fn,
        )

    return tfe.Estimator(model_fn, config=config)


def _receiver() -> Any:
    examples = v1.placeholder(tf.string, [None])
    features = v1.io.parse_example(
        examples,
        {
            "age": tf.io.FixedLenFeature([1], tf.float32),
            **dict.fromkeys(("word", "town", "street"), tf.io.FixedLenFeature([], tf.string)),
            "id": tf.io.FixedLenFeature([], tf.int64),
        },
    )
    return tfe.export.ServingInputReceiver(features, examples)
