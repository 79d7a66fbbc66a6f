"""Initial weights of a model that is evaluated without a checkpoint: alike in each process.

Each worker evaluates alone, and no message gives it the weights of worker 0. TensorFlow's
initializers draw with the graph's seed, those of Keras with seeds that Python's `random` draws.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import tensorflow.compat.v1 as v1

_SEED = 1


@contextmanager
def seeded_graph(seed: int | None, *, is_untrained: bool) -> Iterator[None]:
    """Sets the seeds of the current graph, and of all other draws for an untrained model.

    Args:
      seed: The user's seed; None for none.
      is_untrained: Whether the initial values of the variables are used. Python's and NumPy's
        global random states are then seeded in the `with` block, and restored after it.
    """
    if not is_untrained:
        v1.set_random_seed(seed)
        yield
        return
    seed = _SEED if seed is None else seed
    v1.set_random_seed(seed)
    states = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
