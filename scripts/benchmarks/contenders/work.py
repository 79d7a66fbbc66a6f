"""The contenders' models: sizes, batches and optimizers, without any framework."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BATCH_SIZE = 64  # samples a worker and step
NUM_CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class Work:
    """A model to train.

    Attributes:
      title: For tables.
      optimizer: "adam", "momentum" (0.9) or "sgd"; the same one in every framework.
      steps_per_turn: So many take about half a second.
      feature_shape: Of one sample.
      vocabulary: Features are integers below this; 0 for float32 features in 0..1.
    """

    title: str
    optimizer: str
    steps_per_turn: int
    feature_shape: tuple[int, ...]
    vocabulary: int = 0


LEARNING_RATE = 0.001

CNN, MLP, RESNET, EMBEDDING = "cnn", "mlp", "resnet", "embedding"

# Hidden layers of the MLP; with 784 inputs and 10 classes they have 8.31 million weights, 33.2 MB.
MLP_LAYERS = (2560, 2048, 512)
# The embedding: 51.2 MB, of which a step touches at most 64 x 32 rows.
EMBEDDING_SIZE = 64
# ResNet-20 (He et al., 2015, section 4.2): 3 groups of 3 blocks of 2 convolutions.
RESNET_GROUPS = (16, 32, 64)
RESNET_BLOCKS = 3

WORKS = {
    CNN: Work(title="CNN, 1.4 MB", optimizer="adam", steps_per_turn=100, feature_shape=(28, 28, 1)),
    MLP: Work(title="MLP, 33 MB", optimizer="sgd", steps_per_turn=10, feature_shape=(784,)),
    RESNET: Work(
        title="ResNet-20, 1.1 MB", optimizer="momentum", steps_per_turn=4, feature_shape=(32, 32, 3)
    ),
    EMBEDDING: Work(
        title="sparse embedding, 51 MB",
        optimizer="sgd",
        steps_per_turn=100,
        feature_shape=(32,),
        vocabulary=200_000,
    ),
}


def make_batch(work: Work, worker_index: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns one batch, the same in every run: what is in it does not change a step's time.

    Returns:
      features [64, ...] float32 in 0..1, or int64 below the vocabulary; labels [64] int64.
    """
    random = np.random.default_rng(worker_index)
    shape = (BATCH_SIZE, *work.feature_shape)
    features = (
        random.integers(0, work.vocabulary, shape)
        if work.vocabulary
        else random.random(shape, np.float32)
    )
    return np.asarray(features), random.integers(0, NUM_CLASSES, BATCH_SIZE)
