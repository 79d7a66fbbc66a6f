"""Copies of a session's values, in memory that one copy after another uses.

    session.run(piece)  ->  arrays of at most 32 MiB together  ->  copied over the last copies
    session.run(piece)  ->  arrays in the same memory          ->  ...

New memory costs more than a copy: the system clears it, and a virtual machine may have to get it
from its host first. So the copies stay, and values are fetched in pieces: the C library gives each
piece the memory that the one before has freed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

# The largest block that the GNU C library uses again in every program (mallopt(3)). A value that is
# larger is a piece of its own.
PIECE_BYTES = 32 << 20
# TensorFlow takes an array that begins here without a copy.
_ALIGNMENT = 64


class ValueCopies:
    """The copies of some values.

    Args:
      num_bytes: The size of each value; 0 if it is not known.
    """

    def __init__(self, num_bytes: Sequence[int]) -> None:
        self._num_bytes = list(num_bytes)
        self._copies: list[Any] = [None] * len(num_bytes)

    def fits(self, num_bytes: Sequence[int]) -> bool:
        """Returns whether values of these sizes have their memory here."""
        return self._num_bytes == list(num_bytes)

    def update(
        self, fetch: Callable[[list[Any]], Sequence[Any]], values: Sequence[Any]
    ) -> list[Any]:
        """Copies values, and returns the copies, which are valid until the next call.

        `fetch` returns the arrays of some of the values: `session.run`. No value may change in
        between.
        """
        for piece in pieces(self._num_bytes):
            fetched = fetch([values[index] for index in piece])
            for index, value in zip(piece, fetched, strict=True):
                self._copies[index] = _copied(value, self._copies[index])
            del fetched, value  # Freed before the next piece is fetched.
        return list(self._copies)


def pieces(num_bytes: Sequence[int]) -> Iterator[list[int]]:
    """Yields the indices of the values that are fetched together, in order."""
    piece: list[int] = []
    size = 0
    for index, more in enumerate(num_bytes):
        if piece and size + more > PIECE_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(index)
        size += more
    if piece:
        yield piece


def _copied(value: Any, room: Any) -> Any:
    """Returns a copy of a fetched value: in `room` if that has its shape, else in new memory."""
    if not isinstance(value, np.ndarray) or value.dtype.hasobject:  # A scalar, or text.
        return value
    if room is None or (room.shape, room.dtype) != (value.shape, value.dtype):
        block = np.empty(value.nbytes + _ALIGNMENT, np.uint8)
        start = -block.ctypes.data % _ALIGNMENT
        room = block[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
    np.copyto(room, value)
    return room
