"""The order in which images are read: pure functions of the seed, without TensorFlow.

Every epoch has one order of all images. The epochs follow one another without a gap, and a step
takes the next images of this row. Each worker has its part of a step, each micro-batch its part of
the worker's:

    position   0                       global batch            2 x global batch
               | step 0                | step 1                | ...
               | worker 0  | worker 1  | worker 0  | worker 1  |
               | 0   | 1   | 0   | 1   | 0   | 1   | 0   | 1   |    micro-batches

So all workers together read what one worker would. What they read in a step depends neither on the
number of workers, replicas and micro-batches nor on the step at which a run was resumed.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

NUM_DRAWS = 5  # Random numbers for each image in each epoch: enough for a crop and a flip.


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The sizes of a step, and this worker's place in it.

    Attributes:
      micro_batch: Images of one forward pass.
      micro_batches: Micro-batches of this worker in a step: replicas x accumulation.
      num_workers: Number of workers.
      worker: Index of this worker, from 0.
    """

    micro_batch: int
    micro_batches: int = 1
    num_workers: int = 1
    worker: int = 0

    @property
    def global_batch(self) -> int:
        return self.micro_batch * self.micro_batches * self.num_workers

    def first_position(self, index: int) -> int:
        """Returns the position of the first image of this worker's micro-batch `index`."""
        step, within = divmod(index, self.micro_batches)
        before = self.worker * self.micro_batches + within  # Micro-batches of the step before it.
        return step * self.global_batch + before * self.micro_batch


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order of the images in every epoch, and the random numbers of every image.

    Attributes:
      num_images: Number of images in an epoch.
      seed: Seed of the order and of the random numbers.
      shuffle: Whether an epoch has an order of its own; otherwise each has that of the data set.
    """

    num_images: int
    seed: int
    shuffle: bool = True

    def take(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the images at the positions from `first` on.

        Returns:
          numbers: int64 [count], the images' numbers in the data set.
          draws: float32 [count, NUM_DRAWS], from 0 up to 1. They depend on (seed, number, epoch).
        """
        epochs, places = np.divmod(first + np.arange(count), self.num_images)
        numbers = np.empty(count, np.int64)
        draws = np.empty((count, NUM_DRAWS), np.float32)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            drawn = _draws(self.num_images, self.seed, int(epoch))
            if self.shuffle:
                numbers[here] = _order(self.num_images, self.seed, int(epoch))[places[here]]
            else:
                numbers[here] = places[here]
            draws[here] = drawn[numbers[here]]
        return numbers, draws


# A micro-batch may reach into the next epoch: two are kept, for one or two data sets.
@lru_cache(maxsize=4)
def _order(num_images: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch, 0]).permutation(num_images)  # [num_images]


@lru_cache(maxsize=4)
def _draws(num_images: int, seed: int, epoch: int) -> np.ndarray:
    generator = np.random.default_rng([seed, epoch, 1])
    return generator.random((num_images, NUM_DRAWS), np.float32)


def crop_and_flip(images: np.ndarray, draws: np.ndarray, *, flips: bool) -> np.ndarray:
    """Shifts each image by up to 4 pixels, and mirrors every second one from left to right.

    Args:
      images: [batch, height, width, channels]. What a shift uncovers is 0.
      draws: As `Order.take` returns them.
      flips: False never mirrors: a mirrored digit is not a digit.

    Returns:
      Images of the same shape.
    """
    batch, height, width, _ = images.shape
    padded = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)))
    shifts = (draws[:, :2] * 9).astype(np.int64)  # [batch, 2], 0 to 8
    rows = shifts[:, :1] + np.arange(height)  # [batch, height]
    columns = shifts[:, 1:] + np.arange(width)  # [batch, width]
    if flips:
        columns = np.where(draws[:, 2:3] < 0.5, columns[:, ::-1], columns)
    return padded[np.arange(batch)[:, None, None], rows[:, :, None], columns[:, None, :]]
