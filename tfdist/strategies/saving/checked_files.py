"""The files of a save in a folder, with checksums, and those of the save before.

    folder/latest.weights.h5, ...    the newest save
    folder/checksums.json            size and checksum of each of its files; {} until it is whole
    folder/before/...                the same of the save before
    folder/damaged/...               a save that was found damaged

A save goes on as follows, so that one whole save is there at any moment but in the first one:

    begin_save    the files of the newest are linked or copied to before/, then checksums.json is {}
    the save      files are replaced
    end_save      checksums.json is written

Folders may be remote, such as gs://...
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import tensorflow as tf

from tfdist.strategies.saving.checkpoint_files import CheckpointDamagedError, ModelDirError

RECORD = "checksums.json"
BEFORE, DAMAGED = "before", "damaged"
_NOT_FINISHED = "its save was not finished"
_CHUNK_BYTES = 1 << 20  # Sixteen times as much takes ten times as long to read.

Record = Mapping[str, Mapping[str, int]]


def begin_save(folder: str, names: Sequence[str]) -> None:
    """Keeps the newest save, and notes that the coming one is not finished.

    Args:
      folder: The folder; it is made if it does not exist.
      names: The files of the newest save, for one that was written without checksums.
    """
    tf.io.gfile.makedirs(folder)
    record = _read(folder)
    if record is None and names:
        record = _record_of(folder, names)
    if isinstance(record, dict) and record:
        new = os.path.join(folder, f"{BEFORE}.new")
        _remove_folder(new)
        tf.io.gfile.makedirs(new)
        _put(folder, new, record)
        _remove_folder(os.path.join(folder, BEFORE))
        tf.io.gfile.rename(new, os.path.join(folder, BEFORE))
    write_json(os.path.join(folder, RECORD), {})


def end_save(folder: str, names: Iterable[str]) -> None:
    """Notes that the files with these names are a whole save."""
    write_json(os.path.join(folder, RECORD), _record_of(folder, names))


def recover(folder: str, names: Sequence[str]) -> str | None:
    """Puts the save before in place of a damaged one, which is moved to `damaged`.

    Args:
      folder: The folder of one save, which no other process may use.
      names: The files that a save would be restored from. Those without checksums, of an earlier
        version, are taken for whole.

    Returns:
      One line about the damage, and what is done; None if there is none.

    Raises:
      CheckpointDamagedError: If there are saves, but none is whole. Nothing is changed then.
      ModelDirError: If there is no permission to read a file.
    """
    before = os.path.join(folder, BEFORE)
    has_before = tf.io.gfile.exists(before)
    record = _read(folder)
    damaged = _damage(folder, record) if record is not None or has_before else None
    if damaged is None:
        return None
    what = f"The backup in {folder} is damaged: {damaged}."
    if record == {}:
        what = f"The newest backup in {folder} is not whole: {damaged}."
        if not has_before:
            for name in (*names, RECORD):
                tf.io.gfile.remove(os.path.join(folder, name))
            return f"{what} It was the first one, so training begins at its start."
    older_record = _read(before)
    older = _damage(before, older_record)
    if older is not None:
        older = f"; of the one before: {older}" if has_before else ""
        raise CheckpointDamagedError(
            f"No backup in {folder} is whole ({damaged}{older}). Copy a whole one there, or remove "
            "the folder to begin at epoch 1."
        )
    if record != {}:
        _set_aside(folder, {*names, *(record if isinstance(record, dict) else ()), RECORD})
        what = f"{what} Its files are in {os.path.join(folder, DAMAGED)}."
    assert isinstance(older_record, dict)
    _put(before, folder, older_record)
    return f"{what} The one before is taken."


def write_json(path: str, value: Any) -> None:
    """Writes a file that is whole at any moment."""
    with tf.io.gfile.GFile(f"{path}.new", "w") as file:
        file.write(json.dumps(value))
    tf.io.gfile.rename(f"{path}.new", path, overwrite=True)


def _damage(folder: str, record: Record | str | None) -> str | None:
    """Returns the damaged file of a save and the cause; None if all are as its record says."""
    if record is None:
        return f"{RECORD} is missing"
    if isinstance(record, str):
        return record
    for name, expected in record.items():
        path = os.path.join(folder, name)
        if not tf.io.gfile.exists(path):
            return f"{name} is missing"
        found = _size_and_checksum(path)
        if not found["bytes"]:
            return f"{name} is empty"
        if found["bytes"] != expected["bytes"]:
            return f"{name} has {found['bytes']:,} of {expected['bytes']:,} bytes"
        if found != expected:
            return f"{name} has another checksum than in {RECORD}"
    return None if record else _NOT_FINISHED


def _read(folder: str) -> Record | str | None:
    """Returns a folder's record, or why it cannot be read; None if there is none."""
    path = os.path.join(folder, RECORD)
    if not tf.io.gfile.exists(path):
        return None
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            data = file.read()
        record: Record = json.loads(data)
        if all(
            isinstance(file_record["bytes"] + file_record["crc32"], int)
            for file_record in record.values()
        ):
            return record
    except tf.errors.PermissionDeniedError as error:
        raise _no_permission(error) from None
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    return f"{RECORD} {'cannot be read' if data else 'is empty'}"


def _record_of(folder: str, names: Iterable[str]) -> Record:
    return {name: _size_and_checksum(os.path.join(folder, name)) for name in names}


def _size_and_checksum(path: str) -> dict[str, int]:
    checksum = size = 0
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            while data := file.read(_CHUNK_BYTES):
                checksum, size = zlib.crc32(data, checksum), size + len(data)
    except tf.errors.PermissionDeniedError as error:
        raise _no_permission(error) from None
    return {"bytes": size, "crc32": checksum}


def _no_permission(error: tf.errors.OpError) -> ModelDirError:
    return ModelDirError(
        f"A backup cannot be read: {error.message}. Change the file's owner or mode."
    )


def _put(source: str, folder: str, record: Record) -> None:
    """Puts the files of a save into another folder; its record comes last."""
    for name in record:
        path, new = os.path.join(source, name), os.path.join(folder, f"{name}.new")
        with suppress(tf.errors.NotFoundError):
            tf.io.gfile.remove(new)
        if not _link(path, new):
            tf.io.gfile.copy(path, new)
        tf.io.gfile.rename(new, os.path.join(folder, name), overwrite=True)
    write_json(os.path.join(folder, RECORD), record)


def _link(path: str, new: str) -> bool:
    """Gives a file a second name, if it is not one that is changed in place, as Keras' JSON is."""
    try:
        if not path.endswith(".json"):
            os.link(path, new)
            return True
    except OSError:  # A file system without links.
        pass
    return False


def _set_aside(folder: str, names: Iterable[str]) -> None:
    aside = os.path.join(folder, DAMAGED)
    _remove_folder(aside)
    tf.io.gfile.makedirs(aside)
    for name in names:
        with suppress(tf.errors.NotFoundError):
            tf.io.gfile.rename(os.path.join(folder, name), os.path.join(aside, name))


def _remove_folder(folder: str) -> None:
    with suppress(tf.errors.NotFoundError):
        tf.io.gfile.rmtree(folder)
