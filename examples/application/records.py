"""TFRecord files of `tf.train.Example` messages, read and written without TensorFlow.

TensorFlow takes seconds to import, and reads such a file only from its beginning. Here a file is
checked in milliseconds, and any record can be read by its number. A file is a chain of records:

    length (8 bytes) | checksum of the length (4) | message | checksum of the message (4)
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError
from options import DataError

Features = dict[str, list[int] | list[float] | list[bytes]]
Check = Callable[[Features], None]

_HEADER = struct.Struct("<QI")  # length, checksum of the length
_CHECKSUM = struct.Struct("<I")


class Unfit(ValueError):
    """A record that the model cannot take; the message goes on after the record's name."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordFiles:
    """The records of several files, numbered from 0 over all of them."""

    paths: tuple[Path, ...]
    # For each file, where its records begin, in bytes: int64 [records].
    offsets: tuple[np.ndarray, ...]

    def __len__(self) -> int:
        return sum(map(len, self.offsets))

    def first_numbers(self) -> list[int]:
        """Returns the number of the first record of each file."""
        return [0, *map(int, self._ends[:-1])]

    def read(self, numbers: Iterable[int]) -> list[bytes]:
        """Returns the messages of the records with these numbers.

        Raises:
          DataError: If a record does not have the checksum that it was written with.
        """
        return [self._read_one(int(number)) for number in numbers]

    def examples(self, numbers: Iterable[int], check: Check) -> list[Features]:
        """Returns the features of the records with these numbers.

        `check` is called with those of each record; it raises `Unfit` for those that do not fit.

        Raises:
          DataError: If a record is damaged or no Example, or `check` refuses it.
        """
        return [self._example(int(number), check) for number in numbers]

    def _example(self, number: int, check: Check) -> Features:
        try:
            features = decode(self._read_one(number))
            check(features)
        except DecodeError:
            raise DataError(f"{self._name_of(number)} is no tf.train.Example.") from None
        except Unfit as error:
            raise DataError(f"{self._name_of(number)} {error}") from None
        return features

    def _read_one(self, number: int) -> bytes:
        path, _, offset = self._place_of(number)
        with path.open("rb") as opened:
            opened.seek(offset)
            length, _ = _HEADER.unpack(opened.read(_HEADER.size))
            message = opened.read(length)
            checksum = opened.read(_CHECKSUM.size)
        if checksum != _checksum(message):
            raise DataError(
                f"{self._name_of(number)} is damaged: its checksum does not match. Copy or make "
                "the file again."
            )
        return message

    def _place_of(self, number: int) -> tuple[Path, int, int]:
        """Returns the file of a record, its number in the file, and the byte where it begins."""
        file = int(np.searchsorted(self._ends, number, side="right"))
        of_file = number - int(self._ends[file]) + len(self.offsets[file])
        return self.paths[file], of_file, int(self.offsets[file][of_file])

    def _name_of(self, number: int) -> str:
        path, of_file, _ = self._place_of(number)
        return f"record {of_file} of {path}"

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        """For each file, the number of records in it and in the files before it."""
        return np.cumsum([len(offsets) for offsets in self.offsets])


def open_files(paths: Sequence[Path]) -> RecordFiles:
    """Finds where the records of files begin.

    Raises:
      DataError: If a file cannot be read, has no records, or is cut off.
    """
    with ThreadPoolExecutor(16) as pool:  # Waits for the disk.
        return RecordFiles(paths=tuple(paths), offsets=tuple(pool.map(_find_records, paths)))


def _find_records(path: Path) -> np.ndarray:
    try:
        with path.open("rb") as file:
            offsets = _walk(file, path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    if not offsets:
        raise DataError(f"{path} is empty: it has no records. Make it again, or leave it out.")
    return np.array(offsets, np.int64)


def _walk(file: BinaryIO, path: Path) -> list[int]:
    size = os.fstat(file.fileno()).st_size
    offsets: list[int] = []
    offset = 0
    while offset < size:
        header = file.read(_HEADER.size)
        if len(header) == _HEADER.size:
            length, checksum = _HEADER.unpack(header)
            if _CHECKSUM.pack(checksum) != _checksum(header[:8]):
                raise DataError(
                    f"{path} has no TFRecord at byte {offset}: it is damaged, compressed or of "
                    "another format. Give uncompressed TFRecord files."
                )
            end = offset + _HEADER.size + length + _CHECKSUM.size
        if len(header) < _HEADER.size or end > size:
            raise DataError(
                f"{path} is cut off in record {len(offsets)}, at byte {size}. Copy or make it "
                "again."
            )
        offsets.append(offset)
        offset = end
        file.seek(offset)
    return offsets


def write_file(path: Path, messages: Iterable[bytes]) -> int:
    """Writes messages as a TFRecord file; returns their number."""
    count = 0
    with path.open("wb") as file:
        for message in messages:
            length = struct.pack("<Q", len(message))
            file.write(length + _checksum(length) + message + _checksum(message))
            count += 1
    return count


def _checksum(data: bytes) -> bytes:
    """Returns the masked CRC-32C of the TFRecord format."""
    crc = _crc32c().value(data)
    return _CHECKSUM.pack(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@functools.cache
def _crc32c() -> ModuleType:
    try:
        import google_crc32c
    except ImportError:
        raise DataError(
            "TFRecord files need the package google-crc32c. Run: pip install google-crc32c"
        ) from None
    return google_crc32c


def encode(features: Mapping[str, Sequence[int] | Sequence[float]]) -> bytes:
    """Makes the message of an Example: equal features give equal bytes.

    A sequence that begins with a float is a float_list, another one an int64_list.
    """
    example = _example_class()()
    for name, values in features.items():
        feature = example.features.feature[name]
        of_type = feature.float_list if isinstance(values[0], float) else feature.int64_list
        of_type.value.extend(values)
    return example.SerializeToString(deterministic=True)


def decode(message: bytes) -> Features:
    """Returns the features of an Example.

    Raises:
      google.protobuf.message.DecodeError: If it is no Example.
    """
    example = _example_class().FromString(message)
    return {name: _values(feature) for name, feature in example.features.feature.items()}


def _values(feature: Any) -> list[Any]:
    return list(feature.int64_list.value or feature.float_list.value or feature.bytes_list.value)


@functools.cache
def _example_class() -> Any:
    """Returns the class of tf.train.Example's messages.

    It is made in a pool of its own: in the common one TensorFlow will register the same name.
    """

    def a_list(name: str, of_type: str) -> dict[str, Any]:
        return {"name": name, "field": [field("value", 1, of_type, is_repeated=True)]}

    def field(name: str, number: int, of_type: str, *, is_repeated: bool = False) -> dict[str, Any]:
        label = "LABEL_REPEATED" if is_repeated else "LABEL_OPTIONAL"
        kind = {"type": of_type} if of_type.startswith("TYPE_") else {"typeName": of_type}
        return {"name": name, "number": number, "label": label, **kind}

    one_of_the_lists = [
        field("bytes_list", 1, "BytesList") | {"oneofIndex": 0},
        field("float_list", 2, "FloatList") | {"oneofIndex": 0},
        field("int64_list", 3, "Int64List") | {"oneofIndex": 0},
    ]
    entry = {
        "name": "FeatureEntry",
        "field": [field("key", 1, "TYPE_STRING"), field("value", 2, "Feature")],
        "options": {"mapEntry": True},
    }
    features = field("feature", 1, "Features.FeatureEntry", is_repeated=True)
    messages = [
        a_list("BytesList", "TYPE_BYTES"),
        a_list("FloatList", "TYPE_FLOAT"),
        a_list("Int64List", "TYPE_INT64"),
        {"name": "Feature", "field": one_of_the_lists, "oneofDecl": [{"name": "kind"}]},
        {"name": "Features", "field": [features], "nestedType": [entry]},
        {"name": "Example", "field": [field("features", 1, "Features")]},
    ]
    file = {"name": "example.proto", "syntax": "proto3", "messageType": messages}
    pool = descriptor_pool.DescriptorPool()
    pool.Add(json_format.ParseDict(file, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Example"))
