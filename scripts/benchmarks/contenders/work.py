"""The contenders' models: sizes, batches and optimizers, without any framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

BATCH_SIZE = 64  # samples a worker and step
NUM_CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class Work:
    """A model to train."""

    title: str  # For tables.
    optimizer: str  # "adam", "momentum" (0.9) or "sgd"; the same one in every framework.
    steps_per_turn: int  # So many take about half a second.
    feature_shape: tuple[int, ...]  # Of one sample.
    vocabulary: int = 0  # Features are integers below this; 0 for float32 features in 0..1.
    num_masks: int = 0  # Words to guess in each sequence; 0 for a class to find.
    batch_size: int = BATCH_SIZE  # Samples a worker and step.


LEARNING_RATE = 0.001

CNN, MLP, EMBEDDING = "cnn", "mlp", "embedding"

# Hidden layers of the MLP; with 784 inputs and 10 classes they have 8.31 million weights, 33.2 MB.
MLP_LAYERS = (2560, 2048, 512)
# The embedding: 51.2 MB, of which a step touches at most 64 x 32 rows.
EMBEDDING_SIZE = 64
# ResNet-20 (He et al., 2015, section 4.2): 3 groups of 3 blocks of 2 convolutions.
RESNET_GROUPS = (16, 32, 64)
RESNET_BLOCKS = 3

# The real models: examples/cnn's with --model-size 20, whose shortcuts have no weights, and the
# preset mini_128 of examples/bert. The class is the next sentence's there.
RESNET_20, BERT_MINI = "resnet-20", "bert-mini"
BERT_HIDDEN, BERT_LAYERS, BERT_HEADS, BERT_INNER = 256, 4, 4, 1024
BERT_POSITIONS, BERT_EPSILON = 512, 1e-3

WORKS = {
    CNN: Work(title="CNN, 1.4 MB", optimizer="adam", steps_per_turn=100, feature_shape=(28, 28, 1)),
    MLP: Work(title="MLP, 33 MB", optimizer="sgd", steps_per_turn=10, feature_shape=(784,)),
    EMBEDDING: Work(
        title="sparse embedding, 51 MB",
        optimizer="sgd",
        steps_per_turn=100,
        feature_shape=(32,),
        vocabulary=200_000,
    ),
    RESNET_20: Work(
        title="ResNet-20", optimizer="momentum", steps_per_turn=4, feature_shape=(32, 32, 3)
    ),
    BERT_MINI: Work(
        title="BERT mini",
        optimizer="adam",
        steps_per_turn=2,
        feature_shape=(128,),
        vocabulary=30_522,
        num_masks=20,
        batch_size=8,
    ),
}


def make_batch(work: Work, worker_index: int) -> tuple[Any, Any]:
    """Returns one batch, the same in every run: what is in it does not change a step's time.

    Returns:
      features [batch, ...] float32 in 0..1, or int64 below the vocabulary; labels [batch] int64.
      With masks a dict of each: see `_make_text`.
    """
    random = np.random.default_rng(worker_index)
    shape = (work.batch_size, *work.feature_shape)
    if work.num_masks:
        return _make_text(work, random)
    features = (
        random.integers(0, work.vocabulary, shape)
        if work.vocabulary
        else random.random(shape, np.float32)
    )
    return np.asarray(features), random.integers(0, NUM_CLASSES, work.batch_size)


def _make_text(work: Work, random: np.random.Generator) -> tuple[Any, Any]:
    """Returns sequences of two sentences with words to guess, all int32.

    Returns:
      features: words, segments and mask (1 for a word, 0 for padding) [batch, sequence]; positions
        of the words to guess [batch, masks].
      labels: words [batch, masks]; sentences, 1 where the second follows the first, [batch].
    """
    batch, (length,) = work.batch_size, work.feature_shape
    positions = [random.choice(length, work.num_masks, replace=False) for _ in range(batch)]
    features = {
        "words": random.integers(0, work.vocabulary, (batch, length)),
        "segments": np.tile(np.arange(length) >= length // 2, (batch, 1)),
        "mask": np.ones((batch, length)),
        "positions": np.sort(positions, axis=1),
    }
    labels = {
        "words": random.integers(0, work.vocabulary, (batch, work.num_masks)),
        "sentences": random.integers(0, 2, batch),
    }
    return _as_int32(features), _as_int32(labels)


def _as_int32(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array.astype(np.int32) for name, array in arrays.items()}
