"""The networks that pipelines are compared with: sizes and samples, without any framework."""

from __future__ import annotations

from typing import Any

import numpy as np
import work

NUM_CLASSES = 10
LEARNING_RATE = 0.01  # of gradient descent

# Dense layers of one width. The first one has more inputs than the others: it has no gradient to
# hand back, and the blocks should take about the same time.
DENSE = "dense"
DENSE_FEATURES, DENSE_WIDTH, DENSE_BLOCKS = 960, 512, 8
# The encoder of BERT mini, from hidden states to the class of their mean.
ENCODER = "encoder"
ENCODER_WORDS = 128

TITLES = {DENSE: "MLP of 8 layers", ENCODER: "BERT mini's encoder"}
NUM_BLOCKS = {DENSE: DENSE_BLOCKS, ENCODER: work.BERT_LAYERS}
MICRO_BATCH_SIZES = {DENSE: 128, ENCODER: 1}
FEATURE_SHAPES = {DENSE: (DENSE_FEATURES,), ENCODER: (ENCODER_WORDS, work.BERT_HIDDEN)}


def make_samples(name: str, count: int) -> tuple[Any, Any]:
    """Returns as many samples.

    Returns:
      features [count, features] or [count, words, hidden], float32; labels [count], int64.
    """
    random = np.random.default_rng(1)
    features = random.normal(size=(count, *FEATURE_SHAPES[name])).astype(np.float32)
    return features, random.integers(0, NUM_CLASSES, count)


def cut(name: str, num_stages: int) -> list[list[int]]:
    """Returns the numbers of each stage's blocks: as many in all."""
    size = NUM_BLOCKS[name] // num_stages
    return [list(range(first, first + size)) for first in range(0, NUM_BLOCKS[name], size)]
