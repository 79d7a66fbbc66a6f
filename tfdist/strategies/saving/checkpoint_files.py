"""The files of a checkpoint: their damage, checked before anything is restored, and the step.

A checkpoint is an index, and a file of values for each device that has variables:

    model.ckpt-20.index                  a table: name -> dtype, shape, file, offset, size, checksum
    model.ckpt-20.data-00000-of-00002    values, one after the other
    model.ckpt-20.data-00001-of-00002

TensorFlow compares the checksums of the index when it opens the index, and the checksum of a value
when it reads the value. It does not report which file is too short; the sizes in the index show it.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

from tfdist.process.endings import OneLineError

# Types without NumPy values, which Python cannot read.
_NOT_IN_NUMPY = (tf.resource, tf.variant)


# The keys of the global step: in checkpoints by name, and in object-based checkpoints of converted
# Keras models.
_GLOBAL_STEP_NAMES = ("global_step", "estimator_global_step/.ATTRIBUTES/VARIABLE_VALUE")


class CheckpointDamagedError(OneLineError, OSError):
    """Raised for a damaged checkpoint if no other one can replace it."""


class ModelDirError(OneLineError, PermissionError):
    """Raised if the model_dir cannot be read or written."""


def exists(checkpoint: str) -> bool:
    """Returns whether a checkpoint has an index or, in the old format, a file of values."""
    return tf.io.gfile.exists(f"{checkpoint}.index") or bool(tf.io.gfile.glob(checkpoint))


def file_beside(checkpoint: str) -> str:
    """Returns the path of the file with the position of the input at a checkpoint."""
    return f"{checkpoint}.input"


def step_of(checkpoint: str) -> int:
    """Returns the global step in a checkpoint, 0 if it has none."""
    try:
        reader = tf.train.load_checkpoint(checkpoint)
    except tf.errors.NotFoundError:
        return 0
    names = (name for name in _GLOBAL_STEP_NAMES if reader.has_tensor(name))
    return next((int(reader.get_tensor(name)) for name in names), 0)


def damage(checkpoint: str) -> str | None:
    """Reads a whole checkpoint once, one value at a time, and describes its damage.

    Args:
      checkpoint: Its path, without ".index". A checkpoint of the old format, which has no index, is
        not read.

    Returns:
      One line with the damaged file and the cause; None if the checkpoint is whole.

    Raises:
      ModelDirError: If there is no permission to read a file, so that its content is unknown.
    """
    path = f"{checkpoint}.index"
    name = os.path.basename(path)
    if not tf.io.gfile.exists(path):
        return None if exists(checkpoint) else f"{name} is missing"
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            index = file.read()
        if not index:
            return f"{name} is empty"
        reader = tf.train.load_checkpoint(checkpoint)
        files = _data_files(checkpoint, index)
        damaged_file = _damage_of_sizes(files)
    except tf.errors.PermissionDeniedError as error:
        raise ModelDirError(
            f"A checkpoint cannot be read: {_first_words(error)}. Change the file's owner or mode."
        ) from None
    except tf.errors.OpError as error:
        return f"{name} cannot be read ({_first_words(error)})"
    return damaged_file or _damage_of_values(reader, list(files))


@contextmanager
def damage_named(checkpoint: str | None) -> Iterator[None]:
    """Turns an error in the `with` block into one line, if the checkpoint is damaged.

    Raises:
      CheckpointDamagedError: Names the damaged file and the cause.
    """
    try:
        yield
    except (tf.errors.OpError, IndexError) as error:
        what = None if checkpoint is None else damage(checkpoint)
        if what is None:
            raise
        raise CheckpointDamagedError(
            f"Checkpoint {checkpoint} is damaged: {what}. Use another checkpoint."
        ) from error


def _data_files(checkpoint: str, index: bytes) -> dict[str, int]:
    """Returns a checkpoint's files of values in order, with the expected size of each in bytes."""
    num_files, sizes = 0, dict[int, int]()
    for key, value in _table(index):
        if not key:  # The first entry describes all files.
            num_files = BundleHeaderProto.FromString(value).num_shards
        else:
            entry = BundleEntryProto.FromString(value)
            sizes[entry.shard_id] = max(sizes.get(entry.shard_id, 0), entry.offset + entry.size)
    return {
        f"{checkpoint}.data-{number:05}-of-{num_files:05}": sizes.get(number, 0)
        for number in range(num_files)
    }


def _damage_of_sizes(files: dict[str, int]) -> str | None:
    for path, size in files.items():
        name = os.path.basename(path)
        if not tf.io.gfile.exists(path):
            return f"{name} is missing"
        with tf.io.gfile.GFile(path, "rb") as file:
            file.read(1)  # Checks the permission to read.
            found = file.size()
        if found < size:
            return f"{name} has {found:,} of {size:,} bytes"
    return None


def _damage_of_values(reader: Any, files: list[str]) -> str | None:
    """Reads every value with TensorFlow, which compares its checksum."""
    for name, dtype in reader.get_variable_to_dtype_map().items():
        if tf.as_dtype(dtype) in _NOT_IN_NUMPY:
            continue
        try:
            reader.get_tensor(name)
        except (tf.errors.OpError, IndexError) as error:
            text = _first_words(error)
            shard = re.search(r" shard (\d+) .*Checksum does not match", text)
            if shard is None:
                checkpoint = os.path.basename(files[0]).partition(".data-")[0]
                return f"{name} in {checkpoint} cannot be read ({text})"
            file = os.path.basename(files[int(shard[1])])
            return f"in {file} the values of {name} have another checksum"
    return None


def _first_words(error: Exception) -> str:
    """Returns the beginning of an error's message, in one line."""
    text = error.message if isinstance(error, tf.errors.OpError) else str(error)
    # TensorFlow adds a possible cause of the error in parentheses.
    text = re.sub(r"^Unable to read file .* format changes \((.*)\)$", r"\1", text, flags=re.S)
    return " ".join(text.split())[:200].rstrip(".")


# The index is a table file of LevelDB (tsl/lib/io/format.h in TensorFlow), not compressed. It has
# blocks of entries, a block with the places of these blocks, and a footer with the place of the
# latter.

_FOOTER_BYTES = 48


def _table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields keys and values of a table file; its checksums must have been compared before."""
    _, place = _place_of_block(data, len(data) - _FOOTER_BYTES)  # The place of an unused block.
    blocks, _ = _place_of_block(data, place)
    for _, value in _block(data, *blocks):
        where, _ = _place_of_block(value, 0)
        yield from _block(data, *where)


def _block(data: bytes, start: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yields a block's keys and values, each key without the prefix shared with the last key."""
    end = start + size
    (num_restarts,) = struct.unpack_from("<I", data, end - 4)
    end -= 4 * (num_restarts + 1)
    key, place = b"", start
    while place < end:
        shared, place = _number(data, place)
        own, place = _number(data, place)
        length, place = _number(data, place)
        key = key[:shared] + data[place : place + own]
        yield key, data[place + own : place + own + length]
        place += own + length


def _place_of_block(data: bytes, place: int) -> tuple[tuple[int, int], int]:
    """Returns (start, size) of a block, and the place after these two numbers."""
    start, place = _number(data, place)
    size, place = _number(data, place)
    return (start, size), place


def _number(data: bytes, place: int) -> tuple[int, int]:
    """Returns a number with seven bits in each byte, low bits first, and the place after it."""
    number = shift = 0
    while data[place] >= 0x80:
        number |= (data[place] & 0x7F) << shift
        place, shift = place + 1, shift + 7
    return number | data[place] << shift, place + 1
