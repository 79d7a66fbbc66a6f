"""The features of tf.estimator's guides, each used once or twice in one process."""

import itertools
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
_TEXTS = ("word", "town", "street")
_EMBEDDING = "dnn/input_from_feature_columns/input_layer/word_embedding/embedding_weights"


def run_rounds(folder: str, *, is_twice: bool) -> list[Found] | None:
    """Returns the numbers of each round on the chief; None on other workers.

    Before the second round a canned model starts from the first round's, with another vocabulary.
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
    rounds = [first, _run(config, "second", own)] if is_twice else [first]
    if not strategy.extended.should_checkpoint:
        return None
    first.update({f"warm {name}": one for name, one in _weights(warm).items()})
    return rounds


def _run(config: Any, folder: str, words: Path) -> Found:
    """Trains each kind of model; returns weights, metrics, predictions, and what exports serve."""
    canned = _canned(config(f"{folder}-canned"), words / "old.txt", 3)
    found = _evaluated(canned)
    own = _with_table(config(f"{folder}-own"), words)
    calls = itertools.count(1)
    # All workers stop after the next step, since the request reaches them with it.
    last = _STEPS - 1 if canned.config.num_worker_replicas > 1 else _STEPS
    stop = tfe.experimental.make_early_stopping_hook(
        own, lambda: next(calls) >= last, run_every_secs=None, run_every_steps=1
    )
    own.train(_input_fn, hooks=[stop], max_steps=2 * _STEPS)
    converted = tfe.model_to_estimator(_keras_model(), config=config(f"{folder}-keras"))
    converted.train(_input_of_ages, max_steps=_STEPS)
    listed = _of_lists(config(f"{folder}-lists"))
    listed.train(_input_fn, max_steps=_STEPS)
    if not canned.config.is_chief:
        return found
    [first, *_] = canned.predict(_input_fn)
    found["predicted"] = first["probabilities"]
    kinds = {"canned": canned, "own": own, "keras": converted, "lists": listed}
    for kind, estimator in kinds.items():
        found.update({f"{kind} {name}": one for name, one in _weights(estimator).items()})
    found["lists predicted"] = next(listed.predict(_input_fn))["predictions"]
    metrics = own.evaluate(_input_fn, steps=2, name="own")
    return found | {f"own metric {name}": value for name, value in metrics.items()}


def _evaluated(canned: tfe.Estimator) -> Found:
    """Trains and evaluates a model, with each exporter; returns metrics, and what is served."""
    with_more = tfe.add_metrics(canned, _more_metrics)
    stop = tfe.experimental.stop_if_no_decrease_hook(with_more, "loss", 1000)
    exporters = [
        tfe.FinalExporter("final", _receiver),
        tfe.LatestExporter("latest", _receiver),
        tfe.BestExporter("best", _receiver),
    ]
    metrics, exported = tfe.train_and_evaluate(
        with_more,
        tfe.TrainSpec(_input_fn, max_steps=_STEPS, hooks=[stop]),
        tfe.EvalSpec(_input_fn, steps=2, exporters=exporters, throttle_secs=0),
    )
    found = {f"metric {name}": value for name, value in metrics.items()}
    if canned.config.is_chief:
        found["exported"] = len([path for path in exported if path])
        found["served"] = _served(tf.compat.as_str_any(exported[0]))
    return found


def _more_metrics(labels: Any, predictions: Any) -> Found:
    return {"right": v1.metrics.accuracy(labels, predictions["class_ids"])}


def _served(folder: str) -> Any:
    """Returns the probabilities of an example that an exported model gives."""
    values = {
        "age": tf.train.Feature(float_list=tf.train.FloatList(value=[0.4])),
        "weight": tf.train.Feature(float_list=tf.train.FloatList(value=[2.0])),
        "id": tf.train.Feature(int64_list=tf.train.Int64List(value=[3])),
        **dict.fromkeys(_TEXTS, tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"a"]))),
    }
    example = tf.train.Example(features=tf.train.Features(feature=values)).SerializeToString()
    model = tf.saved_model.load(folder)
    return model.signatures["predict"](tf.constant([example]))["probabilities"].numpy()


def _weights(estimator: tfe.Estimator) -> Found:
    """Returns the numbers of a checkpoint; that of a Keras model has a text beside them."""
    values = {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}
    return {name: value for name, value in values.items() if not isinstance(value, bytes)}


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
        "weight": random.rand(len(number), 1).astype(np.float32),
        # Lists of 1 to 3: an empty word is none.
        "text": np.array([["a", "b", "d"], ["c", "", ""], ["b", "a", ""]])[number % 3],
        "sizes": tf.sparse.from_dense(np.array([[1, 2, 3], [4, 0, 0], [5, 6, 0.0]])[number % 3]),
    }
    return _shared(features, number[:, None] % 2, input_context)


def _input_of_ages(input_context: Any = None) -> tf.data.Dataset:
    ages = np.random.RandomState(0).rand(4 * _GLOBAL_BATCH, 1).astype(np.float32)
    return _shared(ages, 2.0 * ages, input_context)


def _shared(features: Any, labels: Any, input_context: Any) -> tf.data.Dataset:
    """Returns this worker's batches; all rows, once, without a worker."""
    dataset = tf.data.Dataset.from_tensor_slices((features, labels))
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
    weighted = _COLUMN.weighted_categorical_column(number, "weight")
    wide = [ages, number, weighted, _COLUMN.crossed_column([ages, "word"], 8)]
    deep = [
        age,
        _COLUMN.embedding_column(word, 3),
        *map(_COLUMN.indicator_column, (hashed, listed, weighted)),
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
    """Returns a model with each head, a table of words, and averages of its weights."""
    heads = (
        tfe.BinaryClassHead(name="class"),
        tfe.RegressionHead(name="number"),
        tfe.LogisticRegressionHead(name="share"),
        tfe.PoissonRegressionHead(name="count"),
        tfe.MultiClassHead(3, name="kind"),
        tfe.MultiLabelHead(3, name="marks"),
    )
    head = tfe.MultiHead(heads)

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        whole, line = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
        initializer = tf.lookup.TextFileInitializer(
            f"{words}/old.txt", tf.string, whole, tf.int64, line
        )
        ids = tf.lookup.StaticVocabularyTable(initializer, 1).lookup(features["word"])  # [batch]
        weight = v1.get_variable("weight", [4, 1], initializer=v1.ones_initializer())
        logits = tf.gather(weight, ids)  # [batch, 1]
        wide = logits * tf.constant([[1.0, 0.5, -1.0]])  # [batch, 3]
        optimizer = v1.train.AdamOptimizer(0.1)

        def train_op_fn(loss: Any) -> Any:
            train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
            with tf.control_dependencies([train_op]):
                return v1.train.ExponentialMovingAverage(0.5).apply([weight])

        return head.create_estimator_spec(
            features,
            mode,
            {one.name: wide if one.logits_dimension == 3 else logits for one in heads},
            {
                **dict.fromkeys(("class", "kind"), labels),
                **dict.fromkeys(("number", "share", "count"), tf.cast(labels, tf.float32)),
                "marks": tf.concat([labels, 1 - labels, labels], axis=1),  # [batch, 3]
            },
            train_op_fn=train_op_fn,
        )

    return tfe.Estimator(model_fn, config=config)


def _of_lists(config: tfe.RunConfig) -> tfe.Estimator:
    """Returns a model of columns of sequences, and of two columns that share an embedding."""

    def model_fn(features: Any, labels: Any, mode: str) -> tfe.EstimatorSpec:
        text = _COLUMN.sequence_categorical_column_with_vocabulary_list("text", ["a", "b", "c"])
        in_order, lengths = tf.keras.experimental.SequenceFeatures(
            [_COLUMN.embedding_column(text, 2), _COLUMN.sequence_numeric_column("sizes")]
        )(features)  # [batch, words, 3], [batch]
        pair = [
            _COLUMN.categorical_column_with_vocabulary_list(name, ["a", "b", "c", "d"])
            for name in ("word", "town")
        ]
        of_pair = tf.keras.layers.DenseFeatures(_COLUMN.shared_embeddings(pair, 2))(features)
        seeded = tf.keras.initializers.GlorotUniform(seed=1)
        recurrent = tf.keras.layers.SimpleRNN(
            3, kernel_initializer=seeded, recurrent_initializer="identity"
        )(in_order, mask=tf.sequence_mask(lengths))  # [batch, 3]
        logits = tf.keras.layers.Dense(1, kernel_initializer="ones")(
            tf.concat([recurrent, of_pair], axis=1)
        )
        return tfe.RegressionHead().create_estimator_spec(
            {}, mode, logits, labels, optimizer=v1.train.AdamOptimizer(0.1)
        )

    return tfe.Estimator(model_fn, config=config)


def _keras_model() -> Any:
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(4, "tanh", kernel_initializer="ones", input_shape=[1]),
            tf.keras.layers.Dense(1, kernel_initializer="ones"),
        ]
    )
    model.compile(tf.keras.optimizers.legacy.Adam(0.1), "mse")
    return model


def _receiver() -> Any:
    examples = v1.placeholder(tf.string, [None])
    features = v1.io.parse_example(
        examples,
        {
            "age": tf.io.FixedLenFeature([1], tf.float32),
            "weight": tf.io.FixedLenFeature([1], tf.float32),
            **dict.fromkeys(_TEXTS, tf.io.FixedLenFeature([], tf.string)),
            "id": tf.io.FixedLenFeature([], tf.int64),
        },
    )
    return tfe.export.ServingInputReceiver(features, examples)
