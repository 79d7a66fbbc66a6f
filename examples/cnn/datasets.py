"""Data sets of images, and the input functions that read them.

    data = open_dataset("photos", seed=42)
    estimator.train(data.training.input_fn(Layout(micro_batch=32), augment=True), max_steps=1000)
    estimator.evaluate(data.validation.evaluation_input_fn(batch=100))

`open_dataset` reports what is missing before TensorFlow is imported. All workers of a run together
read what one worker would: see layout.py. image_files.py and imagenet.py read the files.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import image_files
import numpy as np
from image_files import NUM_DRAWS, Pixels, draw
from imagenet import Photographs, read_imagenet
from layout import Layout, Order
from options import DataError, nearest

if TYPE_CHECKING:
    import tensorflow as tf

NUM_GENERATED = 128  # Images of generated data.


@dataclass(frozen=True)
class Facts:
    """The sizes of a data set as published."""

    num_training: int
    num_validation: int
    num_classes: int
    image_shape: tuple[int, int, int]  # (height, width, channels).
    can_flip: bool  # Whether a mirrored image is as good as the image itself.
    mean: tuple[float, ...]  # Mean of each channel of the training images, as bytes from 0 to 255.
    std: tuple[float, ...]  # Standard deviation of each channel, likewise.


_COLOUR = (32, 32, 3)
# fmt: off
DATASETS = {
    "digits": Facts(4_000, 1_000, 10, (28, 28, 1), False, (33.6,), (78.8,)),
    "photos": Facts(
        4_000, 1_000, 10, _COLOUR, False, (103.7, 109.3, 101.4), (94.0, 75.8, 81.9)),
    "cifar-10": Facts(
        50_000, 10_000, 10, _COLOUR, True, (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)),
    "cifar-100": Facts(
        50_000, 10_000, 100, _COLOUR, True, (129.3, 124.1, 112.4), (68.2, 65.4, 70.4)),
    "imagenet": Facts(
        1_281_167, 50_000, 1_000, (224, 224, 3), True, (123.68, 116.78, 103.94),
        (58.4, 57.12, 57.38)),
}
# fmt: on

_IN_PACKAGES = {
    "digits": image_files.read_digits,
    "photos": image_files.read_photos,
}
_IN_A_FOLDER: dict[str, Callable[[Path], tuple[Any, Any]]] = {
    "cifar-10": image_files.read_cifar_10,
    "cifar-100": image_files.read_cifar_100,
    "imagenet": read_imagenet,
}


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """The images to train with and those to validate with."""

    name: str
    training: Images
    validation: Images


def open_dataset(
    name: str, *, seed: int, data_dir: str | Path | None = None, generated: bool = False
) -> Dataset:
    """Opens a data set: reads its images, or the index of ImageNet's.

    The seed is that of the order and of the random crops and flips; the folder that of the
    published files of CIFAR and ImageNet. `generated` makes NUM_GENERATED random images of this
    data set's shape instead, which come over and over in one order: for measuring speed. A model
    learns them fast.

    Raises:
      DataError: If the name is unknown, or files are missing or of another format.
    """
    if name not in DATASETS:
        hint = nearest(name, DATASETS) or " Choose one of these."
        raise DataError(f"unknown data set {name!r}; there are {', '.join(DATASETS)}.{hint}")
    if seed < 0:
        raise DataError(f"seed {seed} is below 0. Give 0 or a larger number.")
    facts = DATASETS[name]

    def part(source: Pixels | Photographs, num_images: int, *, shuffles: bool = False) -> Images:
        return Images(
            facts=facts, num_images=num_images, source=source, seed=seed, shuffles=shuffles
        )

    if generated:
        images = _generate(facts)
        return Dataset(
            name=name,
            training=part(images, facts.num_training),
            validation=part(images, facts.num_validation),
        )
    training, validation = _read_files(name, data_dir)
    return Dataset(
        name=name,
        training=part(training, len(training), shuffles=True),
        validation=part(validation, len(validation)),
    )


def _read_files(name: str, data_dir: str | Path | None) -> tuple[Any, Any]:
    if name in _IN_PACKAGES:
        if data_dir is None:
            return _IN_PACKAGES[name]()
        raise DataError(
            f"{name} comes with a Python package and is not read from the folder {data_dir}. Leave "
            f"the folder out, or choose one of {', '.join(_IN_A_FOLDER)}."
        )
    if data_dir is None:
        raise DataError(
            f"{name} is read from a folder, and none is given. Give that of the published files: "
            "--data-dir FOLDER."
        )
    return _IN_A_FOLDER[name](Path(data_dir))


def _generate(facts: Facts) -> Pixels:
    """Makes images of random bytes: a pattern for each class, and half as much noise."""
    generator = np.random.default_rng(0)
    num_classes = min(facts.num_classes, NUM_GENERATED)
    labels = np.arange(NUM_GENERATED, dtype=np.int32) % num_classes
    patterns = generator.integers(0, 171, (num_classes, *facts.image_shape), np.uint8)
    noise = generator.integers(0, 85, (NUM_GENERATED, *facts.image_shape), np.uint8)
    return Pixels(images=patterns[labels] + noise, labels=labels)


@dataclass(frozen=True, kw_only=True)
class Images:
    """The images of one part of a data set."""

    facts: Facts  # The sizes of the data set.
    num_images: int  # Number of images in an epoch.
    source: Pixels | Photographs  # The images in memory, or ImageNet's photographs.
    seed: int  # Seed of the order, crops and flips.
    shuffles: bool  # Whether each epoch has an order of its own, or that of the data set.

    def normalise(self, images: tf.Tensor) -> tf.Tensor:
        """Returns float32 images of mean 0 and deviation 1 from bytes, on the present device."""
        import tensorflow as tf

        # [batch, height, width, channels]
        return (tf.cast(images, tf.float32) - self.facts.mean) / self.facts.std

    def input_fn(
        self,
        layout: Layout,
        *,
        augment: bool = False,
        eight_bit: bool = False,
        first_step: int | None = None,
    ) -> Callable[[], tf.data.Dataset]:
        """Returns an input_fn for `Estimator.train`: this worker's micro-batches without end.

        Each is (images [micro_batch, height, width, channels], labels int32 [micro_batch]).
        `augment` shifts (ImageNet: crops) and mirrors the images at random. With `eight_bit` images
        are bytes, which the model gives to `normalise` on its device; otherwise they are normalised
        on the host: float32. Without a first step it is the global step at the start of the
        session, so that a resumed run reads what an undisturbed one would.
        """
        size = layout.micro_batch
        order = Order(num_samples=self.num_images, seed=self.seed if self.shuffles else None)

        def take(index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            numbers, epochs = order.take(layout.first_position(int(index)), size)
            return numbers, draw(self.num_images, self.seed, numbers, epochs)

        def input_fn() -> tf.data.Dataset:
            import tensorflow as tf

            start = _global_step() if first_step is None else tf.constant(first_step, tf.int64)
            end = tf.constant(np.iinfo(np.int64).max)
            indices = tf.data.Dataset.range(start * layout.micro_batches, end)
            return self._read(indices, take, size=size, augment=augment, eight_bit=eight_bit)

        return input_fn

    def evaluation_input_fn(
        self, *, batch: int, eight_bit: bool = False
    ) -> Callable[[], tf.data.Dataset]:
        """Returns an input_fn for `Estimator.evaluate`: each image once, in the data set's order.

        The last batch is smaller if `batch` does not divide the number of images. A mean over
        images (`tf.compat.v1.metrics.accuracy`) is then exact; a mean over batches is not.
        """

        def input_fn() -> tf.data.Dataset:
            import tensorflow as tf

            firsts = tf.data.Dataset.range(0, self.num_images, batch)

            def take(first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
                numbers = np.arange(first, min(first + batch, self.num_images))
                return numbers, np.zeros((len(numbers), NUM_DRAWS), np.float32)

            return self._read(firsts, take, size=None, augment=False, eight_bit=eight_bit)

        return input_fn

    def _read(
        self,
        indices: tf.data.Dataset,
        take: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
        *,
        size: int | None,
        augment: bool,
        eight_bit: bool,
    ) -> tf.data.Dataset:
        """Reads a batch of images for each index: those of the numbers and draws of `take`."""
        import tensorflow as tf

        def read(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            numbers, draws = tf.numpy_function(take, [index], [tf.int64, tf.float32])
            numbers = tf.ensure_shape(numbers, [size])
            draws = tf.ensure_shape(draws, [size, NUM_DRAWS])
            images, labels = self.source.fetch(
                numbers, draws, augment=augment, can_flip=self.facts.can_flip
            )
            images = tf.ensure_shape(images, [size, *self.facts.image_shape])
            labels = tf.ensure_shape(labels, [size])
            return (images if eight_bit else self.normalise(images)), labels

        # Batches are read side by side, and come in their order. Nothing is tuned: a session waits
        # for the thread that tunes, up to 60 s.
        options = tf.data.Options()
        options.autotune.enabled = False
        cores = len(os.sched_getaffinity(0))
        return indices.map(read, cores).prefetch(2).with_options(options)


def _global_step() -> tf.Tensor:
    """Returns the global step, which is read when the session starts the input; 0 without one."""
    import tensorflow as tf

    step = tf.compat.v1.train.get_global_step()
    return tf.constant(0, tf.int64) if step is None else tf.cast(step, tf.int64)
