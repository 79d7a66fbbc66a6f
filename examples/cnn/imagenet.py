"""ImageNet's TFRecord files: which there are, what is in a record, and how a JPEG is decoded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import records
from image_files import check_files
from options import DataError

if TYPE_CHECKING:
    import tensorflow as tf

SIZE = 224  # Height and width of the images that the model gets.
NUM_CLASSES = 1000
JPEG, LABEL = "image/encoded", "image/class/label"  # The features of a record.


@dataclass(frozen=True, kw_only=True)
class Photographs:
    """The JPEGs of TFRecord files."""

    files: records.RecordFiles

    def __len__(self) -> int:
        return len(self.files)

    def fetch(
        self, numbers: tf.Tensor, draws: tf.Tensor, *, augment: bool, can_flip: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Fetches images by their numbers, as `Pixels.fetch` does."""
        import tensorflow as tf

        def read(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            examples = self.files.examples(numbers, check)
            labels = [one[LABEL][0] - 1 for one in examples]  # 0 is for the background.
            return np.array([one[JPEG][0] for one in examples], object), np.array(labels, np.int32)

        jpegs, labels = tf.numpy_function(read, [numbers], [tf.string, tf.int32])  # [batch]

        def decode(one: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            jpeg, drawn = one
            return decode_jpeg(jpeg, drawn if augment else None, can_flip=can_flip)

        spec = tf.TensorSpec([SIZE, SIZE, 3], tf.uint8)
        return tf.map_fn(decode, (jpegs, draws), fn_output_signature=spec), labels


def read_imagenet(folder: Path) -> tuple[Photographs, Photographs]:
    """Indexes `train-00000-of-01024` to the last, and `validation-00000-of-00128` to the last.

    Only the headers of the records are read: 1.3 million of them for the whole ImageNet.
    """
    return _index(folder, "train", 1024), _index(folder, "validation", 128)


def _index(folder: Path, part: str, published: int) -> Photographs:
    pattern = re.compile(rf"{part}-\d{{5}}-of-(\d{{5}})")
    there = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    counts = sorted({int(found[1]) for name in there if (found := pattern.fullmatch(name))})
    if len(counts) > 1:
        raise DataError(
            f"{folder} has files {part}-*-of-{counts[0]:05d} and -of-{counts[1]:05d}; only one "
            "number of files is allowed. Delete those of the other."
        )
    [count] = counts or [published]
    check_files(folder, [f"{part}-{i:05d}-of-{count:05d}" for i in range(count)])
    files = tuple(folder / f"{part}-{i:05d}-of-{count:05d}" for i in range(count))
    opened = records.open_files(files)
    opened.examples(opened.first_numbers(), check)
    return Photographs(files=opened)


def check(example: records.Features) -> None:
    """Checks the features of a record.

    Raises:
      records.Unfit: If it has no JPEG, or no label from 1 to 1000.
    """
    for name, kind in ((JPEG, bytes), (LABEL, int)):
        if not isinstance([*example.get(name, []), None][0], kind):
            raise records.Unfit(
                f"has no feature {name}. The features must be {JPEG} (a JPEG) and {LABEL} (1 to "
                f"{NUM_CLASSES}): make the files again."
            )
    start, label = example[JPEG][0][:3], example[LABEL][0]
    if start != b"\xff\xd8\xff":
        is_png = start == b"\x89PN"
        raise records.Unfit(f"has an image that is {'a PNG, ' * is_png}no JPEG. Convert it.")
    if not 1 <= label <= NUM_CLASSES:
        raise records.Unfit(f"has the label {label}; 1 to {NUM_CLASSES} are allowed.")


def decode_jpeg(jpeg: tf.Tensor, draws: tf.Tensor | None, *, can_flip: bool) -> tf.Tensor:
    """Decodes a part of a JPEG, given as its bytes, to uint8 [SIZE, SIZE, 3].

    Draws, float32 [NUM_DRAWS], choose a random part, and whether an image that can flip is
    mirrored; None is the part in its middle.
    """
    import tensorflow as tf

    height, width, _ = tf.unstack(tf.io.extract_jpeg_shape(jpeg))
    window = _middle(height, width) if draws is None else _random_part(height, width, draws)
    part = tf.image.decode_and_crop_jpeg(jpeg, window, channels=3)
    image = tf.image.resize(part, [SIZE, SIZE])  # float32 [SIZE, SIZE, 3]
    if draws is not None and can_flip:
        image = tf.where(draws[4] < 0.5, tf.reverse(image, [1]), image)
    return tf.cast(tf.round(image), tf.uint8)


def _middle(height: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    """Returns the square in the middle, 7/8 of the shorter side: [top, left, height, width]."""
    import tensorflow as tf

    side = tf.minimum(height, width) * 7 // 8
    return tf.stack([(height - side) // 2, (width - side) // 2, side, side])


def _random_part(height: tf.Tensor, width: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Returns a random part of 8 to 100 % of the image: [top, left, height, width].

    Its ratio of width to height is 3/4 to 4/3 (Szegedy et al., "Going Deeper with Convolutions",
    2014). A part that is wider or higher than the image is cut to it.
    """
    import tensorflow as tf

    def whole(side: tf.Tensor, limit: tf.Tensor) -> tf.Tensor:
        return tf.clip_by_value(tf.cast(tf.round(side), tf.int32), 1, limit)

    area = tf.cast(height * width, tf.float32) * (0.08 + 0.92 * draws[0])
    ratio = tf.exp(np.log(4 / 3) * (2 * draws[1] - 1))
    part_height = whole(tf.sqrt(area / ratio), height)
    part_width = whole(tf.sqrt(area * ratio), width)
    top = tf.cast(draws[2] * tf.cast(height - part_height + 1, tf.float32), tf.int32)
    left = tf.cast(draws[3] * tf.cast(width - part_width + 1, tf.float32), tf.int32)
    return tf.stack([top, left, part_height, part_width])
