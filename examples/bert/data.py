"""Input of BERT's pretraining: one random sample, English text, or TFRecords of the public format.

Checks and preparations need no TensorFlow. All workers together read what one would: the seed and
the epoch decide one order of the samples, a step takes the next ones in this order, and each worker
reads its share of the step's micro-batches.

    order of epoch 0                                  epoch 1
    | 7 3 1 9 | 4 0 6 2 | 5 8 ... | ...               two micro-batches of two samples a worker
      step 0    step 1    step 2
      7 3       4 0                 worker 0
          1 9       6 2             worker 1
"""

from __future__ import annotations

import functools
import glob
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import records
import sample_text
import wordpieces
from google.protobuf.message import DecodeError
from records import DataError

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["NAMES", "DataError", "Dataset", "SampleShape", "open_dataset", "unigram_entropy"]

Name = Literal["generated", "sample", "pretraining"]
NAMES: tuple[Name, ...] = ("generated", "sample", "pretraining")


@dataclass(frozen=True, kw_only=True)
class SampleShape:
    """The sizes that a model expects of a sample.

    Attributes:
      sequence_length: Pieces of a sample, with [PAD].
      mask_tokens: Places for words to predict.
      vocab_size: WordPieces of the vocabulary.
    """

    sequence_length: int
    mask_tokens: int
    vocab_size: int

    def __post_init__(self) -> None:
        if not 1 <= self.mask_tokens <= self.sequence_length:
            raise DataError(
                f"--mask-tokens {self.mask_tokens} does not fit --sequence-length "
                f"{self.sequence_length}. Choose from 1 to {self.sequence_length}."
            )

    def sizes(self) -> dict[str, int]:
        """Returns the number of values of each feature in a record."""
        in_sequence = ("input_ids", "input_mask", "segment_ids")
        in_masks = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
        return {
            **dict.fromkeys(in_sequence, self.sequence_length),
            **dict.fromkeys(in_masks, self.mask_tokens),
            "next_sentence_labels": 1,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Samples that have been found and checked.

    Attributes:
      name: "generated", "sample" or "pretraining".
      shape: The sizes of a sample.
      seed: Decides the order of the samples; with "generated", the sample.
      is_evaluation: Whether the samples are read once, in the order of the files.
      files: The records; None with "generated".
      vocab_file: The vocabulary of the records, if it is known.
    """

    name: Name
    shape: SampleShape
    seed: int
    is_evaluation: bool
    files: records.RecordFiles | None = None
    vocab_file: Path | None = None

    @property
    def num_samples(self) -> int:
        """The number of different samples: 1 with "generated", which repeats it."""
        return 1 if self.files is None else len(self.files)

    def describe(self) -> str:
        """Returns a line about the samples."""
        sizes = f"{self.shape.sequence_length} tokens with up to {self.shape.mask_tokens} masked"
        if self.files is None:
            return f"generated: one random sample of {sizes}, repeated"
        paths = self.files.paths
        of_files = str(paths[0]) if len(paths) == 1 else f"{len(paths)} files"
        held_out = " held out" if self.name == "sample" and self.is_evaluation else ""
        return f"{self.name}: {self.num_samples:,} samples{held_out} of {sizes}, from {of_files}"

    def input_fn(
        self,
        *,
        micro_batch_size: int,
        micro_batches_per_step: int = 1,
        share: tuple[int, int] | None = None,
        first_step: int = 0,
    ) -> Callable[[], tf.data.Dataset]:
        """Returns a function for `Estimator.train` or `evaluate`: a worker's micro-batches.

        An element is a dict with int32 `input_ids`, `input_mask` and `segment_ids` [batch,
        sequence], int32 `masked_lm_positions` and `masked_lm_ids` and float32 `masked_lm_weights`
        [batch, masks], and int32 `next_sentence_labels` [batch].

        For training there is no end, and each epoch has another order. For evaluation each sample
        is read once, and the last micro-batch may be smaller; "generated" has one micro-batch.

        Args:
          micro_batch_size: Samples of a micro-batch.
          micro_batches_per_step: Micro-batches that all workers together take in a step:
            accumulation times replicas times workers.
          share: The first of this worker's micro-batches in a step, and their number; all by
            default. A worker's replicas and accumulation take them in turn.
          first_step: Where to begin: the number of steps that were trained before.

        Raises:
          DataError: If there are fewer samples than training takes in a step.
        """
        per_step = micro_batch_size * micro_batches_per_step
        if self.files is None:
            return lambda: self._repeated(micro_batch_size)
        if not self.is_evaluation and self.num_samples < per_step:
            raise DataError(
                f"{self.name} has {self.num_samples:,} samples, a step takes {per_step:,}. Give "
                "more files, or lower --gradient-accumulation, --micro-batch-size or the replicas."
            )
        order = Order(
            num_samples=self.num_samples,
            seed=None if self.is_evaluation else self.seed,
            micro_batch_size=micro_batch_size,
            micro_batches_per_step=micro_batches_per_step,
            share=share or (0, micro_batches_per_step),
            first_step=first_step,
        )
        return lambda: self._read(order)

    def _repeated(self, micro_batch_size: int) -> tf.data.Dataset:
        import tensorflow as tf

        sample = {
            name: np.array(values, np.float32 if name == "masked_lm_weights" else np.int32)
            for name, values in generated_sample(self.shape, self.seed).items()
        }
        sample["next_sentence_labels"] = sample["next_sentence_labels"][0]
        endless = tf.data.Dataset.from_tensors(sample).repeat().batch(micro_batch_size, True)
        return endless.take(1) if self.is_evaluation else endless

    def _read(self, order: Order) -> tf.data.Dataset:
        import tensorflow as tf

        assert self.files is not None
        files = self.files
        features = {
            name: tf.io.FixedLenFeature(
                [] if name == "next_sentence_labels" else [size],
                tf.float32 if name == "masked_lm_weights" else tf.int64,
            )
            for name, size in self.shape.sizes().items()
        }

        def messages(index: np.ndarray) -> np.ndarray:
            return np.array(files.read(order.samples(int(index))), object)

        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def micro_batch(index: tf.Tensor) -> dict[str, tf.Tensor]:
            serialized = tf.numpy_function(messages, [index], tf.string)  # [batch]
            serialized.set_shape([None if self.is_evaluation else order.micro_batch_size])
            parsed = tf.io.parse_example(serialized, features)
            return {
                name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value
                for name, value in parsed.items()
            }

        batches = tf.data.Dataset.range(order.count()).map(micro_batch).prefetch(2)
        # There is nothing to tune, and a session waits for the thread that tunes, up to 60 s.
        options = tf.data.Options()
        options.autotune.enabled = False
        return batches.with_options(options)

    def word_counts(self) -> np.ndarray:
        """Returns how often each word is to be predicted, by id: float64 [vocabulary].

        All samples are read for it: 30,000 take a second.
        """
        if self.files is None:
            samples = iter([generated_sample(self.shape, self.seed)])
        else:
            samples = map(records.decode, self.files.read(range(self.num_samples)))
        counts = np.zeros(self.shape.vocab_size)
        for sample in samples:
            ids = np.array(sample["masked_lm_ids"], np.int64)
            counts += np.bincount(ids, sample["masked_lm_weights"], self.shape.vocab_size)
        return counts


def unigram_entropy(evaluated: Dataset, known: Dataset) -> float:
    """Returns the MLM loss, in nats, of a model that knows only the words' frequencies.

    It predicts each word of `evaluated` with its frequency in `known`, such as the training text.
    """
    frequencies = known.word_counts() + 1.0  # A word that is not there is possible, too.
    counts = evaluated.word_counts()
    nats = -np.log(frequencies / frequencies.sum())
    return float(np.sum(counts * nats) / counts.sum())


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order in which a worker reads samples.

    Attributes:
      num_samples: The samples of an epoch.
      seed: Decides the order within each epoch; None reads the samples once, in their own order.
      micro_batch_size, micro_batches_per_step, share, first_step: As in `Dataset.input_fn`.
    """

    num_samples: int
    seed: int | None
    micro_batch_size: int
    micro_batches_per_step: int
    share: tuple[int, int]
    first_step: int = 0

    def __post_init__(self) -> None:
        first, count = self.share
        if not 0 <= first < first + count <= self.micro_batches_per_step:
            raise ValueError(
                f"a share of {count} micro-batches from number {first} on is not within a step of "
                f"{self.micro_batches_per_step}."
            )

    def count(self) -> int:
        """Returns the number of this worker's micro-batches; 2**62 stands for no end."""
        if self.seed is not None:
            return 2**62
        total = math.ceil(self.num_samples / self.micro_batch_size)
        steps, rest = divmod(total, self.micro_batches_per_step)
        first, count = self.share
        skipped = self.first_step * count
        return max(0, steps * count + min(max(rest - first, 0), count) - skipped)

    def samples(self, index: int) -> np.ndarray:
        """Returns the samples of this worker's micro-batch `index`: int64 [batch]."""
        first, count = self.share
        step, within = divmod(index, count)
        of_all = (self.first_step + step) * self.micro_batches_per_step + first + within
        start = of_all * self.micro_batch_size
        positions = np.arange(start, start + self.micro_batch_size)
        if self.seed is None:
            return positions[positions < self.num_samples]
        epochs, in_epoch = np.divmod(positions, self.num_samples)
        return np.array(
            [
                epoch_order(self.num_samples, self.seed, int(epoch))[position]
                for epoch, position in zip(epochs, in_epoch, strict=True)
            ]
        )


@functools.lru_cache(maxsize=2)
def epoch_order(num_samples: int, seed: int, epoch: int) -> np.ndarray:
    """Returns the samples' order in an epoch, the same for all workers: int64 [samples]."""
    return np.random.default_rng([seed, epoch]).permutation(num_samples)


def generated_sample(shape: SampleShape, seed: int) -> dict[str, list[int] | list[float]]:
    """Returns the features of a random sample whose masked positions are distinct."""
    random = np.random.default_rng(seed)
    length, masks = shape.sequence_length, shape.mask_tokens
    return {
        "input_ids": random.integers(shape.vocab_size, size=length).tolist(),
        "input_mask": [1] * length,
        "segment_ids": [int(place >= length // 2) for place in range(length)],
        "masked_lm_positions": np.sort(random.permutation(length)[:masks]).tolist(),
        "masked_lm_ids": random.integers(shape.vocab_size, size=masks).tolist(),
        "masked_lm_weights": [1.0] * masks,
        "next_sentence_labels": [int(random.integers(2))],
    }


def open_dataset(
    name: Name,
    shape: SampleShape,
    *,
    seed: int,
    input_files: Sequence[str] = (),
    vocab_file: Path | str | None = None,
    evaluation: bool = False,
) -> Dataset:
    """Finds and checks the samples of a dataset; makes those of "sample" at the first use.

    Args:
      name: "generated", "sample" or "pretraining".
      shape: The sizes that the model expects.
      seed: Decides the order of the samples, and how those of "sample" and "generated" are made.
      input_files: Paths or patterns of the TFRecord files of "pretraining".
      vocab_file: The vocabulary. "sample" makes its own if there is none.
      evaluation: Whether to read the samples once; of "sample" those that are held out.

    Raises:
      DataError: If something is missing or does not fit the model.
    """
    if name not in NAMES:
        raise DataError(f"there is no dataset {name!r}. Choose one of {', '.join(NAMES)}.")
    if seed < 0:
        raise DataError(f"the random seed is {seed}. Choose 0 or more.")
    if input_files and name != "pretraining":
        raise DataError(f"--dataset {name} reads no --input-files. Choose --dataset pretraining.")
    path = None if vocab_file is None else Path(vocab_file)
    if path is not None:
        _check_vocabulary(path, shape)
    files = None
    if name == "pretraining":
        files = records.open_files(_find_files(input_files))
        _check_records(files, shape)
    elif name == "sample":
        prepared = sample_text.prepare(
            sequence_length=shape.sequence_length,
            mask_tokens=shape.mask_tokens,
            vocab_size=shape.vocab_size,
            seed=seed,
            vocab_file=path,
        )
        path = prepared.vocabulary
        files = records.open_files([prepared.held_out if evaluation else prepared.training])
    return Dataset(
        name=name,
        shape=shape,
        seed=seed,
        is_evaluation=evaluation,
        files=files,
        vocab_file=path,
    )


def _find_files(patterns: Sequence[str]) -> list[Path]:
    if not patterns:
        raise DataError("--dataset pretraining reads TFRecord files. Give them as --input-files.")
    found: list[Path] = []
    for pattern in patterns:
        paths = sorted(glob.glob(pattern, recursive=True))
        if not paths:
            raise DataError(f"--input-files {pattern}: there is no such file.")
        found.extend(map(Path, paths))
    return list(dict.fromkeys(found))


def _check_vocabulary(path: Path, shape: SampleShape) -> None:
    size = len(wordpieces.read_vocabulary(path))
    if size != shape.vocab_size:
        raise DataError(
            f"the vocabulary {path} has {size:,} pieces, the model {shape.vocab_size:,}. Give "
            f"--vocab-size {size}, or the vocabulary that the model was made for."
        )


def _check_records(files: records.RecordFiles, shape: SampleShape) -> None:
    """Checks the first record of each file."""
    first = 0
    for path, offsets in zip(files.paths, files.offsets, strict=True):
        [message] = files.read([first])
        first += len(offsets)
        try:
            sample = records.decode(message)
        except DecodeError:
            raise DataError(f"{path}: its first record is no tf.train.Example.") from None
        missing = [feature for feature in shape.sizes() if not sample.get(feature)]
        if missing:
            raise DataError(
                f"{path}: its records have no {', '.join(missing)}. Make them with "
                "create_pretraining_data.py."
            )
        _check_sizes(path, sample, shape)


def _check_sizes(
    path: Path, sample: dict[str, list[int] | list[float]], shape: SampleShape
) -> None:
    for feature, size in shape.sizes().items():
        found = len(sample[feature])
        if found == size:
            continue
        if feature == "next_sentence_labels":
            raise DataError(f"{path}: its records have {found} {feature}, not 1.")
        what, of_model, of_records = (
            ("masked tokens", "--mask-tokens", "--max-predictions-per-seq")
            if feature.startswith("masked_lm")
            else ("tokens", "--sequence-length", "--max-seq-length")
        )
        raise DataError(
            f"{path}: its records have {found} {what} ({feature}), the model {size}. Give "
            f"{of_model} {found}, or make records with {of_records} {size}."
        )
    largest = max(*sample["input_ids"], *sample["masked_lm_ids"])
    if largest >= shape.vocab_size:
        raise DataError(
            f"{path}: its first record has the piece {largest}, the model's vocabulary ends at "
            f"{shape.vocab_size - 1}. Give the --vocab-size that the records were made with."
        )
