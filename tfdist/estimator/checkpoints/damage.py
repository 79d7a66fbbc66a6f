"""What is wrong with a checkpoint's files, found before anything is restored from them.

A checkpoint is an index, and a file of values for each device that has variables:

    model.ckpt-20.index                  a table: name -> dtype, shape, file, offset, size, checksum
    model.ckpt-20.data-00000-of-00002    values, one after the other
    model.ckpt-20.data-00001-of-00002

TensorFlow compares the index's checksums when it opens it, and a value's when it reads it. It does
not say which file is too short; the sizes in the index do.
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

from tfdist.estimator.checkpoints.listing import ModelDirError, exists
from tfdist.process.endings import OneLineError

# Types without NumPy values, which Python cannot read.
_NOT_IN_NUMPY = (tf.resource, tf.variant)


class CheckpointDamagedError(OneLineError, OSError):
    """A checkpoint is damaged, and no other one can take its place."""


def damage(checkpoint: str) -> str | None:
    """Reads a checkpoint once from the first byte to the last, one value at a time.

    Args:
      checkpoint: Its path, without ".index". Of the old format, which has none, nothing is read.

    Returns:
      Which file is damaged and why, in one line; None if the checkpoint is whole.

    Raises:
      ModelDirError: If a file may not be read, so that nobody knows what is in it.
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
      CheckpointDamagedError: Which file is damaged, and why.
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
    """Returns a checkpoint's files of values in order, with the bytes that each must have."""
    num_files, sizes = 0, dict[int, int]()
    for key, value in _table(index):
        if not key:  # The first entry is about all of them.
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
            file.read(1)  # May it be read?
            found = file.size()
        if found < size:
            return f"{name} has {found:,} of {size:,} bytes"
    return None


def _damage_of_values(reader: Any, files: list[str]) -> str | None:
    """Has TensorFlow read every value, which compares its checksum."""
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
    """Returns the beginning of what an error says, in one line."""
    text = error.message if isinstance(error, tf.errors.OpError) else str(error)
    # TensorFlow's guess at the cause of what stands in parentheses.
    text = re.sub(r"^Unable to read file .* format changes \((.*)\)$", r"\1", text, flags=re.S)
    return " ".join(text.split())[:200].rstrip(".")


# The index is a table file of LevelDB (tsl/lib/io/format.h in TensorFlow), not compressed: blocks
# of entries, a block that says where they are, and a footer that says where that one is.

_FOOTER_BYTES = 48


def _table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Lists keys and values of a table file whose checksums have been compared."""
    _, place = _place_of_block(data, len(data) - _FOOTER_BYTES)  # Of a block that is not used.
    blocks, _ = _place_of_block(data, place)
    for _, value in _block(data, *blocks):
        where, _ = _place_of_block(value, 0)
        yield from _block(data, *where)


def _block(data: bytes, start: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Lists a block's keys, each without what it shares with the one before it, and values."""
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
    """Returns (start, size) of a block, and the place after them."""
    start, place = _number(data, place)
    size, place = _number(data, place)
    return (start, size), place


def _number(data: bytes, place: int) -> tuple[int, int]:
    """Returns a number of seven bits a byte, the low ones first, and the place after it."""
    number = shift = 0
    while data[place] >= 0x80:
        number |= (data[place] & 0x7F) << shift
        place, shift = place + 1, shift + 7
    return number | data[place] << shift, place + 1
