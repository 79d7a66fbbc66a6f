"""Input of BERT's pretraining: one random sample, English text, or TFRecords of the public format.

Checks and preparations need no TensorFlow. All workers together read what one would: see layout.py.
"""

from __future__ import annotations

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
from layout import Layout, Order
from options import DataError

if TYPE_CHECKING:
    import tensorflow as tf

Name = Literal["generated", "sample", "pretraining"]
NAMES: tuple[Name, ...] = ("generated", "sample", "pretraining")

_WEIGHTS, _LABELS = "masked_lm_weights", "next_sentence_labels"


@dataclass(frozen=True, kw_only=True)
class SampleShape:
    """The sizes that a model expects of a sample."""

    sequence_length: int  # Pieces of a sample, with [PAD].
    mask_tokens: int  # Places for words to predict.
    vocab_size: int  # WordPieces of the vocabulary.

    def sizes(self) -> dict[str, int]:
        """Returns the number of values of each feature in a record."""
        in_sequence = ("input_ids", "input_mask", "segment_ids")
        in_masks = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
        return {
            **dict.fromkeys(in_sequence, self.sequence_length),
            **dict.fromkeys(in_masks, self.mask_tokens),
            _LABELS: 1,
        }

    def check(self, sample: records.Features) -> None:
        """Checks a record.

        Raises:
          records.Unfit: If it lacks a feature, or has other sizes or numbers than the model.
        """
        missing = [name for name in self.sizes() if not _has(sample, name)]
        if missing:
            raise records.Unfit(
                f"has no {', '.join(missing)}. Make records with create_pretraining_data.py."
            )
        for name, size in self.sizes().items():
            if len(sample[name]) != size:
                raise records.Unfit(_other_size(name, len(sample[name]), size))
        ends = {
            **dict.fromkeys(("input_ids", "masked_lm_ids"), self.vocab_size),
            **dict.fromkeys(("input_mask", "segment_ids", _LABELS), 2),
            "masked_lm_positions": self.sequence_length,
        }
        for name, end in ends.items():
            lowest, highest = min(sample[name]), max(sample[name])
            if lowest < 0 or highest >= end:
                fix = (
                    "Give the --vocab-size that the records were made with."
                    if name.endswith("_ids") and name != "segment_ids"
                    else "Make the file again."
                )
                outside = lowest if lowest < 0 else highest
                raise records.Unfit(f"has {outside} in {name}, not 0 to {end - 1}. {fix}")


def _has(sample: records.Features, name: str) -> bool:
    return bool(sample.get(name)) and isinstance(
        sample[name][0], float if name == _WEIGHTS else int
    )


def _other_size(name: str, found: int, size: int) -> str:
    if name == _LABELS:
        return f"has {found} {name}, not 1. Make records with create_pretraining_data.py."
    what, of_model, of_records = (
        ("masked tokens", "--mask-tokens", "--max-predictions-per-seq")
        if name.startswith("masked_lm")
        else ("tokens", "--sequence-length", "--max-seq-length")
    )
    return (
        f"has {found} {what} ({name}), the model {size}. Give {of_model} {found}, or make "
        f"records with {of_records} {size}."
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Samples that have been found and checked."""

    name: Name  # "generated", "sample" or "pretraining".
    shape: SampleShape  # The sizes of a sample.
    seed: int  # Decides the order of the samples; with "generated", the sample.
    files: records.RecordFiles | None = None  # The records; None with "generated".
    vocab_file: Path | None = None  # The vocabulary of the records, if it is known.

    @property
    def num_samples(self) -> int:
        """The number of different samples: 1 with "generated", which repeats it."""
        return 1 if self.files is None else len(self.files)

    def input_fn(self, layout: Layout, first_step: int = 0) -> Callable[[], tf.data.Dataset]:
        """Returns a function for `Estimator.train`: this worker's micro-batches without end.

        An element is a dict with int32 `input_ids`, `input_mask` and `segment_ids` [batch,
        sequence], int32 `masked_lm_positions` and `masked_lm_ids` and float32 `masked_lm_weights`
        [batch, masks], and int32 `next_sentence_labels` [batch]. Each epoch has another order. A
        worker's replicas take the micro-batches in turn, from step `first_step` on.

        Raises:
          DataError: If there are fewer samples than a step takes.
        """
        size = layout.micro_batch
        if self.files is None:
            return lambda: self._repeated(size)
        if self.num_samples < layout.global_batch:
            raise DataError(
                f"{self.name} has {self.num_samples:,} samples, a step takes "
                f"{layout.global_batch:,}. Give more files, or lower --gradient-accumulation, "
                "--micro-batch-size or the replicas."
            )
        order = Order(num_samples=self.num_samples, seed=self.seed)
        first = first_step * layout.micro_batches

        def take(index: int) -> np.ndarray:
            return order.take(layout.first_position(first + index), size)[0]

        return lambda: self._read(take, 2**62, size)  # 2**62 micro-batches stand for no end.

    def evaluation_input_fn(self, batch: int) -> Callable[[], tf.data.Dataset]:
        """Returns a function for `Estimator.evaluate`: each sample once, in the files' order.

        The last batch may be smaller. "generated" has one batch.
        """
        if self.files is None:
            return lambda: self._repeated(batch).take(1)

        def take(index: int) -> np.ndarray:
            return np.arange(index * batch, min((index + 1) * batch, self.num_samples))

        return lambda: self._read(take, math.ceil(self.num_samples / batch), None)

    def _repeated(self, micro_batch_size: int) -> tf.data.Dataset:
        import tensorflow as tf

        sample = {
            name: np.array(values, np.float32 if name == _WEIGHTS else np.int32)
            for name, values in generated_sample(self.shape, self.seed).items()
        }
        sample[_LABELS] = sample[_LABELS][0]
        return tf.data.Dataset.from_tensors(sample).repeat().batch(micro_batch_size, True)

    def _read(
        self, take: Callable[[int], np.ndarray], count: int, size: int | None
    ) -> tf.data.Dataset:
        """Reads `count` micro-batches: the samples that `take` returns for each index."""
        import tensorflow as tf

        assert self.files is not None
        files, shape = self.files, self.shape
        types = [tf.float32 if name == _WEIGHTS else tf.int32 for name in shape.sizes()]

        def read(index: np.ndarray) -> list[np.ndarray]:
            samples = files.examples(take(int(index)), shape.check)
            return [
                np.array([sample[name] for sample in samples], of_type.as_numpy_dtype)
                for name, of_type in zip(shape.sizes(), types, strict=True)
            ]

        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def micro_batch(index: tf.Tensor) -> dict[str, tf.Tensor]:
            values = tf.numpy_function(read, [index], types)  # [batch, values] each
            sizes = shape.sizes()
            batch = {
                name: tf.ensure_shape(value, [size, sizes[name]])
                for name, value in zip(sizes, values, strict=True)
            }
            return batch | {_LABELS: batch[_LABELS][:, 0]}

        batches = tf.data.Dataset.range(count).map(micro_batch).prefetch(2)
        # There is nothing to tune, and a session waits for the thread that tunes, up to 60 s.
        options = tf.data.Options()
        options.autotune.enabled = False
        return batches.with_options(options)


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

    The seed decides the order of the samples, and how those of "sample" and "generated" are made.
    The input files are paths or patterns of the TFRecord files of "pretraining". "sample" makes a
    vocabulary of its own if there is none; `evaluation` opens what it holds out.

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
        files.examples(files.first_numbers(), shape.check)
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
