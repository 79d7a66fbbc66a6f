"""Trains a line through twelve points by Keras' `fit`; each worker leaves its weights in a folder.

python fit_line.py FOLDER
"""

import json
import sys
from pathlib import Path

if __name__ == "__main__":  # Keras does without these, and starts faster.
    sys.modules.update(dict.fromkeys(("pandas", "PIL", "scipy")))

import keras
import numpy as np
import tensorflow as tf

from tfdist.strategies import strategy_for_run

POINTS = np.linspace(-1.0, 1.0, 12, dtype=np.float32)[:, None]


def main(folder: str) -> None:
    strategy = strategy_for_run()
    dataset = tf.data.Dataset.from_tensor_slices((POINTS, 3.0 * POINTS - 1.0)).batch(12)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    model.fit(dataset, epochs=20, verbose=0)
    found = [weight.tolist() for weight in model.get_weights()]
    index = strategy.extended.collectives.worker_index
    Path(folder, f"{index}.json").write_text(json.dumps(found))


def check_workers(folder: Path, alone: Path, num_workers: int) -> None:
    """Checks that all workers have equal weights, which are those of one process."""
    found = [json.loads((folder / f"{worker}.json").read_text()) for worker in range(num_workers)]
    assert found == [found[0]] * num_workers
    expected = json.loads((alone / "0.json").read_text())
    for value, one in zip(found[0], expected, strict=True):
        np.testing.assert_allclose(value, one, atol=1e-6)


if __name__ == "__main__":
    main(sys.argv[1])
